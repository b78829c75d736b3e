"""A user's own rows as a domain: one JSON Lines file, cut into the four splits by content.

A row goes to a split by the hash of its prompt, so adding rows never moves one from an evaluation set into
training, and equal prompts cannot stand on both sides. A row is its own cluster.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from burnish.core.errors import DataError
from burnish.core.seeds import generator
from burnish.core.types import Message, Role, Split
from burnish.data.sources import load_tasks
from burnish.domains.base import Domain, Example

SHARES: tuple[tuple[Split, float], ...] = (
    (Split.TRAIN, 0.55),
    (Split.DEVELOPMENT, 0.15),
    (Split.GATE, 0.15),
    (Split.FINAL, 0.15),
)
"""Shares of the rows by split: of 1,000 rows, 150 in each evaluation set find a change of about 8 points."""


class FileDomain(Domain):
    """Rows of a file with a verifier (see `data.sources.load_tasks` for their forms).

    Raises: DataError as `load_tasks`.
    """

    def __init__(self, path: Path, verifier: str) -> None:
        self.name = path.stem
        self.verifier = verifier
        self.path = path
        self._rows: dict[Split, list[Example]] = {split: [] for split in Split}
        for task, gold, demonstration in load_tasks(path, verifier=verifier):
            split = _split_of(task.prompt)
            # A row without a written reply can still be verified; only SFT and few-shot prompts need one.
            reply = demonstration or Message(Role.ASSISTANT, ())
            self._rows[split].append(Example(replace(task, split=split, domain=self.name), gold, reply))

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` rows of a split, in an order that `seed` decides.

        Raises: DataError where the split has fewer rows.
        """
        rows = self._rows[split]
        if count > len(rows):
            sizes = ", ".join(f"{s}: {len(r)}" for s, r in self._rows.items())
            raise DataError(
                f"{count} {split} tasks are asked for, the file gives {len(rows)} ({sizes})",
                where=str(self.path),
                fix=f"add rows, or set tasks.{split} to at most {len(rows)}",
            )
        order = generator(seed, "domains.files", self.name, str(split)).permutation(len(rows))
        return [rows[int(i)] for i in order[:count]]


def _split_of(prompt: tuple[Message, ...]) -> Split:
    text = "\x1f".join(f"{message.role}:{message.text}" for message in prompt)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    at = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in SHARES:
        if at < share:
            return split
        at -= share
    return Split.FINAL
