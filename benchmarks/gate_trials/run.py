"""How often the gate promotes, rejects and abstains, by simulation.

    python benchmarks/gate_trials/run.py                    every scenario that result.json lacks
    python benchmarks/gate_trials/run.py --only 'equal'     those whose name contains the text

Writes result.json (after every scenario) and result.md beside this file. Scenarios that another gate was tried
on, with other margins or another decision rule, are begun again. NumPy only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from trials import World, draw, run_trial

from burnish.core.codec import to_plain
from burnish.core.types import Decision
from burnish.evals.gate import GateConfig
from burnish.evals.guards import DEFAULT_GUARDS, UNCHANGED_NOISE, needed_margins, pass_all_rate
from burnish.evals.power import PairedDesign, size_cv
from burnish.evals.stats import intracluster_correlation, student_t_quantile, wilson_interval

HERE = Path(__file__).resolve().parent
SEED = 20_261
ASKED = 200  # the number of trials that the project promises to show; more follow for tight intervals


@dataclass(frozen=True)
class Scenario:
    """What is true in a trial; points are percentage points over the parent."""

    name: str
    points: float
    few_shot_points: float = -10.0
    change_sd: float = 1.0
    harm: dict[str, float] = field(default_factory=dict)
    trials: int = 2000


SCENARIOS = (
    Scenario("equal", 0),
    Scenario("equal, few-shot base equal too", 0, 0),
    Scenario("equal on every task", 0, change_sd=0.0),
    Scenario("3 points better", 3),
    Scenario("6 points better", 6),
    Scenario("10 points better", 10),
    Scenario("6 points better, few-shot base equal to the parent", 6, 0),
    Scenario("6 points better on the parent, 3 worse than the few-shot base", 6, 9, trials=1000),
    Scenario("6 points worse", -6),
    Scenario("15 points worse", -15, trials=1000),
    Scenario("10 points better, format guard 45 points down", 10, harm={"instruction_format": 0.45}, trials=1000),
    Scenario("10 points better, text 0.2 nats/token worse", 10, harm={"held_out_text_nll": 0.2}, trials=1000),
    # Templates gain and lose as in the main job: differences correlate by 0.15 within them (see evals.power).
    Scenario("equal, templates change as in the main job", 0, change_sd=2.5),
    Scenario("3 points better, templates change as in the main job", 3, change_sd=2.5),
    Scenario("6 points better, templates change as in the main job", 6, change_sd=2.5),
)
SIZES = (200, 600)


def run_scenario(scenario: Scenario, tasks: int, config: GateConfig) -> dict[str, Any]:
    """Decision counts over all trials and over the first 200."""
    world = World(tasks_per_domain=tasks, change_sd=scenario.change_sd)
    started = time.perf_counter()
    decisions, beats_parent = [], 0
    for trial in range(scenario.trials):
        found = run_trial(world, scenario.points, scenario.few_shot_points, scenario.harm, config, SEED, trial)
        decisions.append(found.decision)
        beats_parent += found.comparisons[0].finding == "better"
    return {
        "scenario": scenario.name,
        "tasks_per_domain": tasks,
        "trials": scenario.trials,
        "all": _counts(decisions),
        "first_200": _counts(decisions[:ASKED]),
        "beats_parent": beats_parent / scenario.trials,
        "duration_s": round(time.perf_counter() - started, 1),
    }


def _counts(decisions: list[Decision]) -> dict[str, Any]:
    seen = Counter(decisions)
    out: dict[str, Any] = {}
    for decision in Decision:
        interval = wilson_interval(seen[decision], len(decisions))
        out[decision.value] = {"count": seen[decision], "rate": interval.estimate}
        out[decision.value]["interval_95"] = [round(interval.low, 4), round(interval.high, 4)]
    return out


def measure_world(tasks: int, trials: int = 400) -> dict[str, Any]:
    """What the simulated world is like, and the power its closed form predicts."""
    world = World(tasks_per_domain=tasks)
    rows = []
    for trial in range(trials):
        seen = draw(world, {"candidate": 0.0}, SEED + 1, trial)
        diff = seen.passes["candidate"] - seen.passes["parent"]
        labels = [str(c) for c in seen.clusters], [str(d) for d in seen.domains]
        rows.append(
            (
                seen.passes["parent"].mean(),
                (diff != 0).mean(),
                intracluster_correlation(diff, *labels),
                intracluster_correlation(seen.passes["parent"], *labels),
            )
        )
    rate, discordance, icc, icc_pass = (float(x) for x in np.mean(rows, axis=0))
    design = PairedDesign(
        2 * tasks, 2 * world.clusters_per_domain, discordance, max(icc, 0.0), size_cv(world.sizes), strata=2
    )
    return {
        "tasks_per_domain": tasks,
        "domains": world.domains,
        "clusters_per_domain": world.clusters_per_domain,
        "cluster_sizes": list(world.sizes),
        "pass_rate": round(rate, 4),
        "discordance": round(discordance, 4),
        "icc_of_differences": round(icc, 4),
        "icc_of_passes": round(icc_pass, 4),
        "predicted": design.describe(),
        "predicted_power": {str(p): round(design.power(p / 100), 3) for p in (3, 6, 10)},
    }


def measure_guards(trials: int = 2000) -> dict[str, Any]:
    """How often an equal model passes all default guards, the least margins, and the harm found with 80 %."""
    needed = {noise.name: needed_margins(noise, trials=trials, seed=SEED + 2) for noise in UNCHANGED_NOISE}
    margins = {spec.name: spec.margin for spec in DEFAULT_GUARDS}
    each = 0.95 ** (1 / len(needed))
    rows = {}
    for spec, noise in zip(DEFAULT_GUARDS, UNCHANGED_NOISE, strict=True):
        sd = math.sqrt(noise.noise) if noise.binary else noise.noise
        reach = student_t_quantile(0.95, noise.num_items - 1) - 0.8416  # one-sided 5 %; 20 % still hold
        rows[spec.name] = {
            "unit": spec.unit,
            "items": spec.num_items,
            "noise": noise.noise,
            "margin": spec.margin,
            "least_margin": round(float(np.quantile(needed[spec.name], each)), 4),
            "held": round(float((needed[spec.name] < spec.margin).mean()), 4),
            "harm_refused_with_80_percent": round(spec.margin - reach * sd / math.sqrt(noise.num_items), 4),
        }
    return {"trials": trials, "pass_all": pass_all_rate(needed, margins), "guards": rows}


def provenance() -> dict[str, Any]:
    """Machine, versions, commit and command; no host name."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()

    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    return {
        "commit": git("rev-parse", "HEAD"),
        "command": "python benchmarks/gate_trials/run.py",
        "machine": f"{cpu}, {os.cpu_count()} logical cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "seed": SEED,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def markdown(result: dict[str, Any]) -> str:
    """result.md from result.json."""
    p = result["provenance"]
    lines = [
        "# Gate trials",
        "",
        f"`{p['command']}` at commit {p['commit'][:12]}; {p['machine']}; Python {p['python']}, "
        f"NumPy {p['numpy']}, seed {p['seed']}, {result['resamples']} resamples an interval.",
        "",
        "The gate as shipped (two comparisons, five guards) on simulated evaluations with a known truth",
        "(trials.py). Unless said otherwise the few-shot base is 10 points below the parent, the worst case",
        'for promoting an equal model, and "equal" means equal on average: templates gain or lose at random.',
        "Guards are drawn with the noise of sampled decoding, which costs about one promotion in fifty.",
        "",
        "| truth | tasks a domain | promote, 200 trials | promote | reject | inconclusive | trials |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["scenarios"]:
        few, every = row["first_200"], row["all"]
        low, high = every["promote"]["interval_95"]
        lines.append(
            f"| {row['scenario']} | {row['tasks_per_domain']} | {few['promote']['count']} "
            f"({few['promote']['rate']:.1%}) | {every['promote']['rate']:.1%} [{low:.1%}, {high:.1%}] | "
            f"{every['reject']['rate']:.1%} | {every['inconclusive']['rate']:.1%} | {row['trials']} |"
        )
    lines += ["", "Intervals are Wilson 95 %. The world:", ""]
    for world in result["worlds"]:
        power = ", ".join(f"{points} points {value:.0%}" for points, value in world["predicted_power"].items())
        lines.append(
            f"- {world['domains']} x {world['tasks_per_domain']} tasks, "
            f"{world['clusters_per_domain']} templates a domain of {min(world['cluster_sizes'])} to "
            f"{max(world['cluster_sizes'])} tasks; pass rate "
            f"{world['pass_rate']:.2f}, discordance {world['discordance']:.3f}, intra-cluster correlation "
            f"{world['icc_of_differences']:.3f} of differences and {world['icc_of_passes']:.3f} of passes. "
            f"Closed form: {world['predicted']}; power against the parent alone: {power}."
        )
    guards = result["guards"]
    lines += [
        "",
        f"An equal model passes all five guards in {guards['pass_all']:.1%} of {guards['trials']} trials "
        "(95 % wanted):",
        "",
        "| guard | unit | items | noise | margin | least margin | held | true harm refused in 80 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in guards["guards"].items():
        lines.append(
            f"| {name} | {row['unit']} | {row['items']} | {row['noise']} | {row['margin']} | "
            f"{row['least_margin']} | {row['held']:.1%} | {row['harm_refused_with_80_percent']} |"
        )
    lines += ["", "Noise: share of items that flip, or the standard deviation of an item's change.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run scenarios whose name contains this")
    parser.add_argument("--size", type=int, default=0, help="run this number of tasks a domain only")
    parser.add_argument("--resamples", type=int, default=2000)
    args = parser.parse_args()
    path = HERE / "result.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"scenarios": []}
    config = GateConfig(resamples=args.resamples)
    tried = {
        "gate": config.model_dump(mode="json"),
        "guards": to_plain(DEFAULT_GUARDS),
        "noise": to_plain(UNCHANGED_NOISE),
    }
    if result.get("tried") != tried:
        result = {"scenarios": [], "resamples": args.resamples, "tried": tried}
    if "worlds" not in result:
        result["worlds"] = [measure_world(tasks) for tasks in SIZES]
        result["guards"] = measure_guards()
    done = {(row["scenario"], row["tasks_per_domain"]) for row in result["scenarios"]}
    for scenario in SCENARIOS:
        for tasks in SIZES:
            wanted = args.only in scenario.name and args.size in (0, tasks)
            if wanted and (scenario.name, tasks) not in done:
                result["scenarios"].append(run_scenario(scenario, tasks, config))
                _write(result)
    _write(result)


def _write(result: dict[str, Any]) -> None:
    order = {scenario.name: i for i, scenario in enumerate(SCENARIOS)}
    result["scenarios"].sort(key=lambda row: (order[row["scenario"]], row["tasks_per_domain"]))
    result["provenance"] = provenance()
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (HERE / "result.md").write_text(markdown(result))


if __name__ == "__main__":
    main()
