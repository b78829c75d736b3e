"""The filters that make a sampling distribution out of logits: one home for the sampler and the trainer.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def filter_logits(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Logits of the distribution that is sampled from: temperature, then top-k, then top-p; the rest is -inf.

    Ties at the k-th logit are all kept; top-p keeps the fewest most probable tokens whose mass reaches
    `top_p`, and at least one. Gradients flow through kept entries, the kept set being constant.

    Shapes: [N, V] -> [N, V]. `top_k` 0 and `top_p` 1.0 are off.
    Source: order and boundary cases of transformers' generation processors.
    Raises: ValueError for a value outside its range.
    """
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} is not above 0")
    if top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"top_k {top_k} is below 0, or top_p {top_p} outside (0, 1]")
    x = logits / temperature
    if top_k > 0:
        smallest_kept = x.topk(min(top_k, x.shape[-1]), dim=-1).values[..., -1:]
        x = x.masked_fill(x < smallest_kept, -torch.inf)
    if top_p < 1:
        ascending, order = x.detach().sort(dim=-1)
        removed = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        removed[..., -1] = False
        x = x.masked_fill(removed.scatter(-1, order, removed), -torch.inf)
    return x
