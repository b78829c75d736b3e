"""What a domain is, and the checks that every domain owes: gold passes its verifier, splits share nothing.

Leaves out how tasks are made (one folder a domain) and how prompts become tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.core.errors import DataError, VerifierError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, Message, Split, Task, Verdict
from burnish.verify.base import NEUTRAL_REPLY
from burnish.verify.registry import get_verifier
from burnish.verify.replies import reply_trajectory
from burnish.verify.runner import verify_one

CHECKED_AT_ONCE = 16
"""Golds that are checked side by side: a verifier may wait for a service."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What an example is made of, by content: the evidence that two splits share nothing.

    `templates` are the sentences before filling in; `schemas` the set of keys asked for, or the tools shown;
    `words` the open-class words that were filled in.
    """

    templates: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A task, its sealed gold, and one reply that passes."""

    task: Task
    gold: Gold
    demonstration: Message
    origin: Origin = field(default_factory=Origin)


class Domain(ABC):
    """A family of tasks by name: generator, environment, verifier.

    Promise: `generate` is a pure function of its arguments and of the installed version, gives exactly
    `count` examples with distinct task ids, and a smaller count gives a prefix of a larger one. Content of
    different splits is disjoint (see `assert_disjoint`). `licence` covers the tasks' text.
    """

    name: str
    verifier: str
    env: str = "single_turn"
    source: str = "burnish"
    licence: str = "Apache-2.0"

    @abstractmethod
    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` examples of a split.

        Raises: DataError where the split cannot give that many distinct tasks.
        """

    def limit(self, split: Split) -> int | None:
        """How many tasks a split has; None where there is no end of them."""
        return None

    def labelled(self, count: int, seed: int) -> list[Example]:
        """`count` training examples whose demonstrations may be shown to the model.

        Raises: DataError where there are fewer.
        """
        return self.generate(Split.TRAIN, count, seed)


def distinct_examples(
    build: Callable[[int, int], Example], count: int, *, where: str, max_attempts: int = 50
) -> list[Example]:
    """`build(index, attempt)` for each index, the first attempt whose task is new.

    Raises: DataError where `max_attempts` draws for one index give nothing new.
    """
    made: list[Example] = []
    seen: set[str] = set()
    for index in range(count):
        for attempt in range(max_attempts):
            example = build(index, attempt)
            if example.task.id not in seen:
                break
        else:
            raise DataError(
                f"only {index} distinct tasks found, {count} asked for",
                where=where,
                fix="ask for fewer tasks",
            )
        seen.add(example.task.id)
        made.append(example)
    return made


def check_gold(
    examples: Sequence[Example],
    verifiers: Mapping[str, Verifier] | None = None,
    *,
    run: Callable[[Coroutine[Any, Any, frozenset[str]]], frozenset[str]] = asyncio.run,
) -> frozenset[str]:
    """Every demonstration passes its own verifier, and where there is none, the gold gives a neutral reply a verdict.

    `verifiers`: by the name that tasks use, before the registered ones. `run`: drives the event loop; a verifier that
    keeps a client open is used in that loop again. Returns the names of the components that the verdicts report.

    Raises: VerifierError naming the first task whose gold is rejected or cannot be used.
    """
    return run(_check_gold(examples, dict(verifiers or {})))


async def _check_gold(examples: Sequence[Example], verifiers: dict[str, Verifier]) -> frozenset[str]:
    components: set[str] = set()
    for start in range(0, len(examples), CHECKED_AT_ONCE):
        some = examples[start : start + CHECKED_AT_ONCE]
        verdicts = await asyncio.gather(*(_on_its_gold(example, verifiers) for example in some))
        for example, verdict in zip(some, verdicts, strict=True):
            components |= verdict.components.keys()
            _require_usable(example, verdict)
    return frozenset(components)


async def _on_its_gold(example: Example, verifiers: dict[str, Verifier]) -> Verdict:
    task = example.task
    if task.verifier not in verifiers:
        verifiers[task.verifier] = get_verifier(task.verifier)
    reply = reply_trajectory(task, example.demonstration.text if example.demonstration.parts else NEUTRAL_REPLY)
    return await verify_one(verifiers[task.verifier], task, example.gold, reply, Artifacts())


def _require_usable(example: Example, verdict: Verdict) -> None:
    """Raises: VerifierError where the demonstration does not pass, or there is none and a reply gets no verdict."""
    written, task = bool(example.demonstration.parts), example.task
    where = f"task {task.id} ({task.domain}, {task.split}, {task.source})"
    if verdict.outcome is Outcome.UNDECIDED:
        what = f"{verdict.verifier} gives no verdict on task {task.id}: {verdict.reason}"
        raise VerifierError(what, where=where, fix="mend the gold of this task, or the verifier")
    if written and verdict.outcome is not Outcome.PASS:
        what = f"{verdict.verifier} rejects the demonstration of task {task.id}: {verdict.reason}"
        raise VerifierError(what, where=where, fix="mend the gold or the demonstration of this task")


def split_digest(examples: Sequence[Example]) -> str:
    """SHA-256 over task ids and gold digests, whatever their order: the identity of an evaluation set."""
    lines = sorted(f"{example.task.id} {example.gold.digest}" for example in examples)
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()


class Contents:
    """What the sets of one domain are made of; a piece belongs to the set that claimed it first.

    Sets that are drawn while a run goes on are held against those that were drawn before it.
    """

    _kinds = ("task id", "cluster", "template", "schema", "word")

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}

    def claim(self, name: str, examples: Iterable[Example]) -> None:
        """These examples are of the set `name`.

        Raises: DataError naming another set that holds a task id, cluster, template, schema or open-class word of one.
        """
        for example in examples:
            for kind, content in zip(
                ("task id", "cluster", "template", "schema", "word"), _contents(example), strict=True
            ):
                for item in content:
                    owner = self._owners.setdefault((kind, item), name)
                    if owner != name:
                        raise DataError(
                            f"the sets {owner} and {name} share the {kind} {item!r}",
                            where=f"task {example.task.id} ({example.task.domain})",
                            fix="give each piece of content to one split, by its hash",
                        )


def assert_disjoint(sets: Mapping[str, Sequence[Example]]) -> None:
    """No two sets of a domain share a task id, a cluster, a template, a schema or an open-class word.

    Examples without an origin are compared by id and cluster alone.

    Raises: DataError naming two sets and what they share.
    """
    contents = Contents()
    for name, examples in sets.items():
        contents.claim(name, examples)


def _contents(example: Example) -> tuple[tuple[str, ...], ...]:
    origin = example.origin
    return (
        (example.task.id,),
        (example.task.cluster,),
        origin.templates,
        origin.schemas,
        tuple(word.casefold() for word in origin.words),
    )
