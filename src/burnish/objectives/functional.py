"""Log-probabilities and entropies of tokens, without keeping a second [N, V] tensor.

Both autograd functions walk over the tokens in chunks, reduce in float32 (float64 for float64 input) and keep
one number a token for the backward pass. Leaves out kernels for one device: this is plain PyTorch.

Legend: N tokens, U rows of logits (N, or fewer where tokens share one), V vocabulary, D hidden size, c rows of a
chunk, n tokens of a chunk.

    x     = logits / temperature
    logp  = x[id] - logsumexp(x)            d logp / d x_j = 1{j = id} - p_j
    H     = -sum_j p_j log p_j              d H / d x_j    = -p_j (log p_j + H)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.models.filters import filter_logits

# Measured on one CPU core, forward and backward of 512 tokens, hidden 576, vocabulary 49,152, fp32: chunks of
# 64, 128, 256, 512 take 2.2, 1.9, 2.3, 2.6 s (log_softmax of all logits 2.8 s), one run on a busy machine.
CHUNK_TOKENS = 128


def token_logp(logits: Tensor, ids: Tensor, temperature: float = 1.0, *, chunk_tokens: int = CHUNK_TOKENS) -> Tensor:
    """Log-probability of each id under softmax(logits / temperature).

    Shapes: `logits` [N, V], `ids` int64 [N] -> [N], float32 (float64 for float64 logits).
    Raises: ValueError for a temperature that is not above 0 (greedy has no density), or wrong shapes.
    """
    _check(logits, ids, temperature)
    logp: Tensor = _apply(_TokenLogp, logits, ids, temperature, chunk_tokens, False)[0]
    return logp


def token_logp_and_entropy(
    logits: Tensor, ids: Tensor, temperature: float = 1.0, *, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """As `token_logp`, and the entropy of each row's distribution in nats. Shapes: -> [N], [N]."""
    _check(logits, ids, temperature)
    logp, entropy = _apply(_TokenLogp, logits, ids, temperature, chunk_tokens, True)
    return logp, entropy


