"""Drawing a token from logits, with its exact log-probability.

Legend: B sequences, V vocabulary. The draw is an inverse-CDF walk over blocks of the vocabulary with one
uniform a row, taken from (request seed, token position): the same request draws the same token from the
same logits in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.protocols import Sampling

_BLOCK = 256
"""Vocabulary entries a block: near the square root of 50k-250k vocabularies, so both walks are short."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampled tokens int64 [B]; `logp` under the sampled distribution and under the plain softmax, float64 [B]."""

    tokens: Tensor
    logp: Tensor
    logp_unfiltered: Tensor


def filter_logits(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Logits [B, V] after temperature, then top-k, then top-p (that order); removed entries are -inf.

    Top-p keeps the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2020,
    arXiv 1904.09751), always at least one; ties at the edge are kept by sorted position.
    """
    logits = logits / temperature
    if top_k and top_k < logits.shape[-1]:
        edge = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < edge, float("-inf"))
    if top_p < 1.0:
        ordered, index = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, before >= top_p)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


def _inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row: the first whose cumulative probability exceeds the row's uniform in [0, 1)."""
    b, v = logits.shape
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    padded = torch.nn.functional.pad(weights, (0, -v % _BLOCK)).view(b, -1, _BLOCK)
    blocks = padded.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniforms.to(torch.float64)[:, None] * blocks[:, -1:]
    block = torch.searchsorted(blocks, target, right=True).clamp_(max=blocks.shape[-1] - 1)
    inside = padded[torch.arange(b), block[:, 0]].to(torch.float64).cumsum(-1)
    before = torch.where(block > 0, blocks.gather(-1, (block - 1).clamp(min=0)), torch.zeros_like(target))
    offset = torch.searchsorted(inside, target - before, right=True)
    # Rounding of the two sums can push the walk past the block's last token of positive weight.
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)
    return block[:, 0] * _BLOCK + torch.minimum(offset, last)[:, 0]


def draw_tokens(logits: Tensor, sampling: Sampling, seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Draw:
    """Draw one token a row from logits float32 [B, V].

    Greedy (temperature 0) takes the best logit; its `logp` is 0, the log of that distribution's mass.
    """
    from burnish.core.seeds import token_uniforms

    plain_lse = logits.logsumexp(-1, keepdim=True)
    if sampling.temperature == 0.0:
        tokens = logits.argmax(-1)
        picked = (logits.gather(-1, tokens[:, None]) - plain_lse)[:, 0].double()
        return Draw(tokens, torch.zeros_like(picked), picked)
    filtered, lse = logits, plain_lse
    if sampling.temperature != 1.0 or sampling.top_k or sampling.top_p < 1.0:
        filtered = filter_logits(logits, sampling.temperature, sampling.top_k, sampling.top_p)
        lse = filtered.logsumexp(-1, keepdim=True)
    tokens = _inverse_cdf(filtered, torch.from_numpy(token_uniforms(seeds, positions)))
    at = tokens[:, None]
    logp = (filtered.gather(-1, at) - lse)[:, 0].double()
    unfiltered = (logits.gather(-1, at) - plain_lse)[:, 0].double()
    return Draw(tokens, logp, unfiltered)
