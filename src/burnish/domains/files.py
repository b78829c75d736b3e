"""A user's own rows as a domain: one JSON Lines file, cut into the four splits by content.

A row goes to a split by the hash of its cluster where it names one, else of its prompt (as `data.dedup` compares
prompts: case and white space aside), so adding rows never moves one from an evaluation set into training, and neither
equal prompts nor one cluster stand on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from burnish.core.errors import DataError
from burnish.core.seeds import generator
from burnish.core.types import Message, Role, Split, Task
from burnish.data.dedup import assert_disjoint, normalise
from burnish.data.sources import load_tasks
from burnish.domains.base import Domain, Example

SHARES: tuple[tuple[Split, float], ...] = (
    (Split.TRAIN, 0.55),
    (Split.DEVELOPMENT, 0.15),
    (Split.GATE, 0.15),
    (Split.FINAL, 0.15),
)
"""Shares of the rows by split: of 1,000 rows, 150 in each evaluation set find a change of about 9 points."""


class FileDomain(Domain):
    """Rows of a file with a verifier (see `data.sources.load_tasks` for their forms).

    `verifier` is kept as the recipe writes it, so that a task's id does not depend on where the recipe lies.

    Raises: DataError as `load_tasks`, and where two rows are the same task, or the same prompt with clusters that
    put it on both sides.
    """

    def __init__(self, path: Path, verifier: str) -> None:
        self.name = path.stem
        self.verifier = verifier
        self.path = path
        self._rows: dict[Split, list[Example]] = {split: [] for split in Split}
        seen: dict[str, str] = {}
        for task, gold, demonstration in load_tasks(path, verifier=verifier, domain=self.name):
            if task.id in seen:
                raise DataError(
                    "this row is the same task as another",
                    where=f"{task.source} and {seen[task.id]}",
                    fix="keep one of the two rows",
                )
            seen[task.id] = task.source
            split = _split_of(task)
            # A row without a written reply can still be verified; only SFT and few-shot prompts need one.
            reply = demonstration or Message(Role.ASSISTANT, ())
            self._rows[split].append(Example(replace(task, split=split), gold, reply))
        assert_disjoint({f"{split}": [example.task for example in rows] for split, rows in self._rows.items()})

    def limit(self, split: Split) -> int:
        """Rows of a split."""
        return len(self._rows[split])

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` rows of a split, in an order that `seed` decides.

        Raises: DataError where the split has fewer rows.
        """
        return self._some(self._rows[split], f"{split}", count, seed)

    def labelled(self, count: int, seed: int) -> list[Example]:
        """`count` training rows that have a written answer.

        Raises: DataError where there are fewer.
        """
        rows = [example for example in self._rows[Split.TRAIN] if example.demonstration.parts]
        return self._some(rows, "labelled train", count, seed)

    def _some(self, rows: Sequence[Example], kind: str, count: int, seed: int) -> list[Example]:
        if count > len(rows):
            sizes = ", ".join(f"{s} {len(r)}" for s, r in self._rows.items())
            raise DataError(
                f"{count} {kind} tasks are asked for, the file gives {len(rows)} (rows by set: {sizes})",
                where=str(self.path),
                fix=f"add rows, or ask for at most {len(rows)} in the recipe",
            )
        order = generator(seed, "domains.files", self.name, kind).permutation(len(rows))
        return [rows[int(i)] for i in order[:count]]


def _split_of(task: Task) -> Split:
    named = task.cluster != task.id
    key = task.cluster if named else "\x1f".join(f"{message.role}:{normalise(message.text)}" for message in task.prompt)
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    at = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in SHARES:
        if at < share:
            return split
        at -= share
    return Split.FINAL
