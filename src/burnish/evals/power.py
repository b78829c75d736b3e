"""What a paired comparison can find, said before it is run.

A gain of `delta` is found when the two-sided interval's lower bound is above zero. The variance of a paired
difference is (discordance - delta^2) / n, times the design effect of sampling by cluster; Student's t has one
degree of freedom a cluster, less one a domain.

Leaves out the decision (see `gate`) and anything that needs results (see `stats`).
Source: Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics
43 (1987), unconditional variance; design effect for unequal clusters: Kish, Survey Sampling (1965),
and Eldridge, Ashby & Kerry, International Journal of Epidemiology 35 (2006).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.evals.stats import normal_cdf, normal_quantile, student_t_quantile

TYPICAL_DISCORDANCE = 0.17
"""Share of tasks on which neighbouring checkpoints differ. Measured in the main job (400 gate tasks): 0.15 between
SFT and RL, 0.17 between base and SFT, 0.18 between the few-shot base and SFT."""

TYPICAL_ICC = 0.15
"""Correlation of differences within a template. Measured likewise: 0.11, 0.20 and 0.19."""

_LEAST_FREEDOM = 5
"""Clusters beyond one a domain, below which no figure is given."""


@dataclass(frozen=True, slots=True)
class PairedDesign:
    """A planned comparison: how many tasks in which clusters, and how unlike the two models will be.

    `discordance`: share of tasks on which they differ, in (0, 1]. `icc`: correlation of the difference within
    a cluster, in [0, 1). `size_cv`: standard deviation of cluster sizes over their mean. `strata`: domains.
    """

    num_tasks: int
    num_clusters: int
    discordance: float = TYPICAL_DISCORDANCE
    icc: float = TYPICAL_ICC
    size_cv: float = 0.0
    strata: int = 1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.num_clusters <= self.num_tasks:
            raise ValueError(f"{self.num_tasks} tasks cannot fill {self.num_clusters} clusters")
        if not 0 < self.discordance <= 1 or not 0 <= self.icc < 1 or not 0 < self.confidence < 1:
            raise ValueError("discordance is in (0, 1], icc in [0, 1), confidence in (0, 1)")

    @property
    def design_effect(self) -> float:
        """Variance under cluster sampling over variance under independent tasks, at least 1."""
        mean_size = self.num_tasks / self.num_clusters
        return 1.0 + max(0.0, (1.0 + self.size_cv**2) * mean_size - 1.0) * self.icc

    @property
    def critical(self) -> float:
        """How many standard errors the interval reaches to each side."""
        return student_t_quantile(0.5 + self.confidence / 2, self.num_clusters - self.strata)

    def standard_error(self, delta: float = 0.0) -> float:
        """Standard error of the paired difference when the true difference is `delta` (a fraction).

        Raises: ValueError where |delta| exceeds the discordance, which no pair of models can show.
        """
        if abs(delta) > self.discordance:
            raise ValueError(f"a difference of {delta} needs at least that discordance, not {self.discordance}")
        return math.sqrt(self.design_effect * (self.discordance - delta**2) / self.num_tasks)

    def power(self, delta: float) -> float:
        """Probability that the lower bound comes out above zero when the true difference is `delta`."""
        se = self.standard_error(delta)
        return normal_cdf(delta / se - self.critical) if se > 0 else float(delta > 0)

    def minimum_detectable(self, power: float = 0.8) -> float:
        """The smallest true difference found with this power, a fraction; infinite where none is.

        It solves delta = (critical + z) * standard_error(delta), which is quadratic in delta.
        """
        reach = (self.critical + normal_quantile(power)) ** 2 * self.design_effect / self.num_tasks
        delta = math.sqrt(reach * self.discordance / (1.0 + reach))
        return delta if delta <= self.discordance else math.inf

    def describe(self, power: float = 0.8) -> str:
        """The sentence printed before a run, such as "600 tasks find 4.0 points with 80 % power"."""
        delta = self.minimum_detectable(power)
        found = f"find {100 * delta:.1f} points" if math.isfinite(delta) else "find no difference"
        return (
            f"{self.num_tasks} tasks in {self.num_clusters} clusters {found} with {100 * power:.0f} % power "
            f"(if {100 * self.discordance:.0f} % of pairs differ; design effect {self.design_effect:.2f})"
        )


def minimum_detectable(
    num_tasks: int,
    num_clusters: int,
    *,
    power: float = 0.8,
    discordance: float = TYPICAL_DISCORDANCE,
    icc: float = TYPICAL_ICC,
    size_cv: float = 0.0,
    strata: int = 1,
    confidence: float = 0.95,
) -> float:
    """The smallest true difference (a fraction) that the design finds with this power."""
    design = PairedDesign(num_tasks, num_clusters, discordance, icc, size_cv, strata, confidence)
    return design.minimum_detectable(power)


def describe_sample(clusters: Sequence[tuple[str, str]], *, confidence: float = 0.95) -> str:
    """The sentence of `PairedDesign.describe` for the (domain, cluster) of each task of a set."""
    sizes = list(Counter(clusters).values())
    domains = len({domain for domain, _ in clusters})
    if len(sizes) - domains < _LEAST_FREEDOM:
        return f"{len(clusters)} tasks in {len(sizes)} clusters are too few to find any difference"
    design = PairedDesign(len(clusters), len(sizes), size_cv=size_cv(sizes), strata=domains, confidence=confidence)
    return design.describe()


def size_cv(cluster_sizes: Sequence[int]) -> float:
    """Coefficient of variation of cluster sizes (population standard deviation over mean)."""
    mean = sum(cluster_sizes) / len(cluster_sizes)
    return math.sqrt(sum((size - mean) ** 2 for size in cluster_sizes) / len(cluster_sizes)) / mean
