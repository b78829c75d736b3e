"""Simulated evaluations with a known truth, for measuring what the gate does.

One task has a success probability whose logit is domain mean + cluster effect + task effect. A second model
shifts every logit by a constant and, per cluster, by a random amount of its own (templates that it learned or
forgot), and draws its outcomes independently. The constant is solved so that the two models differ by exactly
the wanted number of points in the population of clusters. So an "equal" model is equal on average and
different in detail: the case in which a gate can be wrong.

Leaves out real models: what is measured here is the decision rule alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from burnish.core.outcomes import Outcome, StopReason
from burnish.core.seeds import derive_seed, generator
from burnish.core.types import Split
from burnish.evals.gate import GateConfig, GateDecision, decide
from burnish.evals.guards import DEFAULT_GUARDS, UNCHANGED_NOISE, GuardResult, guard_result
from burnish.evals.results import SuiteResult, TaskRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """A population of tasks; logit-scale standard deviations.

    The defaults give a pass rate of 0.60, an intra-cluster correlation of 0.11 for passes and 0.036 for
    differences, and 17 % discordant pairs between equal models, chosen before anything was measured. With
    `change_sd` 2.5 differences correlate by 0.15 and 22 % of pairs differ: what the main job's checkpoints show is
    0.11 to 0.20 and 15 to 18 % (docs/lab-notes.md). `change_sd` 0 makes an equal model that keeps every task's
    success probability.
    """

    tasks_per_domain: int = 200
    domains: int = 2
    clusters_per_domain: int = 32
    size_sd: float = 0.6
    mean_logit: float = 1.2
    cluster_sd: float = 2.0
    task_sd: float = 4.0
    change_sd: float = 1.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Cluster sizes of one domain."""
        return cluster_sizes(self.tasks_per_domain, self.clusters_per_domain, self.size_sd)


@cache
def cluster_sizes(tasks: int, clusters: int, size_sd: float) -> tuple[int, ...]:
    """Unequal sizes that sum to `tasks`, by largest remainder over lognormal draws."""
    raw = np.exp(generator(20240, "gate_trials.sizes", tasks, clusters).normal(0.0, size_sd, clusters))
    exact = 1 + raw / raw.sum() * (tasks - clusters)
    sizes = np.floor(exact).astype(int)
    short = tasks - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    return tuple(int(size) for size in sizes)


def _expit(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


@cache
def _nodes(points: int = 61) -> tuple[Floats, Floats]:
    x, w = np.polynomial.hermite_e.hermegauss(points)
    return x, w / w.sum()


def population_mean(world: World, shift: float, change_sd: float) -> float:
    """The pass rate of a model with this shift, by Gauss-Hermite quadrature over the normal logit."""
    x, w = _nodes()
    sd = math.sqrt(world.cluster_sd**2 + world.task_sd**2 + change_sd**2)
    return float(w @ _expit(world.mean_logit + shift + sd * x))


@cache
def shift_for(world: World, points: float) -> float:
    """The logit shift that makes the second model better by `points` percentage points, by bisection."""
    target = population_mean(world, 0.0, 0.0) + points / 100.0
    low, high = -20.0, 20.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = population_mean(world, middle, world.change_sd) < target
        low, high = (middle, high) if below else (low, middle)
    return 0.5 * (low + high)


@dataclass(frozen=True)
class Outcomes:
    """Drawn passes [n] (0 or 1) of several models on the same tasks, with domain and cluster indices [n]."""

    domains: NDArray[np.int64]
    clusters: NDArray[np.int64]
    passes: dict[str, Floats]


def draw(world: World, points: dict[str, float], seed: int, trial: int) -> Outcomes:
    """One trial: a "parent" at the population's rate, and for each name a model better by its `points`."""
    rng = generator(seed, "gate_trials.draw", trial)
    J = world.clusters_per_domain * world.domains
    sizes = np.tile(np.array(world.sizes), world.domains)
    cluster = np.repeat(np.arange(J), sizes)
    n = len(cluster)
    logit = world.mean_logit + world.cluster_sd * rng.normal(size=J)[cluster] + world.task_sd * rng.normal(size=n)
    passes = {"parent": (rng.random(n) < _expit(logit)).astype(float)}
    for name in sorted(points):
        change = shift_for(world, points[name]) + world.change_sd * rng.normal(size=J)[cluster]
        passes[name] = (rng.random(n) < _expit(logit + change)).astype(float)
    return Outcomes(cluster // world.clusters_per_domain, cluster, passes)


@cache
def _record(i: int, domain: int, cluster: int, passed: float) -> TaskRecord:
    return TaskRecord(
        f"{i:05d}",
        f"domain_{domain}",
        f"template_{cluster}",
        (Outcome.PASS if passed else Outcome.FAIL,),
        (passed,),
        (20,),
        (StopReason.STOP_TOKEN,),
        "simulated",
        "1",
    )


def suite_result(seen: Outcomes, name: str, prompt: str = "plain") -> SuiteResult:
    """The evaluation of one simulated model, one greedy sample a task."""
    columns = seen.domains.tolist(), seen.clusters.tolist(), seen.passes[name].tolist()
    records = tuple(_record(i, *row) for i, row in enumerate(zip(*columns, strict=True)))
    return SuiteResult("simulated", Split.GATE, name, prompt, "greedy", records, 20 * len(records), 1.0)


def guards_of(seed: int, trial: int, harm: dict[str, float]) -> list[GuardResult]:
    """The default guards under an equal model that answers differently, each worse by `harm` in its unit."""
    results = []
    for spec, noise in zip(DEFAULT_GUARDS, UNCHANGED_NOISE, strict=True):
        rng = generator(seed, "gate_trials.guard", spec.name, trial)
        hurt = harm.get(spec.name, 0.0)
        change = noise.draw(rng)
        if noise.binary:
            change = np.where(rng.random(noise.num_items) < hurt, -1.0, change)
        else:
            change = change + (hurt if spec.two_sided or not spec.higher_is_better else -hurt)
        items = [str(i) for i in range(noise.num_items)]
        results.append(guard_result(spec, items, [0.0] * noise.num_items, change.tolist()))
    return results


def run_trial(
    world: World,
    points: float,
    few_shot_points: float,
    harm: dict[str, float],
    config: GateConfig,
    seed: int,
    trial: int,
) -> GateDecision:
    """One whole gate: candidate and few-shot base better than the parent by their points."""
    seen = draw(world, {"candidate": points, "few_shot": few_shot_points}, seed, trial)
    return decide(
        suite_result(seen, "candidate"),
        suite_result(seen, "parent"),
        suite_result(seen, "few_shot", "few_shot:simulated"),
        guards_of(seed, trial, harm),
        config,
        derive_seed(seed, "gate_trials.decide", trial),
    )
