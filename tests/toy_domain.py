"""A domain that a random model solves half of the time, so that every part of training has work."""

from __future__ import annotations

from burnish.core.gold import Gold
from burnish.core.seeds import python_random
from burnish.core.types import Message, Role, Split, Task
from burnish.domains.base import Domain, Example


def even_length(reply: str, gold: str) -> float:
    """1.0 for a reply with an even number of characters; `gold` is only here to be kept sealed."""
    return float(len(reply) % 2 == 0)


class Toy(Domain):
    """Any reply of even length passes."""

    name = "toy"
    verifier = "toy_domain:even_length"

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """Numbered prompts."""
        numbers = python_random(seed, "toy", str(split)).sample(range(10**6), count)
        return [self._example(split, number) for number in numbers]

    def _example(self, split: Split, number: int) -> Example:
        task = Task.create(
            (Message.of(Role.USER, f"{split} {number}"),),
            env=self.env,
            verifier=self.verifier,
            domain=self.name,
            split=split,
            cluster=f"{split}-{number % 40}",
            source="tests",
            licence="CC0-1.0",
        )
        return Example(task, Gold.seal(f"sealed {number}"), Message.of(Role.ASSISTANT, "even"))
