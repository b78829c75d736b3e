"""What a domain is, and the checks that every domain owes: gold passes its verifier, splits share nothing.

Leaves out how tasks are made (one folder a domain) and how prompts become tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from burnish.core.errors import DataError, VerifierError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, Message, Split, Task
from burnish.verify.registry import get_verifier
from burnish.verify.replies import reply_trajectory


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


def check_gold(examples: Sequence[Example], verifier: Verifier | None = None) -> frozenset[str]:
    """Every demonstration passes its own verifier; needs no running event loop.

    `verifier`: used for all examples where given; else each task's own, by name. Returns the names of the
    components that the verdicts report.

    Raises: VerifierError naming the first task whose gold is rejected.
    """
    return asyncio.run(_check_gold(examples, verifier))


async def _check_gold(examples: Sequence[Example], given: Verifier | None) -> frozenset[str]:
    verifiers: dict[str, Verifier] = {}
    components: set[str] = set()
    for example in examples:
        task = example.task
        verifier = given or verifiers.setdefault(task.verifier, get_verifier(task.verifier))
        trajectory = reply_trajectory(task, example.demonstration.text)
        verdict = await verifier.verify(task, example.gold, trajectory, Artifacts())
        components |= verdict.components.keys()
        if verdict.outcome is not Outcome.PASS:
            raise VerifierError(
                f"{verdict.verifier} rejects the demonstration of task {task.id}: {verdict.reason}",
                where=f"task {task.id} ({task.domain}, {task.split}, {task.source})",
                fix="mend the gold or the demonstration of this task",
            )
    return frozenset(components)


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
