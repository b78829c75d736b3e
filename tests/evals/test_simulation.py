"""The gate on simulated models whose truth is known: 200 trials a truth, at 200 tasks in each of two domains.

The long form (2,000 trials, two sizes, more truths) is benchmarks/gate_trials, whose result is committed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from burnish.core.types import Decision
from burnish.evals.gate import GateConfig
from burnish.evals.stats import cluster_bootstrap

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gate_trials"))

from trials import World, cluster_sizes, draw, population_mean, run_trial, shift_for

CONFIG = GateConfig(resamples=1000)
TRIALS = 200


def decisions(points: float, few_shot_points: float = -10.0, **harm: float) -> Counter[Decision]:
    found = (run_trial(World(), points, few_shot_points, harm, CONFIG, 77, trial).decision for trial in range(TRIALS))
    return Counter(found)


def test_an_equal_model_is_promoted_in_at_most_5_percent() -> None:
    assert decisions(0.0)[Decision.PROMOTE] <= 0.05 * TRIALS


def test_power_at_3_and_6_points() -> None:
    """The bounds are three standard errors around the rates of the long form."""
    at_3, at_6 = decisions(3.0)[Decision.PROMOTE] / TRIALS, decisions(6.0)[Decision.PROMOTE] / TRIALS
    assert at_3 == pytest.approx(0.253, abs=0.092)
    assert at_6 == pytest.approx(0.739, abs=0.093)


def test_a_checkpoint_made_worse_is_refused() -> None:
    found = decisions(-6.0)
    assert found[Decision.PROMOTE] == 0
    assert found[Decision.REJECT] >= 0.5 * TRIALS


def test_a_gain_that_breaks_a_guard_is_refused() -> None:
    found = decisions(15.0, instruction_format=0.6)
    assert found[Decision.PROMOTE] == 0
    assert found[Decision.REJECT] >= 0.8 * TRIALS


def test_intervals_cover_the_truth() -> None:
    """95 % wanted; 600 trials leave a standard error of 0.9 points."""
    world, covered = World(domains=1, clusters_per_domain=30), 0
    for trial in range(600):
        seen = draw(world, {"candidate": 4.0}, 78, trial)
        found = cluster_bootstrap(
            seen.passes["candidate"] - seen.passes["parent"],
            [str(c) for c in seen.clusters],
            resamples=1000,
            seed=trial,
        )
        covered += found.low <= 0.04 <= found.high
    assert covered / 600 == pytest.approx(0.95, abs=0.03)


def test_the_simulated_world_is_what_it_says() -> None:
    world = World()
    assert sum(world.sizes) == 200
    assert len(set(world.sizes)) > 5
    assert min(cluster_sizes(40, 32, 1.0)) >= 1
    for points in (-10.0, 3.0):
        gain = population_mean(world, shift_for(world, points), world.change_sd) - population_mean(world, 0, 0)
        assert gain == pytest.approx(points / 100, abs=1e-9)
    differences = [
        float((seen.passes["candidate"] - seen.passes["parent"]).mean())
        for seen in (draw(world, {"candidate": 3.0}, 79, trial) for trial in range(500))
    ]
    assert np.mean(differences) == pytest.approx(0.03, abs=4 * np.std(differences) / np.sqrt(500))
