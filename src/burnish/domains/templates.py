"""Sentence templates: one a line in a text file, `{slot}` for a value, `{slot^}` for one with a capital."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from burnish.core.seeds import python_random

T = TypeVar("T")

_SLOT = re.compile(r"\{(\w+)(\^?)\}")


def slots_of(template: str) -> list[str]:
    """The slot names of a template, in order."""
    return [match.group(1) for match in _SLOT.finditer(template)]


def filled(template: str, texts: Mapping[str, str]) -> str:
    """The template with every slot replaced.

    Raises: KeyError where a slot has no text.
    """

    def put(match: re.Match[str]) -> str:
        text = texts[match.group(1)]
        return text[:1].upper() + text[1:] if match.group(2) else text

    return _SLOT.sub(put, template)


def template_id(group: str, template: str) -> str:
    """`group/` and 10 hex digits of the template's content."""
    return f"{group}/{hashlib.sha256(template.encode('utf-8')).hexdigest()[:10]}"


def dealt(items: Sequence[T], position: int, seed: int, purpose: str) -> T:
    """The item at a position of an endless deal: each round goes through all items in a new order."""
    round_number, place = divmod(position, len(items))
    order = list(items)
    python_random(seed, purpose, round_number).shuffle(order)
    return order[place]
