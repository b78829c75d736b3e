"""What an objective reads and returns: flat tensors of tokens; packing and padding never reach a formula.

A batch lists tokens, not rows: whoever builds it has already dropped padding, prompts and shared prefixes.
Everything that a formula needs to know about the rest of the optimiser step travels with the tokens
(`sequence_tokens`) or in `Denominators`, so a step may be cut anywhere, even inside a sequence, and its
micro-batch losses and gradients add up to the same totals.

Legend: N tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

import torch
from torch import Tensor


class _Flat:
    """Tensors of equal length N, cut together."""

    def __len__(self) -> int:
        return len(next(value for _, value in self._tensors()))

    def select(self, index: Tensor) -> Self:
        """These tokens only; `index` is bool [N] or int64 positions. Gradients flow through."""
        return self._map(lambda value: value[index])

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Consecutive pieces of these many tokens.

        Raises: ValueError where the sizes do not add up to N.
        """
        if sum(sizes) != len(self):
            raise ValueError(f"sizes {list(sizes)} add up to {sum(sizes)}, not to the {len(self)} tokens")
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            self._map(lambda value, cut=slice(start, start + size): value[cut])  # type: ignore[misc]
            for start, size in zip(starts, sizes, strict=True)
        ]

    def to(self, device: torch.device | str) -> Self:
        """The same tokens on another device."""
        return self._map(lambda value: value.to(device))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        pairs = [(f.name, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        return [(name, value) for name, value in pairs if value is not None]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{name: function(value) for name, value in self._tensors()})

    def _check(self) -> None:
        length = len(self)
        for name, value in self._tensors():
            if value.shape != (length,):
                owner = type(self).__name__
                raise ValueError(f"{owner}.{name} has shape {tuple(value.shape)}, not ({length},)")


@dataclass(frozen=True, eq=False)
class TokenBatch(_Flat):
    """Tokens to train on, in any order and from any sequences.

    Shapes: all [N]. `ids`, `sequence`, `group` int64; `mask` bool; the rest float.
    `sequence` is the sequence's index in the whole optimiser step, `group` its group's. `sequence_tokens` is
    the number of trained tokens of that token's whole sequence in the step (see `sequence_token_counts`).
    `weight` are row weights, None for all ones. What an objective does not name in `needs` may be None.
    Positions with a false `mask` have no effect, whatever they hold.
    """

    ids: Tensor
    sequence: Tensor
    group: Tensor
    sequence_tokens: Tensor
    mask: Tensor
    advantage: Tensor | None = None
    logp_rollout: Tensor | None = None
    logp_prox: Tensor | None = None
    logp_ref: Tensor | None = None
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.mask.dtype != torch.bool:
            raise ValueError(f"TokenBatch.mask is {self.mask.dtype}, not bool: tokens are selected by it")


@dataclass(frozen=True, eq=False)
class PolicyOutputs(_Flat):
    """What the model says of the batch's tokens. Shapes: [N], with gradients; `entropy` in nats or None."""

    logp: Tensor
    entropy: Tensor | None = None

    def __post_init__(self) -> None:
        self._check()


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of the whole optimiser step, over all micro-batches and ranks; only trained tokens count.

    `sequences` and `groups` are those with at least one trained token: a fully masked sequence leaves the
    mean. `weight` is the sum of row weights over trained tokens, `tokens` where there are none. `max_tokens`
    is Dr. GRPO's constant length, in tokens; 0 where no objective uses it.
    """

    tokens: int
    sequences: int
    groups: int
    weight: float
    max_tokens: int = 0

    @classmethod
    def of(cls, batches: Sequence[TokenBatch], *, max_tokens: int = 0) -> Denominators:
        """The counts over every micro-batch of one optimiser step."""
        sequences: set[int] = set()
        groups: set[int] = set()
        tokens, weight = 0, 0.0
        for batch in batches:
            kept = int(batch.mask.sum())
            tokens += kept
            weight += kept if batch.weight is None else float(batch.weight[batch.mask].double().sum())
            sequences.update(batch.sequence[batch.mask].unique().tolist())
            groups.update(batch.group[batch.mask].unique().tolist())
        return cls(tokens, len(sequences), len(groups), weight, max_tokens)

    @classmethod
    def from_counts(
        cls, tokens: Sequence[int], groups: Sequence[int] | None = None, *, max_tokens: int = 0
    ) -> Denominators:
        """The counts from trained tokens per sequence and each sequence's group (own groups if None)."""
        keys = range(len(tokens)) if groups is None else groups
        used = {key for key, count in zip(keys, tokens, strict=True) if count > 0}
        total = sum(tokens)
        return cls(total, sum(count > 0 for count in tokens), len(used), float(total), max_tokens)


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a loss, this micro-batch's share: `loss` is the sum of `coefficient * value` over terms.

    `value` is already divided by `denominator_value`, the count that `denominator` names.
    """

    value: float
    coefficient: float
    denominator: str
    denominator_value: float


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveOutput:
    """A micro-batch's share of the step's loss: losses, term values and metrics add across micro-batches.

    `loss` is a scalar already divided by the step's denominators. `metrics` maps a name of the metric table
    to (sum, count). `maxima` do not add: the step's is the largest.
    """

    loss: Tensor
    terms: dict[str, Term]
    metrics: dict[str, tuple[float, float]]
    maxima: dict[str, float] = field(default_factory=dict)


def sequence_token_counts(sequence: Tensor, mask: Tensor) -> Tensor:
    """`TokenBatch.sequence_tokens` of a whole step: unmasked tokens in each token's sequence.

    Shapes: [N], [N] -> [N] float64. Call it before the step is cut into micro-batches.
    """
    _, where = sequence.unique(return_inverse=True)
    counts = torch.bincount(where, weights=mask.double())
    return counts[where]


def share(total: Tensor, denominator: float, name: str) -> Tensor:
    """`total / denominator`, and 0 for an empty step, where both are 0.

    Raises: ValueError where tokens are trained but the denominator says that there are none.
    """
    if denominator > 0:
        return total / denominator
    if denominator == 0 and not bool(total.detach().any()):
        return total
    raise ValueError(f"denominator {name} is {denominator} for a batch with trained tokens")
