"""Sequences packed into rows, with shared prefixes computed once.

Trajectories of one task begin with the same prompt. A `Tree` holds that prefix once and the continuations
as branches; rows hold several trees. A token attends to its tree's prefix and to its own branch, causally,
so log-probabilities and gradients are those of the unpacked sequences (a test holds them to each other).

Legend: R rows, T positions of a row, S sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """A shared prefix [P] (P >= 1) and branches; `members[i]` is the caller's index of branch i."""

    prefix: NDArray[np.int32]
    branches: tuple[NDArray[np.int32], ...]
    members: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return len(self.prefix) + sum(len(branch) for branch in self.branches)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Input of one forward pass.

    Shapes: `ids`, `positions` int64 [R, T]; `attend` bool [R, 1, T, T]. `sources[s]` int64 [T_s - 1]: for
    sequence s of the caller, the flat position (row * T + column) whose output predicts its tokens 1, 2, ...
    """

    ids: Tensor
    positions: Tensor
    attend: Tensor
    sources: dict[int, Tensor]
    num_tokens: int


def build_trees(sequences: Sequence[NDArray[np.int32]], prefix_tokens: Sequence[int], *, share: bool) -> list[Tree]:
    """Group sequences whose first `prefix_tokens[i]` ids are equal; with `share` off, each is its own tree."""
    grouped: dict[tuple[int, bytes] | int, list[int]] = {}
    for index, (ids, length) in enumerate(zip(sequences, prefix_tokens, strict=True)):
        if not 1 <= length <= len(ids):
            raise ValueError(f"sequence {index}: a prefix of {length} tokens in {len(ids)}")
        key = (length, ids[:length].tobytes()) if share else index
        grouped.setdefault(key, []).append(index)
    trees = []
    for members in grouped.values():
        first = members[0]
        length = prefix_tokens[first]
        branches = tuple(sequences[i][length:] for i in members)
        trees.append(Tree(sequences[first][:length], branches, tuple(members)))
    return trees


def plan_rows(trees: Sequence[Tree], row_tokens: int) -> list[list[Tree]]:
    """Trees into rows of at most `row_tokens` (a longer tree gets a row of its own), first fit decreasing."""
    rows: list[list[Tree]] = []
    room: list[int] = []
    for tree in sorted(trees, key=lambda t: -t.num_tokens):
        for index, free in enumerate(room):
            if tree.num_tokens <= free:
                rows[index].append(tree)
                room[index] -= tree.num_tokens
                break
        else:
            rows.append([tree])
            room.append(row_tokens - tree.num_tokens)
    return rows


def lay_out(rows: Sequence[Sequence[Tree]]) -> PackedRows:
    """Rows of trees as one padded input."""
    width = max(sum(tree.num_tokens for tree in row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    tree_of = np.full((len(rows), width), -1, np.int64)
    branch_of = np.zeros((len(rows), width), np.int64)  # 0 is the prefix
    sources: dict[int, Tensor] = {}
    for r, row in enumerate(rows):
        at = 0
        for t, tree in enumerate(row):
            p = len(tree.prefix)
            ids[r, at : at + p] = tree.prefix
            positions[r, at : at + p] = np.arange(p)
            tree_of[r, at : at + tree.num_tokens] = t
            prefix_at = r * width + at + np.arange(p)
            at += p
            for b, (branch, member) in enumerate(zip(tree.branches, tree.members, strict=True), start=1):
                n = len(branch)
                ids[r, at : at + n] = branch
                positions[r, at : at + n] = np.arange(p, p + n)
                branch_of[r, at : at + n] = b
                path = np.concatenate([prefix_at, r * width + at + np.arange(n)])
                sources[member] = torch.from_numpy(path[:-1])
                at += n
    same_tree = tree_of[:, :, None] == tree_of[:, None, :]
    on_path = (branch_of[:, None, :] == 0) | (branch_of[:, :, None] == branch_of[:, None, :])
    causal = np.tril(np.ones((width, width), dtype=bool))
    padding = tree_of < 0
    attend = same_tree & on_path & causal[None]
    attend |= padding[:, :, None] & np.eye(width, dtype=bool)[None]  # a row of no keys would be NaN
    return PackedRows(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        attend=torch.from_numpy(attend)[:, None],
        sources=sources,
        num_tokens=int((~padding).sum()),
    )
