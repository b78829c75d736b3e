"""Log-probabilities and entropies against closed forms, autograd and transformers' sampler."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

from burnish.models.filters import filter_logits
from burnish.objectives.functional import (
    filtered_logp,
    linear_token_logp,
    token_logp,
    token_logp_and_entropy,
)

F64 = torch.float64


def draw(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) * scale


def ids_of(count: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
def test_logp_and_entropy_equal_log_softmax_with_gradients(temperature: float, chunk_tokens: int) -> None:
    logits, ids, mix = draw(11, 7).requires_grad_(), ids_of(11, 7), draw(2, 11, seed=3)
    logp, entropy = token_logp_and_entropy(logits, ids, temperature, chunk_tokens=chunk_tokens)
    (logp @ mix[0] + entropy @ mix[1]).backward()
    found = logits.grad
    logits.grad = None
    table = (logits / temperature).log_softmax(-1)
    want_logp, want_entropy = table[range(11), ids], -(table.exp() * table).sum(-1)
    (want_logp @ mix[0] + want_entropy @ mix[1]).backward()
    torch.testing.assert_close(logp, want_logp, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropy, want_entropy, rtol=0, atol=1e-13)
    torch.testing.assert_close(found, logits.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(
        token_logp(logits, ids, temperature, chunk_tokens=chunk_tokens), logp, rtol=0, atol=1e-13
    )


def test_gradcheck_in_float64() -> None:
    logits, ids = draw(5, 6).requires_grad_(), ids_of(5, 6)
    assert torch.autograd.gradcheck(lambda x: token_logp(x, ids, 0.8, chunk_tokens=2), logits)
    assert torch.autograd.gradcheck(lambda x: token_logp_and_entropy(x, ids, 0.8, chunk_tokens=2), logits)
    hidden, weight = draw(5, 3, seed=1).requires_grad_(), draw(6, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: linear_token_logp(h, w, ids, 1.3, chunk_tokens=2), (hidden, weight))


def test_linear_equals_logits_first_and_spares_what_needs_no_gradient() -> None:
    hidden, weight, ids = draw(9, 4).requires_grad_(), draw(13, 4, seed=2).requires_grad_(), ids_of(9, 13)
    logp, entropy = linear_token_logp(hidden, weight, ids, 0.9, chunk_tokens=4)
    want_logp, want_entropy = token_logp_and_entropy(hidden @ weight.T, ids, 0.9)
    torch.testing.assert_close(logp, want_logp, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropy, want_entropy, rtol=0, atol=1e-13)
    found = torch.autograd.grad(logp.sum() - 0.1 * entropy.sum(), (hidden, weight))
    want = torch.autograd.grad(want_logp.sum() - 0.1 * want_entropy.sum(), (hidden, weight))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    frozen = weight.detach()
    alone = torch.autograd.grad(linear_token_logp(hidden, frozen, ids, 0.9)[0].sum(), hidden)
    torch.testing.assert_close(
        alone, torch.autograd.grad(token_logp(hidden @ frozen.T, ids, 0.9).sum(), hidden), rtol=0, atol=1e-13
    )


def test_tokens_that_share_a_hidden_state_are_as_if_each_had_its_own() -> None:
    hidden, weight, ids = draw(5, 4).requires_grad_(), draw(13, 4, seed=2).requires_grad_(), ids_of(9, 13)
    rows, mix = torch.tensor([3, 0, 3, 1, 0, 3, 4, 4, 1]), draw(2, 9, seed=3)  # row 2 predicts nothing
    ids[4] = ids[1]  # the same token of the same row twice
    logp, entropy = linear_token_logp(hidden, weight, ids, 0.9, rows=rows, chunk_tokens=2)
    want_logp, want_entropy = linear_token_logp(hidden[rows], weight, ids, 0.9)
    torch.testing.assert_close((logp, entropy), (want_logp, want_entropy), rtol=0, atol=1e-13)
    found = torch.autograd.grad(logp @ mix[0] + entropy @ mix[1], (hidden, weight))
    want = torch.autograd.grad(want_logp @ mix[0] + want_entropy @ mix[1], (hidden, weight))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="rows"):
        linear_token_logp(hidden, weight, ids, rows=rows[:3])


def test_linear_never_saves_a_tensor_of_all_logits() -> None:
    hidden, weight, ids = draw(64, 4).requires_grad_(), draw(101, 4, seed=2).requires_grad_(), ids_of(64, 101)
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        linear_token_logp(hidden, weight, ids, chunk_tokens=8)
    assert max(saved) == weight.numel() < 64 * 101


def test_half_precision_logits_are_reduced_in_float32() -> None:
    logits = (draw(6, 500) * 3).to(torch.bfloat16).requires_grad_()
    ids = ids_of(6, 500)
    logp, entropy = token_logp_and_entropy(logits, ids)
    table = logits.detach().double().log_softmax(-1)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), table[range(6), ids], rtol=0, atol=2e-6)
    logp.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_large_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4]], dtype=torch.float32, requires_grad=True)
    logp, entropy = token_logp_and_entropy(logits, torch.tensor([2]))
    (logp + entropy).sum().backward()
    assert logp.item() == -2e4
    assert entropy.item() == 0
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_entropy_closed_forms() -> None:
    uniform = torch.zeros(1, 49_152)
    _, entropy = token_logp_and_entropy(uniform, torch.tensor([7]))
    assert entropy.item() == pytest.approx(math.log(49_152), rel=1e-6)
    p = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=F64)
    _, entropy = token_logp_and_entropy(p.log(), torch.tensor([0]))
    assert entropy.item() == pytest.approx(1.75 * math.log(2), rel=1e-14)


def test_filtered_entries_give_finite_entropy_and_gradient() -> None:
    logits = torch.tensor([[1.0, 0.5, -torch.inf, 0.0]], dtype=F64, requires_grad=True)
    logp, entropy = token_logp_and_entropy(logits, torch.tensor([1]))
    (logp + entropy).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] == 0
    kept = torch.tensor([[1.0, 0.5, 0.0]], dtype=F64)
    assert entropy.item() == pytest.approx(token_logp_and_entropy(kept, torch.tensor([1]))[1].item(), rel=1e-14)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 5, 1.0), (0.7, 0, 0.8), (1.4, 6, 0.9), (0.3, 1, 0.01)]
)
def test_filter_equals_transformers(temperature: float, top_k: int, top_p: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.generation import logits_process as hf
    logits = draw(200, 23)
    scores = hf.TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1.0 else logits
    if top_k:
        scores = hf.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = hf.TopPLogitsWarper(top_p)(None, scores)
    assert torch.equal(filter_logits(logits, temperature, top_k, top_p), scores)
    ids = ids_of(200, 23)
    torch.testing.assert_close(
        filtered_logp(logits, ids, temperature, top_k, top_p),
        scores.log_softmax(-1)[range(200), ids],
        rtol=0,
        atol=1e-13,
    )


def test_filtered_logp_is_a_distribution_and_unfiltered_at_the_defaults() -> None:
    logits, every = draw(1, 30), torch.arange(30)
    rows = logits.expand(30, 30)
    assert filtered_logp(rows, every, 0.8, 10, 0.9).exp().sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(filtered_logp(rows, every, 0.8), token_logp(rows, every, 0.8), rtol=0, atol=1e-14)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_density_is_refused(temperature: float) -> None:
    for function in (token_logp, token_logp_and_entropy, filtered_logp):
        with pytest.raises(ValueError, match="temperature"):
            function(draw(2, 3), ids_of(2, 3), temperature)


def test_wrong_shapes_and_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        token_logp(draw(2, 3), ids_of(3, 3))
    with pytest.raises(ValueError, match="weight"):
        linear_token_logp(draw(2, 3), draw(5, 4), ids_of(2, 5))
    with pytest.raises(ValueError, match="top_p"):
        filter_logits(draw(2, 3), top_p=0.0)
