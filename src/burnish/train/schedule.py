"""The learning rate of each optimiser step, a pure function of the step.

Nothing is kept between steps, so a resumed run needs no scheduler state. Leaves out restarts and cycles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from burnish.core.errors import ConfigError

Decay = Literal["constant", "linear", "cosine"]
_DECAYS = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up to `lr`, then `decay` to `final_frac * lr` at `total_steps`.

    With s steps done (0 for the first step), w warm-up steps and t steps in all:
    the warm-up takes lr (s + 1) / w, so the first step already moves; afterwards, with u = (s - w) / (t - w),
    the factor falls from 1 to `final_frac` by 1 - u (linear) or (1 + cos(pi u)) / 2 (cosine).

    `final_frac` in [0, 1]; the last step lies just above it, and "constant" does not read it.
    Raises: ConfigError for values that make no schedule.
    """

    lr: float
    total_steps: int
    warmup_steps: int = 0
    decay: Decay = "constant"
    final_frac: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise _refuse("lr", f"lr={self.lr} is not a number above 0", "set lr above 0, for example to 1e-5")
        if self.total_steps < 1:
            raise _refuse("steps", f"{self.total_steps} steps leave nothing to train", "set at least 1 step")
        if not 0 <= self.warmup_steps <= self.total_steps:
            raise _refuse(
                "warmup_steps",
                f"warmup_steps={self.warmup_steps} is not within the {self.total_steps} steps of the stage",
                f"set warmup_steps to between 0 and {self.total_steps}",
            )
        if self.decay not in _DECAYS:
            raise _refuse("schedule", f"schedule={self.decay!r} is unknown", f"set it to {', '.join(_DECAYS)}")
        if not 0 <= self.final_frac <= 1:
            raise _refuse("final_frac", f"final_frac={self.final_frac} is outside [0, 1]", "set it between 0 and 1")

    def at(self, step: int) -> float:
        """The learning rate of the step after `step` finished ones.

        Raises: ValueError outside 0 .. total_steps - 1.
        """
        if not 0 <= step < self.total_steps:
            raise ValueError(f"step {step} is outside the schedule's {self.total_steps} steps")
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return self.lr
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        left = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.lr * (self.final_frac + (1 - self.final_frac) * left)


def _refuse(key: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, where=key, fix=fix)
