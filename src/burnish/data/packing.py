"""Which sequences share a row of a batch.

Leaves out the attention mask between them (`models`) and tensors.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from burnish.core.errors import DataError


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices into `lengths`, each bin's total at most `capacity`; best-fit decreasing.

    The result depends on the lengths alone: equal lengths are taken in the order of their indices, and bins
    are listed in the order of their smallest index. At most 11/9 of the fewest bins possible, plus one.

    Units: tokens. Raises: DataError where a sequence is longer than a bin, or not longer than 0.

    Source: Johnson, Demers, Ullman, Garey & Graham, "Worst-case performance bounds for simple
    one-dimensional packing algorithms", SIAM J. Comput. 3(4), 1974.
    """
    for index, length in enumerate(lengths):
        if not 0 < length <= capacity:
            raise DataError(
                f"sequence {index} has {length} tokens; a bin holds 1 to {capacity}",
                fix="truncate or drop it first, or raise the token limit",
            )
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, bin), sorted: the fullest that fits is found by bisection
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        position = bisect_left(room, (length, -1))
        if position == len(room):
            bins.append([index])
            insort(room, (capacity - length, len(bins) - 1))
        else:
            free, chosen = room.pop(position)
            bins[chosen].append(index)
            insort(room, (free - length, chosen))
    return sorted((sorted(members) for members in bins), key=lambda members: members[0])
