"""Sequences packed into rows, with every shared beginning computed once.

A causal model computes the same for two sequences as far as their tokens are equal. So a row holds a prefix
tree of its sequences: a token stands once for all sequences that agree up to it, and attends to its own path.
Prompts of a domain share their instructions, the samples of a group their prompt and, at the low entropies of
a fine-tuned policy, much of their replies. Log-probabilities and gradients are those of the unpacked
sequences (a test holds them to each other).

Legend: R rows, T positions of a row, S sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int32]

WIDTH_MULTIPLE = 64
"""Wider rows are padded to a multiple of this. Kernels are compiled and freed memory is reused by shape, so that
widths of their own make a step slower (8 % measured) and the process larger with every step."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one forward pass.

    Shapes: `ids`, `positions` int64 [R, T]; `attend` bool [R, 1, T, T]. `sources[s]` int64 [T_s - 1]: for
    sequence s of the caller, the flat position (row * T + column) whose output predicts its tokens 1, 2, ...;
    sequences that agree so far name the same position.
    """

    ids: Tensor
    positions: Tensor
    attend: Tensor
    sources: dict[int, Tensor]
    num_tokens: int


def common_prefix_tokens(a: Ids, b: Ids) -> int:
    """Number of equal leading tokens."""
    limit = min(len(a), len(b))
    different = np.nonzero(a[:limit] != b[:limit])[0]
    return int(different[0]) if len(different) else limit


def tree_order(sequences: Sequence[Ids]) -> list[int]:
    """Indices in lexicographic order of the tokens: each sequence then shares most with its neighbours.

    In that order a prefix tree has sum(len(i) - common_prefix_tokens(i - 1, i)) tokens.
    """
    return sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">u4").tobytes())


def plan_rows(sequences: Sequence[Ids], row_tokens: int, *, share: bool = True) -> list[list[int]]:
    """Indices by row, each row in tree order and of at most `row_tokens` tree tokens.

    A longer sequence gets a row of its own; with `share` off, so does every sequence.
    """
    rows: list[list[int]] = []
    room = 0
    for index in tree_order(sequences):
        ids = sequences[index]
        fresh = len(ids) - (common_prefix_tokens(sequences[rows[-1][-1]], ids) if rows else 0)
        if rows and share and fresh <= room:
            rows[-1].append(index)
            room -= fresh
        else:
            rows.append([index])
            room = row_tokens - len(ids)
    return rows


def count_tree_tokens(sequences: Sequence[Ids], row: Sequence[int]) -> int:
    """Tokens of a row in tree order."""
    pairs = itertools.pairwise(row)
    return sum(len(sequences[i]) for i in row) - sum(common_prefix_tokens(sequences[a], sequences[b]) for a, b in pairs)


def padded_width(tokens: int) -> int:
    """Columns for a row of so many tokens."""
    return tokens if tokens <= WIDTH_MULTIPLE else -(-tokens // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def lay_out(sequences: Sequence[Ids], rows: Sequence[Sequence[int]]) -> PackedRows:
    """Rows of sequence indices, each in tree order, as one padded input."""
    sizes = [count_tree_tokens(sequences, row) for row in rows]
    width = padded_width(max(sizes))
    ids = np.zeros((len(rows), width), np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    attend = np.zeros((len(rows), width, width), bool)
    sources: dict[int, Tensor] = {}
    for r, row in enumerate(rows):
        at = 0
        before = np.zeros(0, np.int32)
        path = np.zeros(0, np.int64)  # columns of the last sequence's tokens
        for index in row:
            sequence = sequences[index]
            shared = common_prefix_tokens(before, sequence)
            depths = np.arange(shared, len(sequence))
            columns = at + depths - shared
            path = np.concatenate([path[:shared], columns])
            ids[r, columns], positions[r, columns] = sequence[shared:], depths
            attend[r, columns[:, None], path[None]] = depths[:, None] >= np.arange(len(sequence))[None]
            sources[index] = torch.from_numpy(r * width + path[:-1])
            before, at = sequence, at + len(depths)
        padding = np.arange(at, width)
        attend[r, padding, padding] = True  # a row of no keys would be NaN
    return PackedRows(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        attend=torch.from_numpy(attend)[:, None],
        sources=sources,
        num_tokens=sum(sizes),
    )
