"""Weight decay by kind of weight, clipping, memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from burnish.core.errors import ConfigError, NonFiniteError
from burnish.train.optim import clip_grad_norm, make_adamw, optimizer_memory, set_lr, trainable_parameters


class Tiny(nn.Module):
    """Embedding tied to the head, a norm, a linear with bias: one of each kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(self.norm(self.embed(ids))))  # type: ignore[no-any-return]


def backward(model: nn.Module) -> None:
    model(torch.arange(5)).square().sum().backward()


def test_only_matrices_that_are_no_embeddings_decay() -> None:
    optimizer = make_adamw(Tiny(), lr=1e-3, weight_decay=0.1)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert groups["decay"]["param_names"] == ["linear.weight"]
    assert groups["decay"]["weight_decay"] == 0.1
    assert groups["no_decay"]["param_names"] == ["embed.weight", "norm.weight", "norm.bias", "linear.bias"]
    assert groups["no_decay"]["weight_decay"] == 0


def test_decay_shrinks_by_its_rate_and_nothing_else_moves_without_gradient() -> None:
    model = Tiny()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_adamw(model, lr=0.1, weight_decay=0.5)
    for _, parameter in trainable_parameters(model):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        want = before[name] * (1 - 0.1 * 0.5) if name == "linear.weight" else before[name]
        torch.testing.assert_close(parameter.detach(), want, rtol=1e-6, atol=0)


def test_first_step_closed_form_and_moments_are_float32() -> None:
    model = Tiny()
    before = model.linear.weight.detach().clone()
    optimizer = make_adamw(model, lr=0.1)
    backward(model)
    set_lr(optimizer, 0.01)
    optimizer.step()
    grad = model.linear.weight.grad
    assert grad is not None
    # bias-corrected first step: lr * g / (|g| + eps)
    torch.testing.assert_close(model.linear.weight.detach(), before - 0.01 * grad / (grad.abs() + 1e-8))
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.float32}


def test_steps_repeat_bit_for_bit() -> None:
    first, second = Tiny(), Tiny()
    for model in (first, second):
        optimizer = make_adamw(model, lr=1e-2, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            clip_grad_norm(trainable_parameters(model), 0.5)
            optimizer.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_clipping_scales_to_the_bound_and_leaves_small_gradients_alone() -> None:
    model = Tiny()
    backward(model)
    named = trainable_parameters(model)
    raw = [copy.deepcopy(p.grad) for _, p in named]
    norm = torch.cat([g.flatten() for g in raw if g is not None]).norm().item()
    assert clip_grad_norm(named, None) == pytest.approx(norm, rel=1e-6)
    assert clip_grad_norm(named, 2 * norm) == pytest.approx(norm, rel=1e-6)
    for (_, parameter), before in zip(named, raw, strict=True):
        assert parameter.grad is not None
        assert before is not None
        assert torch.equal(parameter.grad, before)
    assert clip_grad_norm(named, norm / 4) == pytest.approx(norm, rel=1e-6)
    assert clip_grad_norm(named, None) == pytest.approx(norm / 4, rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_named_and_not_applied(value: float) -> None:
    model = Tiny()
    backward(model)
    assert model.linear.weight.grad is not None
    model.linear.weight.grad[1, 2] = value
    untouched = copy.deepcopy(model.embed.weight.grad)
    with pytest.raises(NonFiniteError, match=r"linear\.weight is not finite \(1 of 16 entries") as caught:
        clip_grad_norm(trainable_parameters(model), 1.0)
    assert caught.value.where == "linear.weight"
    assert untouched is not None
    assert torch.equal(model.embed.weight.grad, untouched)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter"):
        make_adamw(Tiny().requires_grad_(False), lr=1e-3)
    with pytest.raises(ConfigError, match=r"embed\.weight is torch\.bfloat16"):
        make_adamw(Tiny().bfloat16(), lr=1e-3)
    with pytest.raises(ConfigError, match="neither may be below 0"):
        make_adamw(Tiny(), lr=1e-3, weight_decay=-1)
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        clip_grad_norm(trainable_parameters(Tiny()), 1.0)


def test_memory_is_sixteen_bytes_a_trainable_parameter() -> None:
    model = Tiny()
    count = sum(p.numel() for p in model.parameters())
    assert optimizer_memory(model).total_bytes == 16 * count
    model.embed.requires_grad_(False)
    frozen = model.embed.weight.numel()
    assert optimizer_memory(model).total_bytes == 16 * (count - frozen) + 4 * frozen
    backward(model)
    optimizer = make_adamw(model, lr=1e-3)
    optimizer.step()
    held = sum(s[key].nbytes for s in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))
    assert optimizer_memory(model).moments_bytes == held
