"""Cutting a rendered conversation to a length, with what was lost counted.

Leaves out cutting the middle or the left: a reply without its prompt is not what a sampler would see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from burnish.core.errors import DataError
from burnish.core.types import TokenUse
from burnish.render.spans import Rendered


@dataclass(frozen=True, slots=True, eq=False)
class Truncation:
    """The cut rendering, how many trained tokens fell off, and how many assistant turns lost their end."""

    rendered: Rendered
    lost_tokens: int
    lost_ends: int


def truncate(rendered: Rendered, max_tokens: int, *, where: str = "") -> Truncation:
    """The first `max_tokens` tokens.

    Raises: DataError where no trained token would be left: such a row would count and teach nothing.
    """
    length = len(rendered.ids)
    if length <= max_tokens:
        return Truncation(rendered, 0, 0)
    kept = slice(0, max_tokens)
    trained = rendered.use == TokenUse.TRAINED
    if not trained[kept].any():
        raise DataError(
            f"cut to {max_tokens} of {length} tokens, the row keeps none of its {int(trained.sum())} trained tokens",
            where=where,
            fix=f"raise the token limit to at least {_first_use(trained)}, or drop the row",
        )
    turns = tuple(replace(turn, end=min(turn.end, max_tokens)) for turn in rendered.turns if turn.start < max_tokens)
    lost_ends = sum(1 for turn in rendered.turns if turn.sampled and turn.end > max_tokens and trained[turn.end - 1])
    cut = replace(
        rendered,
        ids=rendered.ids[kept],
        source=rendered.source[kept],
        use=rendered.use[kept],
        message_index=rendered.message_index[kept],
        turns=turns,
        marked=None if rendered.marked is None else rendered.marked[kept],
    )
    return Truncation(cut, int(trained[max_tokens:].sum()), lost_ends)


def _first_use(trained: NDArray[np.bool_]) -> int:
    """Number of tokens needed to keep the first trained turn whole."""
    start = int(np.argmax(trained))
    rest = np.flatnonzero(~trained[start:])
    return len(trained) if not len(rest) else start + int(rest[0])
