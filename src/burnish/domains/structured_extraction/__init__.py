"""`structured_extraction`: a short business text -> exactly the JSON object asked for.

Four families (people, orders with totals, invoices, appointments). Held-out sets have their own sentence
templates, vocabularies and schemas (sets of keys), each by content hash. Leaves out nested objects
and lists.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from random import Random

from burnish.core.gold import Gold
from burnish.core.seeds import python_random
from burnish.core.types import Message, Role, Split, Task
from burnish.domains.base import Domain, Example, Origin, distinct_examples
from burnish.domains.pools import pool, split_of
from burnish.domains.structured_extraction.families import FAMILIES, Family
from burnish.domains.templates import dealt, filled, template_id

_ASIDE_FRAC = 0.3  # share of texts with a sentence that holds no fact


@cache
def templates(name: str, split: Split) -> tuple[str, ...]:
    """The sentence templates of a family (or `asides`) that belong to a split."""
    text = files("burnish.domains.structured_extraction").joinpath(f"{name}.txt").read_text("utf-8")
    return pool("frame", [line for line in text.splitlines() if line.strip()], split)


class StructuredExtraction(Domain):
    """See the module; gold is `{"value": {...}}` in the order of the keys asked for."""

    name = "structured_extraction"
    verifier = "structured_extraction"

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """Families take turns; within one, its templates are dealt round by round."""

        def build(index: int, attempt: int) -> Example:
            family = FAMILIES[index % len(FAMILIES)]
            purpose = f"{self.name}.{split.value}.{family.name}"
            frame = dealt(templates(family.name, split), index // len(FAMILIES), seed, purpose)
            return self._example(family, frame, split, python_random(seed, purpose, "draw", index, attempt))

        return distinct_examples(build, count, where=f"{self.name}, split {split.value}")

    def _example(self, family: Family, frame: str, split: Split, random: Random) -> Example:
        facts = family.draw(random, split)
        schema = _draw_schema(family, split, random)
        text, used = filled(frame, facts.texts), [frame]
        if random.random() < _ASIDE_FRAC:
            aside = random.choice(templates("asides", split))
            text, used = f"{text} {aside}", [frame, aside]
        asked = ", ".join(_asked(family, name, key) for name, key in schema.items())
        value = {key: facts.values[name] for name, key in schema.items()}
        task = Task.create(
            (Message.of(Role.USER, f"Return only a JSON object with the keys {asked}.\nText: {text}"),),
            env=self.env,
            verifier=self.verifier,
            domain=self.name,
            split=split,
            cluster=template_id(family.name, frame),
            source=self.source,
            licence=self.licence,
            tags=(family.name,),
        )
        reply = Message.of(Role.ASSISTANT, json.dumps(value, ensure_ascii=False))
        return Example(
            task,
            Gold.seal({"value": value}),
            reply,
            Origin(tuple(used), (_schema_id(family, schema),), tuple(facts.words)),
        )


def _draw_schema(family: Family, split: Split, random: Random) -> dict[str, str]:
    """Field name -> key, in the order asked for; drawn until its hash falls into the split."""
    while True:
        names = list(random.choice(family.subsets))
        random.shuffle(names)
        schema = {name: random.choice(family.fields[name].keys) for name in names}
        if split_of("schema", _schema_id(family, schema)) is split:
            return schema


def _schema_id(family: Family, schema: dict[str, str]) -> str:
    return f"{family.name}:{','.join(sorted(schema.values()))}"


def _asked(family: Family, name: str, key: str) -> str:
    form = family.fields[name].form
    return f"{key} ({form})" if form else key
