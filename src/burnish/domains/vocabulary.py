"""Word lists of the procedural domains, by split.

The lists are in `words.txt`. Closed classes (months, currencies, number words) are in `surfaces` and shared
by all splits, as they are in the language.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from burnish.core.types import Split
from burnish.domains.pools import pool


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    """Every list by name, in file order."""
    lists: dict[str, list[str]] = {}
    current: list[str] = []
    text = files("burnish.domains").joinpath("words.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            current = lists.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current += [word.strip() for word in line.split(",") if word.strip()]
    return {name: tuple(words) for name, words in lists.items()}


@cache
def words(name: str, split: Split) -> tuple[str, ...]:
    """The words of one list that belong to a split."""
    return pool("word", word_lists()[name], split)
