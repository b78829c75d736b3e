"""Keeps the best point of a stage by its pass rate on the development set.

The best weights stay in memory (they are the size of the model once); a tie keeps the earlier point, which
trained less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnish.models.policy import Policy
from burnish.train.context import Context


@dataclass(slots=True)
class BestKeeper:
    """Evaluations of one stage. `points` are (step, pass rate)."""

    context: Context
    policy: Policy
    stage: str
    points: list[tuple[int, float]] = field(default_factory=list)
    _best: dict[str, Tensor] = field(default_factory=dict)

    @property
    def best(self) -> tuple[int, float] | None:
        """The best (step, pass rate), the earliest among equals."""
        return max(self.points, key=lambda point: (point[1], -point[0]), default=None)

    async def consider(self, step: int, *, patience: int | None = None) -> bool:
        """Evaluate now; True where `patience` evaluations in a row brought nothing better."""
        before = self.best
        rate = await self.context.curve_point(self.policy, stage=self.stage, step=step)
        self.points.append((step, rate))
        if before is None or rate > before[1]:
            with torch.no_grad():
                self._best = {name: p.detach().clone() for name, p in self.policy.trainable()}
        best = self.best
        assert best is not None
        since = sum(1 for s, _ in self.points if s > best[0])
        return patience is not None and since >= patience

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best weights back into the policy."""
        for name, parameter in self.policy.trainable():
            if name in self._best:
                parameter.copy_(self._best[name])
        self._best = {}
