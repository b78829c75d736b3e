"""AdamW as Burnish uses it: which weights decay, how gradients are clipped, what it costs in memory.

Leaves out the learning rate's course (`schedule`) and sharded states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from burnish.core.errors import ConfigError, NonFiniteError

NamedParameters = list[tuple[str, nn.Parameter]]


def trainable_parameters(model: nn.Module) -> NamedParameters:
    """Parameters that require a gradient, with their names; tied ones once.

    Raises: ConfigError where there are none, or one is narrower than float32: AdamW's steps of some 1e-3 of a
    weight would be lost in a bfloat16 weight's rounding (2^-9), and its moments with them.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ConfigError(
            "no parameter of the model is trainable",
            where=type(model).__name__,
            fix="unfreeze weights or add LoRA",
        )
    for name, parameter in named:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"trainable parameter {name} is {parameter.dtype}, too narrow for optimiser steps",
                where=name,
                fix="load the model in float32 (autocast may still compute in bfloat16), or add LoRA",
            )
    return named


def make_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two groups named "decay" and "no_decay".

    Weights with two or more dimensions decay; norms, biases and embeddings (also where tied to the output
    layer) do not. States are float32, float64 for float64 weights. Groups remember parameter names.

    Source: Loshchilov & Hutter, arXiv:1711.05101; `betas` and `eps` are that algorithm's usual values.
    Raises: ConfigError as `trainable_parameters`, and for a rate or decay below 0.
    """
    if not 0 <= lr < math.inf or not 0 <= weight_decay < math.inf:
        raise ConfigError(
            f"lr={lr}, weight_decay={weight_decay}: neither may be below 0",
            where="lr",
            fix="set both to 0 or more",
        )
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decay: NamedParameters = []
    no_decay: NamedParameters = []
    for name, parameter in trainable_parameters(model):
        decays = parameter.ndim >= 2 and id(parameter) not in embeddings
        (decay if decays else no_decay).append((name, parameter))
    groups = [
        {"params": named, "weight_decay": rate, "name": group}
        for group, named, rate in (("decay", decay, weight_decay), ("no_decay", no_decay, 0.0))
        if named
    ]
    # One pass over memory instead of one per operation; the same on CPU and CUDA, and deterministic on both.
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The same learning rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_grad_norm(named: Iterable[tuple[str, nn.Parameter]], max_norm: float | None) -> float:
    """Scale gradients so that their global norm is at most `max_norm` (None: measure only).

    Returns the norm before clipping. Norms of tensors are added in float64; a gradient within the bound is
    not touched, not even by rounding.
    Raises: NonFiniteError with the name of the first parameter whose gradient holds a NaN or an infinity;
    ValueError where no parameter has a gradient.
    """
    grads = [(name, p.grad) for name, p in named if p.grad is not None]
    if not grads:
        raise ValueError("no parameter has a gradient: call backward before clipping")
    norms = torch.stack([norm.double() for norm in torch._foreach_norm([grad for _, grad in grads])])
    total = float(norms.square().sum().sqrt())
    if not math.isfinite(total):
        raise _not_finite(grads, norms)
    if max_norm is not None and total > max_norm:
        torch._foreach_mul_([grad for _, grad in grads], max_norm / total)
    return total


def _not_finite(grads: list[tuple[str, Tensor]], norms: Tensor) -> NonFiniteError:
    bad = [(name, grad) for (name, grad), norm in zip(grads, norms, strict=True) if not torch.isfinite(norm)]
    name, grad = bad[0]
    count = int((~torch.isfinite(grad)).sum())
    held = f"{count} of {grad.numel()} entries" if count else "finite entries whose norm overflows"
    return NonFiniteError(
        f"the gradient of {name} is not finite ({held}; {len(bad)} of {len(grads)} tensors affected)",
        where=name,
        fix="resume from the last checkpoint with a lower lr, and look at the rows of this step",
    )


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """Bytes that training holds besides activations."""

    weights_bytes: int
    gradients_bytes: int
    moments_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.gradients_bytes + self.moments_bytes


def optimizer_memory(model: nn.Module) -> OptimizerMemory:
    """Weights, gradients and AdamW's two moments of this model, tied weights once.

    16 bytes a trainable float32 parameter; a frozen one costs its weight only.
    """
    parameters = list(model.parameters())
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    return OptimizerMemory(sum(p.numel() * p.element_size() for p in parameters), trained, 2 * trained)
