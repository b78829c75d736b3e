"""The best point of a stage survives a kill: what is put back is the best of the points that were put back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from burnish.core.errors import IntegrityError
from burnish.models.policy import Policy
from burnish.observe.events import Resumed, StepMetrics
from burnish.train.backend import LocalBackend
from burnish.train.best import Progression, clear_stage
from conftest import tiny_model


class Development:
    """Stands in for the run: pass rates by step, and the events that were emitted."""

    def __init__(self, folder: Path, rates: dict[int, float]) -> None:
        self.folder = SimpleNamespace(checkpoints=folder, read_events=lambda: SimpleNamespace(events=self.emitted))
        self.rates = rates
        self.earlier_s = 0.0
        self.emitted: list[object] = []

    async def curve_point(self, policy: Policy, *, stage: str, step: int) -> float:
        return self.rates[step]

    def emit(self, event: object) -> None:
        self.emitted.append(event)


def started(folder: Path, rates: dict[int, float]) -> Progression:
    backend = LocalBackend(Policy(tiny_model(), folder), weight_decay=0.0, max_grad_norm=1.0)
    return Progression(cast(Any, Development(folder, rates)), backend, "sft")


@torch.no_grad()
def weigh(progression: Progression, value: float) -> None:
    """Weights that say which step they are of."""
    for _, parameter in progression.backend.policy.trainable():
        parameter.fill_(value)


def weight(progression: Progression) -> float:
    return float(next(iter(progression.backend.policy.trainable()))[1].detach().flatten()[0])


def play(progression: Progression, steps: list[int], *, save: int | None = None) -> None:
    for step in steps:
        weigh(progression, float(step))
        asyncio.run(progression.consider(step))
        if step == save:
            progression.save(step)


def test_the_best_point_is_put_into_the_policy(tmp_path: Path) -> None:
    progression = started(tmp_path, {1: 0.2, 2: 0.6, 3: 0.6, 4: 0.1})
    play(progression, [1, 2, 3, 4])
    progression.take_best()
    assert (progression.best, weight(progression)) == ((2, 0.6), 2.0)


def test_a_kill_after_later_bests_goes_back_to_the_best_before_the_saved_state(tmp_path: Path) -> None:
    first = {1: 0.3, 2: 0.5, 3: 0.6, 4: 0.7, 5: 0.8}
    play(started(tmp_path, first), [1, 2, 3, 4, 5], save=2)
    # The points after the state are sampled again, and are none better now.
    progression = started(tmp_path, {3: 0.4, 4: 0.5, 5: 0.1})
    assert progression.resume() == 2
    assert (progression.points, weight(progression)) == ([(1, 0.3), (2, 0.5)], 2.0)
    assert cast(Any, progression.context).earlier_s > 0
    play(progression, [3, 4, 5])
    progression.take_best()
    assert (progression.best, weight(progression)) == ((2, 0.5), 2.0)


def test_a_best_that_is_made_again_replaces_the_one_before_the_kill(tmp_path: Path) -> None:
    play(started(tmp_path, {1: 0.3, 2: 0.5, 3: 0.6}), [1, 2, 3], save=1)
    progression = started(tmp_path, {2: 0.4, 3: 0.9})
    assert progression.resume() == 1
    play(progression, [2, 3])
    progression.take_best()
    assert (progression.best, weight(progression)) == ((3, 0.9), 3.0)


def test_without_a_saved_state_a_stage_begins_anew(tmp_path: Path) -> None:
    play(started(tmp_path, {0: 0.5, 1: 0.6}), [0, 1])
    progression = started(tmp_path, {0: 0.5, 1: 0.1})
    assert progression.resume() == 0
    play(progression, [0, 1])
    progression.take_best()
    assert weight(progression) == 0.0


def test_weights_of_another_step_are_never_taken_for_the_best(tmp_path: Path) -> None:
    progression = started(tmp_path, {1: 0.5})
    play(progression, [1])
    progression.points.append((2, 0.9))
    with pytest.raises(IntegrityError, match="the best point was step 2, kept is step 1"):
        progression.take_best()
    clear_stage(progression.folder)
    with pytest.raises(IntegrityError, match="kept is none"):
        progression.take_best()
    assert weight(progression) == 1.0


def test_steps_that_were_never_saved_are_said_to_be_done_again(tmp_path: Path) -> None:
    killed = started(tmp_path, {1: 0.5})
    assert killed.resume() == 0
    assert killed.context.emitted == []  # a stage that begins goes on from nothing
    killed.context.emit(StepMetrics("sft", 1, {"loss": 1.0}))
    killed.context.emit(StepMetrics("rl", 1, {"loss": 1.0}))
    assert killed.resume() == 0
    assert killed.context.emitted[-1] == Resumed("sft", 0)
