"""Which cluster bootstrap interval covers best with 30 to 40 clusters of unequal size.

`python benchmarks/gate_trials/coverage.py` tabulates miss rates in each tail (2.5 % wanted in each)
for percentile, expanded percentile, BCa, bootstrap-t and the closed-form CR1 interval with Student's t, in
coverage.json and coverage.md. Candidates live here; the one that won lives in `burnish.evals.stats`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from trials import Floats, World, draw

from burnish.core.seeds import generator
from burnish.evals.stats import cluster_bootstrap, student_t_quantile

NORMAL = NormalDist()
Ints = NDArray[np.int64]


class Design:
    """Cluster sums and sizes of one trial, by stratum."""

    def __init__(self, diff: Floats, clusters: Ints, domains: Ints) -> None:
        self.strata: list[tuple[Floats, Floats]] = []
        self.weights: list[float] = []
        for domain in np.unique(domains):
            inside = domains == domain
            _, index = np.unique(clusters[inside], return_inverse=True)
            self.strata.append((np.bincount(index, diff[inside]), np.bincount(index).astype(float)))
            self.weights.append(float(inside.mean()))
        self.df = sum(len(s) - 1 for s, _ in self.strata)

    def estimate(self) -> tuple[float, float]:
        mean, var = 0.0, 0.0
        for (sums, sizes), weight in zip(self.strata, self.weights, strict=True):
            m = sums.sum() / sizes.sum()
            G = len(sums)
            var += weight**2 * G / (G - 1) * ((sums - m * sizes) ** 2).sum() / sizes.sum() ** 2
            mean += weight * m
        return float(mean), float(np.sqrt(var))

    def resample(self, rng: np.random.Generator, R: int) -> tuple[Floats, Floats]:
        mean, var = np.zeros(R), np.zeros(R)
        for (sums, sizes), weight in zip(self.strata, self.weights, strict=True):
            G = len(sums)
            pick = rng.integers(0, G, (R, G))
            S, N = sums[pick], sizes[pick]
            total = N.sum(1)
            m = S.sum(1) / total
            var += weight**2 * G / (G - 1) * ((S - m[:, None] * N) ** 2).sum(1) / total**2
            mean += weight * m
        return mean, np.sqrt(var)

    def acceleration(self) -> float:
        cubes, squares = 0.0, 0.0
        for (sums, sizes), weight in zip(self.strata, self.weights, strict=True):
            left_out = (sums.sum() - sums) / (sizes.sum() - sizes)
            dev = weight * (left_out.mean() - left_out) * (len(sums) - 1)
            cubes += (dev**3).sum() / len(sums) ** 3
            squares += (dev**2).sum() / len(sums) ** 2
        return float(cubes / (6.0 * squares**1.5)) if squares > 0 else 0.0


def intervals(design: Design, rng: np.random.Generator, R: int, alpha: float) -> dict[str, tuple[float, float]]:
    mean, se = design.estimate()
    t = student_t_quantile(1 - alpha / 2, design.df)
    out = {"cr1_t": (mean - t * se, mean + t * se)}
    boot, boot_se = design.resample(rng, R)
    out["percentile"] = tuple(np.quantile(boot, [alpha / 2, 1 - alpha / 2]))
    below = np.clip((boot < mean).mean() + 0.5 * (boot == mean).mean(), 1 / R, 1 - 1 / R)
    z0, a = NORMAL.inv_cdf(float(below)), design.acceleration()
    z = NORMAL.inv_cdf(1 - alpha / 2)
    levels = [NORMAL.cdf(z0 + (z0 + s * z) / (1 - a * (z0 + s * z))) for s in (-1, 1)]
    out["bca"] = tuple(np.quantile(boot, levels))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(boot_se > 0, (boot - mean) / boot_se, np.sign(boot - mean) * np.inf)
    low, high = np.quantile(np.nan_to_num(ratio, nan=0.0), [alpha / 2, 1 - alpha / 2])
    out["bootstrap_t"] = (mean - high * se, mean - low * se)
    return out


WORLDS = {
    "2 domains x 200 tasks, 32 clusters each": World(),
    "2 domains x 600 tasks, 32 clusters each": World(tasks_per_domain=600),
    "1 domain, 200 tasks, 30 clusters": World(domains=1, clusters_per_domain=30),
    "1 domain, 600 tasks, 40 clusters, very unequal": World(600, 1, 40, size_sd=1.1),
    "1 domain, 200 tasks, 30 clusters, few discordant": World(200, 1, 30, mean_logit=8.0, change_sd=0.3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=1000)
    args = parser.parse_args()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for title, world in WORLDS.items():
        rows: dict[str, list[tuple[bool, bool, float]]] = {}
        for points in (0.0, 4.0):
            for trial in range(args.trials // 2):
                seen = draw(world, {"candidate": points}, 11, trial)
                diff = seen.passes["candidate"] - seen.passes["parent"]
                rng = generator(12, "gate_trials.coverage", trial)
                design = Design(diff, seen.clusters, seen.domains)
                found = intervals(design, rng, args.resamples, 0.05)
                own = cluster_bootstrap(
                    diff,
                    [str(c) for c in seen.clusters],
                    [str(d) for d in seen.domains],
                    resamples=args.resamples,
                    seed=trial,
                )
                found["expanded_percentile"] = own.low, own.high
                for method, (low, high) in found.items():
                    rows.setdefault(method, []).append((low > points / 100, high < points / 100, high - low))
        table[title] = {
            method: dict(
                zip(
                    ("low_above_truth", "high_below_truth", "median_width"),
                    (*map(float, np.mean(r, axis=0)[:2]), float(np.median([x[2] for x in r]))),
                    strict=True,
                )
            )
            for method, r in rows.items()
        }
    write(table, args.trials, args.resamples)


def write(table: dict[str, dict[str, dict[str, float]]], trials: int, resamples: int) -> None:
    """coverage.json and coverage.md."""
    here = Path(__file__).resolve().parent
    result = {"trials": trials, "resamples": resamples, "table": table}
    (here / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# Coverage of intervals for a clustered paired difference",
        "",
        f"`python benchmarks/gate_trials/coverage.py --trials {trials}`: half the trials with no difference,",
        f"half with 4 points; {resamples} resamples. Wanted: 2.5 % beyond each end. `expanded_percentile` is",
        "the one shipped in `burnish.evals.stats`.",
    ]
    for title, methods in table.items():
        lines += ["", f"{title}:", "", "| interval | low above truth | high below truth | median width |"]
        lines.append("|---|---|---|---|")
        for method, row in methods.items():
            cells = f"{row['low_above_truth']:.1%} | {row['high_below_truth']:.1%} | {row['median_width']:.4f}"
            lines.append(f"| {method} | {cells} |")
    (here / "coverage.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
