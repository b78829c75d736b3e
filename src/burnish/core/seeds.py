"""Random draws from counters, so that they never depend on batching or rescheduling.

Every draw is a pure function of (run seed, purpose, counters). Nothing here keeps state, so a resumed run
needs no random state but its counters.

Source: counter-based generation follows Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; the per-token mixer is SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, fig. 13).
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, SplitMix64's increment
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # SplitMix64's published multipliers
_MIX_2 = np.uint64(0x94D049BB133111EB)


def derive_seed(run_seed: int, purpose: str, *counters: int | str) -> int:
    """A 63-bit seed for (run seed, purpose, counters); equal arguments give equal seeds on every machine."""
    text = "\x1f".join([str(run_seed), purpose, *map(str, counters)])
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(run_seed: int, purpose: str, *counters: int | str) -> np.random.Generator:
    """A NumPy generator (Philox) for these counters."""
    return np.random.Generator(np.random.Philox(derive_seed(run_seed, purpose, *counters)))


def python_random(run_seed: int, purpose: str, *counters: int | str) -> random.Random:
    """A `random.Random` for these counters, for code that picks words and names."""
    return random.Random(derive_seed(run_seed, purpose, *counters))


def token_uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One uniform in [0, 1) for each (request seed, token position).

    Shapes: `seeds` [B], `positions` [B] -> [B]. 53 random bits each, independent of the batch they are
    drawn in.
    """
    with np.errstate(over="ignore"):
        z = seeds + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    mantissa: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64)
    return mantissa * 2.0**-53
