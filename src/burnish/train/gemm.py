"""How fast matrix products are here, by number format: what decides between float32, bfloat16 and int8.

A CPU may list a format and still have no fast kernel for it, so it is measured. Leaves out what a model makes
of it (`train.machine`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

ROWS, INNER, COLUMNS = 256, 1_024, 1_024
"""A product like those of a small model at 256 tokens: full speed, and short even where it is slow."""

REPEATS = 4


def gemm_rates() -> dict[str, float]:
    """Operations a second, two a multiply-add, in float32, bfloat16 and int8; 0 without a kernel for it."""
    a, b = torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER)
    a16, b16 = a.bfloat16(), b.bfloat16()
    a8, b8 = (torch.randint(-127, 128, x.shape, dtype=torch.int8) for x in (a, b))
    return {
        "float32": _rate(lambda: torch.nn.functional.linear(a, b)),
        "bfloat16": _rate(lambda: torch.nn.functional.linear(a16, b16)),
        "int8": _rate(lambda: torch._int_mm(a8, b8.t())),
    }


def _rate(product: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        try:
            product()
        except RuntimeError:  # this build has no kernel for the format
            return 0.0
        best = min(best, time.perf_counter() - began)
    return 2.0 * ROWS * INNER * COLUMNS / best