def linear_token_logp(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    *,
    rows: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy under softmax(hidden @ weight.T / temperature), all logits never in memory.

    The backward pass computes each chunk's logits again: one extra product of this layer's size. The product
    runs in the dtype of `hidden`, outside autocast.

    Shapes: `hidden` [U, D], `weight` [V, D], `ids` int64 [N] -> [N], [N]. `rows` int64 [N]: the hidden state
    that predicts each token, where several tokens share one; without it U = N, in order.
    Raises: ValueError as `token_logp`.
    """
    if rows is not None and (rows.shape != ids.shape or hidden.ndim != 2):
        raise ValueError(f"expected rows [N] and ids [N], found {tuple(rows.shape)} and {tuple(ids.shape)}")
    _check(hidden if rows is None else hidden[rows[:0]], ids if rows is None else ids[:0], temperature)
    rows = torch.arange(len(ids), device=ids.device) if rows is None else rows
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[1]:
        raise ValueError(f"weight is {tuple(weight.shape)}, not [V, {hidden.shape[1]}]")
    logp, entropy = _apply(_LinearTokenLogp, hidden, weight, ids, rows, temperature, chunk_tokens)
    return logp, entropy[rows]


def filtered_logp(logits: Tensor, ids: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Log-probability of each id under the filtered distribution (`models.filters`); -inf for what it removes.

    The ratio of a policy that samples with top-k or top-p needs this one on both sides.

    Shapes: `logits` [N, V], `ids` int64 [N] -> [N].
    """
    exact = logits.to(_accumulator(logits))
    return token_logp(filter_logits(exact, temperature, top_k, top_p), ids)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> tuple[Tensor, Tensor]:
    outputs: tuple[Tensor, Tensor] = function.apply(*arguments)
    return outputs


def _check(rows: Tensor, ids: Tensor, temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} is not above 0: greedy sampling has no log-probability")
    if rows.ndim != 2 or ids.shape != rows.shape[:1]:
        found = f"{tuple(rows.shape)} and {tuple(ids.shape)}"
        raise ValueError(f"expected rows [N, .] and ids [N], found {found}")


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _chunks(num_tokens: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, num_tokens, chunk_tokens):
        yield slice(start, min(start + chunk_tokens, num_tokens))


def _row_chunks(rows: Tensor, num_rows: int, chunk_tokens: int) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of rows, each with the indices of its tokens."""
    order = torch.argsort(rows, stable=True)
    ordered = rows[order].contiguous()
    for c in _chunks(num_rows, chunk_tokens):
        first, end = torch.searchsorted(ordered, torch.tensor([c.start, c.stop], device=rows.device)).tolist()
        yield c, order[first:end]


def _rows_forward(x: Tensor, rows: Tensor, ids: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(log-sum-exp [c], logp of tokens (rows, ids) [n], entropy [c]) of scaled logits `x` [c, V], overwritten."""
    lse = torch.logsumexp(x, dim=-1)
    logp = x[rows, ids] - lse[rows]
    if not with_entropy:
        return lse, logp, None
    x -= lse[:, None]
    entropy = torch.special.entr(x.exp_()).sum(dim=-1)  # entr(0) = 0, so filtered entries (-inf) add nothing
    return lse, logp, entropy


def _rows_backward(
    x: Tensor,
    rows: Tensor,
    ids: Tensor,
    lse: Tensor,
    grad_logp: Tensor,
    entropy: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """Gradient [c, V] with respect to scaled logits `x`, which is overwritten.

    `grad_logp` [n] belongs to tokens (rows, ids); `lse`, `entropy` and `grad_entropy` [c] to rows of `x`.
    """
    x -= lse[:, None]
    total = torch.zeros_like(lse).index_add_(0, rows, grad_logp)
    if entropy is None or grad_entropy is None:
        grad = x.exp_().mul_(-total[:, None])
    else:
        p = x.exp()
        # Where a filter removed the entry, log p is -inf and p is 0: so is the gradient, not 0 * inf.
        log_p = x.masked_fill_(p == 0, 0.0)
        grad = log_p.add_(entropy[:, None]).mul_(-grad_entropy[:, None]).sub_(total[:, None]).mul_(p)
    return grad.index_put_((rows, ids), grad_logp, accumulate=True)


def _cut(entropy: Tensor | None, grad: Tensor | None, c: slice) -> tuple[Tensor | None, Tensor | None]:
    """Entropy and its gradient for a chunk, or nothing where nothing depends on the entropy."""
    return (None, None) if entropy is None or grad is None else (entropy[c], grad[c])


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, temperature: float, chunk_tokens: int, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        dtype = _accumulator(logits)
        lse = torch.empty(len(ids), dtype=dtype, device=logits.device)
        logp = torch.empty_like(lse)
        entropy = torch.empty_like(lse) if with_entropy else None
        for c in _chunks(len(ids), chunk_tokens):
            x = logits[c].to(dtype, copy=with_entropy or temperature != 1.0)
            if temperature != 1.0:
                x /= temperature
            every = torch.arange(len(x), device=x.device)
            lse[c], logp[c], rows_entropy = _rows_forward(x, every, ids[c], with_entropy)
            if entropy is not None and rows_entropy is not None:
                entropy[c] = rows_entropy
        ctx.save_for_backward(logits, ids, lse, entropy)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, ids, lse, entropy = ctx.saved_tensors
        grad_logp = torch.zeros_like(lse) if grad_logp is None else grad_logp
        grad = torch.empty_like(logits)
        for c in _chunks(len(ids), ctx.chunk_tokens):
            x = logits[c].to(lse.dtype, copy=True).div_(ctx.temperature)
            every = torch.arange(len(x), device=x.device)
            rows = _rows_backward(x, every, ids[c], lse[c], grad_logp[c], *_cut(entropy, grad_entropy, c))
            grad[c] = rows.div_(ctx.temperature)
        return grad, None, None, None, None


class _LinearTokenLogp(torch.autograd.Function):
    """Tokens are taken in the order of their rows, so that each chunk of rows has its tokens in one piece."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, rows: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        dtype = _accumulator(hidden)
        lse = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        logp, entropy = torch.empty(len(ids), dtype=dtype, device=hidden.device), torch.empty_like(lse)
        with torch.autocast(hidden.device.type, enabled=False):
            matrix = weight.to(hidden.dtype)
            for c, tokens in _row_chunks(rows, len(hidden), chunk_tokens):
                x = (hidden[c] @ matrix.T).to(dtype).div_(temperature)
                lse[c], logp[tokens], rows_entropy = _rows_forward(x, rows[tokens] - c.start, ids[tokens], True)
                assert rows_entropy is not None
                entropy[c] = rows_entropy
        ctx.save_for_backward(hidden, weight, ids, rows, lse, entropy)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, rows, lse, entropy = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_logp = torch.zeros(len(ids), dtype=lse.dtype, device=lse.device) if grad_logp is None else grad_logp
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # Accumulated over chunks, so in float32 even where the weight is narrower.
        grad_weight = torch.zeros_like(weight, dtype=lse.dtype) if needs_weight else None
        with torch.autocast(hidden.device.type, enabled=False):
            matrix = weight.to(hidden.dtype)
            for c, tokens in _row_chunks(rows, len(hidden), ctx.chunk_tokens):
                x = (hidden[c] @ matrix.T).to(lse.dtype).div_(ctx.temperature)
                at, cut = rows[tokens] - c.start, _cut(entropy, grad_entropy, c)
                grad = _rows_backward(x, at, ids[tokens], lse[c], grad_logp[tokens], *cut)
                grad = grad.div_(ctx.temperature).to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(grad, matrix, out=grad_hidden[c])
                if grad_weight is not None:
                    if grad_weight.dtype == grad.dtype:
                        grad_weight.addmm_(grad.T, hidden[c])
                    else:
                        grad_weight += grad.T @ hidden[c]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None
