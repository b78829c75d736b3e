"""Where a stage stands, kept on disk: its evaluations, its best weights, and the state to resume from.

    checkpoints/<stage>/best/     weights of the best point on the development set so far
    checkpoints/<stage>/state/    weights, optimiser and counters of the last saved step

Both are written by `train.checkpoint`, so a kill at any point leaves a whole one. Best weights stay until a later
state is saved, so that the best of the points that a resume goes back to is there. A tie between two points
keeps the earlier, which trained less.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from burnish.core.errors import IntegrityError
from burnish.observe import events
from burnish.train.backend import LocalBackend
from burnish.train.checkpoint import drop_after, latest_checkpoint, load_checkpoint, save_checkpoint
from burnish.train.context import Context

SAVE_EVERY_S = 300.0
"""Seconds between saved states: a 135M model's state is 1.6 GB and takes some seconds to write and hash, so
this costs 2 % at most and loses five minutes at most."""


@dataclass(slots=True)
class Progression:
    """One stage's evaluations and saved states. `points` are (step, pass rate); `elapsed_s` survives a resume."""

    context: Context
    backend: LocalBackend
    stage: str
    points: list[tuple[int, float]] = field(default_factory=list)
    _before_s: float = 0.0
    _bests_since_save: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _saved_s: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """The stage's folder under the run's checkpoints."""
        return self.context.folder.checkpoints / self.stage

    @property
    def elapsed_s(self) -> float:
        """Wall time of the stage, over all processes that worked on it up to their last saved state."""
        return self._before_s + time.monotonic() - self._began_s

    @property
    def best(self) -> tuple[int, float] | None:
        """The best (step, pass rate), the earliest among equals."""
        return max(self.points, key=lambda point: (point[1], -point[0]), default=None)

    def resume(self) -> int:
        """Put back the last saved state, if there is one; returns the number of finished steps.

        Raises: IntegrityError where its bytes changed.
        """
        path = latest_checkpoint(self.folder / "state") if (self.folder / "state").is_dir() else None
        if path is None:
            drop_after(self.folder / "best", -1)
            logged = self.context.folder.read_events().events
            if any(isinstance(event, events.StepMetrics) and event.stage == self.stage for event in logged):
                self.context.emit(events.Resumed(self.stage, 0))  # killed before it saved: its steps are done again
            return 0
        step, trainer = self.backend.load_state(str(path))
        self.points = [(int(s), float(rate)) for s, rate in trainer["points"]]
        self._before_s = float(trainer["elapsed_s"])
        self.context.earlier_s += self._before_s
        drop_after(self.folder / "best", step)
        self.context.emit(events.Resumed(self.stage, step))
        return step

    def save_if_due(self, step: int) -> None:
        """Save the state where the last one is old enough."""
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.save(step)

    def save(self, step: int) -> None:
        """Save weights, optimiser and counters after `step` finished steps."""
        points = [[s, rate] for s, rate in self.points]
        self.backend.save_state(
            str(self.folder / "state"), step=step, trainer={"points": points, "elapsed_s": self.elapsed_s}
        )
        self._saved_s = time.monotonic()
        self._bests_since_save = 0

    async def consider(self, step: int, *, patience: int | None = None) -> bool:
        """Evaluate now; True where `patience` evaluations in a row brought nothing better."""
        before = self.best
        rate = await self.context.curve_point(self.backend.policy, stage=self.stage, step=step)
        self.points.append((step, rate))
        if before is None or rate > before[1]:
            weights = {name: p.detach() for name, p in self.backend.policy.trainable()}
            keep = 2 + self._bests_since_save if (self.folder / "state").is_dir() else 1
            save_checkpoint(self.folder / "best", step, model=weights, optimizer=None, trainer={}, keep=keep)
            self._bests_since_save += 1
        best = self.best
        assert best is not None
        since = sum(1 for s, _ in self.points if s > best[0])
        return patience is not None and since >= patience

    @torch.no_grad()
    def take_best(self) -> None:
        """Put the best weights into the policy, where there were evaluations."""
        if self.best is None:
            return
        path = latest_checkpoint(self.folder / "best")
        found = load_checkpoint(path) if path is not None else None
        if found is None or found.step != self.best[0]:
            raise IntegrityError(
                f"the best point was step {self.best[0]}, kept is {'none' if found is None else f'step {found.step}'}",
                where=str(self.folder / "best"),
                fix="remove the stage's folder and resume: the stage runs again",
            )
        weights = found.model
        for name, parameter in self.backend.policy.trainable():
            parameter.copy_(weights[name])


def clear_stage(folder: Path) -> None:
    """Remove from a finished stage's folder what only a resume needs; the candidate is kept beside it."""
    for name in ("state", "best"):
        shutil.rmtree(folder / name, ignore_errors=True)
