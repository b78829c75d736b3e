"""Which number format is fast here: measured, since what a CPU lists and what its kernels use differ."""

from __future__ import annotations

import time
from typing import Any

import torch

from burnish.core.errors import ConfigError

_ADVANTAGE = 1.3
"""bf16 is chosen where its product is this many times faster: it costs accuracy, so a tie goes to fp32."""


def _seconds(dtype: torch.dtype) -> float:
    a, b = torch.randn(256, 576).to(dtype), torch.randn(1536, 576).to(dtype)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        torch.nn.functional.linear(a, b)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def cast_parameters(model: Any, dtype: torch.dtype) -> Any:
    """The model with its parameters in a dtype and its buffers as they were: rotary frequencies that are rounded
    turn distant positions by whole fractions of a radian. Returns the model."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def choose_dtype(name: str) -> tuple[torch.dtype, bool]:
    """(dtype of sampler weights, whether to train under bf16 autocast) for `auto`, `float32` or `bfloat16`.

    Training weights stay in float32: bf16 has 8 bits of mantissa, and most updates would vanish in it.

    Raises: ConfigError for another name.
    """
    if name == "auto":
        faster = _seconds(torch.float32) / _seconds(torch.bfloat16)
        name = "bfloat16" if faster > _ADVANTAGE else "float32"
    if name == "float32":
        return torch.float32, False
    if name == "bfloat16":
        return torch.bfloat16, True
    raise ConfigError(f"dtype {name!r} is unknown", where="model.dtype", fix="use auto, float32 or bfloat16")
