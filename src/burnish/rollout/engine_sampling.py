"""Drawing a token from logits, with its exact log-probability.

Legend: B rows of logits (histories), N draws (completions; those that agree so far share a row), V vocabulary.
A draw is an inverse-CDF walk over blocks of the vocabulary with one uniform, taken from (request seed, token
position): the same request draws the same token from the same logits in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.protocols import Sampling
from burnish.models.filters import filter_logits

_BLOCK = 256
"""Vocabulary entries a block: near the square root of 50k-250k vocabularies, so both walks are short."""
_CHUNK_ENTRIES = 2**20
"""Logits at once: temporaries of a few MB stay in cache and in the allocator's hands."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampled tokens int64 [N]; `logp` under the sampled distribution and under the plain softmax, float64 [N]."""

    tokens: Tensor
    logp: Tensor
    logp_unfiltered: Tensor


def _inverse_cdf(weights: Tensor, total: Tensor, rows: Tensor, uniforms: Tensor) -> Tensor:
    """One token a draw: the first whose cumulative weight exceeds its uniform in [0, 1).

    Shapes: `weights` [B, V], `total` float64 [B, blocks] their running sums by block, `rows` and `uniforms`
    [N] -> [N].
    """
    blocks = total[rows]
    target = uniforms.to(torch.float64)[:, None] * blocks[:, -1:]
    block = torch.searchsorted(blocks, target, right=True).clamp_(max=blocks.shape[-1] - 1)
    inside = weights.view(len(weights), -1, _BLOCK)[rows, block[:, 0]].to(torch.float64).cumsum(-1)
    before = torch.where(block > 0, blocks.gather(-1, (block - 1).clamp(min=0)), torch.zeros_like(target))
    offset = torch.searchsorted(inside, target - before, right=True)
    # Rounding of the two sums can push the walk past the block's last token of positive weight.
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)
    return block[:, 0] * _BLOCK + torch.minimum(offset, last)[:, 0]


def draw_tokens(
    logits: Tensor,
    sampling: Sampling,
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
) -> Draw:
    """Draw N tokens from logits float32 [B, V]: draw n from row `rows[n]` (ascending; default: one a row).

    Greedy (temperature 0) takes the best logit; its `logp` is 0, the log of that distribution's mass.
    """
    from burnish.core.seeds import token_uniforms

    which = np.arange(len(logits)) if rows is None else rows
    chunk = max(1, _CHUNK_ENTRIES // logits.shape[-1])
    if sampling.temperature == 0.0:
        picks = [(some.argmax(-1), some.logsumexp(-1)) for some in logits.split(chunk)]
        best, lse = (torch.cat(parts)[torch.from_numpy(which)] for parts in zip(*picks, strict=True))
        plain = logits[torch.from_numpy(which), best] - lse
        return Draw(best, torch.zeros(len(best), dtype=torch.float64), plain.double())
    uniforms = torch.from_numpy(token_uniforms(seeds, positions))
    parts = []
    for start in range(0, len(logits), chunk):
        first, end = np.searchsorted(which, [start, start + chunk])
        if first < end:
            inside = torch.from_numpy(which[first:end] - start)
            parts.append(_draw_chunk(logits[start : start + chunk], sampling, inside, uniforms[first:end]))
    tokens, logp, unfiltered = (torch.cat(values) for values in zip(*parts, strict=True))
    return Draw(tokens, logp, unfiltered)


def _draw_chunk(logits: Tensor, sampling: Sampling, rows: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, logp, unfiltered logp) of draws from rows of a few logits; these are left as they are."""
    filtered = logits
    if sampling.temperature != 1.0 or sampling.top_k or sampling.top_p < 1.0:
        filtered = filter_logits(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    top = filtered.amax(-1, keepdim=True)
    weights = torch.nn.functional.pad((filtered - top).exp_(), (0, -logits.shape[-1] % _BLOCK))
    total = weights.view(len(logits), -1, _BLOCK).sum(-1, dtype=torch.float64).cumsum(-1)
    tokens = _inverse_cdf(weights, total, rows, uniforms)
    lse = total[:, -1].log() + top[:, 0].double()
    logp = filtered[rows, tokens].double() - lse[rows]
    if filtered is logits:
        return tokens, logp, logp
    return tokens, logp, logits[rows, tokens].double() - logits.logsumexp(-1)[rows].double()
