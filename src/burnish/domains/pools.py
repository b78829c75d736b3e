"""Which split a piece of content belongs to: decided by its hash, so that held-out means held-out content.

A word, a sentence template, a tool or a schema has one split, whatever the seed. Adding content moves nothing
that is already there. Leaves out who uses the content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from burnish.core.types import Split

_SHARES = (Split.TRAIN, Split.TRAIN, Split.DEVELOPMENT, Split.GATE, Split.FINAL)
"""Two fifths of all content to training, one fifth to each of the three evaluation sets."""

_SALTS = {"word": "171", "frame": "59255", "tool": "5352", "schema": "0"}
"""The first numbers for which every pool keeps its least size (tests/domains/test_pools.py)."""


def split_of(kind: str, content: str) -> Split:
    """The one split of this content; case and spaces at the ends do not matter.

    `kind`: `word`, `frame`, `tool` or `schema`; equal text of different kinds is drawn independently.
    """
    text = f"{kind}\x1f{_SALTS[kind]}\x1f{content.strip().casefold()}"
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return _SHARES[int.from_bytes(digest, "big") % len(_SHARES)]


def pool(kind: str, contents: Iterable[str], split: Split) -> tuple[str, ...]:
    """Those of the contents that belong to a split, in their order."""
    return tuple(content for content in contents if split_of(kind, content) is split)
