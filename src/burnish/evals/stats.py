"""Intervals and tests for means of clustered, paired results.

Shape legend: n tasks or pairs, G clusters of one stratum, R resamples.

The unit of resampling is the cluster (the template a task was drawn from), within its stratum (the domain).
A pooled mean keeps each stratum at its share of tasks. Tasks without a cluster are each their own.

**Which interval decides.** Five were measured on simulated paired results with 30 to 40 clusters of unequal
size (benchmarks/gate_trials/coverage.md; 2.5 % wanted beyond each end). The *expanded percentile* cluster
bootstrap was taken: 2.3 to 3.0 % in all worlds with ordinary discordance, as good as the closed-form CR1
interval with Student's t, without its symmetry, and always finite. Plain percentile (2.7 to 3.6 %) and BCa
(2.8 to 4.0 %) are too narrow. Bootstrap-t covers as well, and better where few pairs differ (there the chosen
interval misses 1.5 % below and 5.1 % above, so it understates gains), but its bounds are infinite whenever
resamples have no variance.

Leaves out the decision (see `gate`) and sample sizes (see `power`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burnish.core.seeds import generator

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
_CHUNK = 2_000_000  # resampled cluster indices held at once: 16 MB of int64


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its two-sided confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean with its cluster-robust standard error and Student's t interval.

    `df` is the number of clusters less the number of strata. `se` is None where a stratum has one cluster,
    so that its spread cannot be measured; `interval` is None there, and below 5 degrees of freedom.
    """

    mean: float
    se: float | None
    num_values: int
    num_clusters: int
    df: int
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class _Stratum:
    """One domain: sums and sizes of its clusters [G], its share of all values, its mean."""

    sums: Floats
    sizes: Floats
    share: float

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())

    @property
    def num_clusters(self) -> int:
        return len(self.sums)


def normal_quantile(p: float) -> float:
    """The standard normal quantile of `p` in (0, 1)."""
    return _NORMAL.inv_cdf(p)


def normal_cdf(x: float) -> float:
    """The standard normal distribution function."""
    return _NORMAL.cdf(x)


def student_t_quantile(p: float, df: int) -> float:
    """The quantile of Student's t; within 0.5 % for df >= 5 and p in [0.005, 0.995].

    Raises: ValueError for fewer than 5 degrees of freedom, where the expansion is not good enough.
    Source: Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if df < 5:
        raise ValueError(f"Student's t quantile needs at least 5 degrees of freedom, not {df}")
    x = normal_quantile(p)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return float(x + sum(term / df ** (k + 1) for k, term in enumerate(terms)))


def wilson_interval(passes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion of independent trials.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if not 0 <= passes <= trials or trials == 0:
        raise ValueError(f"Wilson's interval needs 0 <= passes <= trials and a trial, not {passes} of {trials}")
    z = normal_quantile(0.5 + confidence / 2)
    p = passes / trials
    scale = 1 + z**2 / trials
    centre = (p + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2)) / scale
    low = 0.0 if passes == 0 else centre - half  # exact at the ends, where the formula leaves rounding
    high = 1.0 if passes == trials else centre + half
    return Interval(p, low, high, confidence)


def mcnemar_midp(wins: int, losses: int) -> float:
    """Two-sided exact mid-p McNemar value from the two discordant counts.

    Equal to the exact conditional p value less the probability of the observed table; 1 where nothing is
    discordant. With several samples a task, wins and losses are tasks whose pass rate rose or fell, and this
    is the mid-p sign test. It ignores clusters, so it is printed beside the interval and does not decide.
    Source: Fagerland, Lydersen & Laake, BMC Medical Research Methodology 13:91 (2013).
    """
    n, fewer = wins + losses, min(wins, losses)
    term, below = 1, 0
    for i in range(fewer):
        below += term
        term = term * (n - i) // (i + 1)
    return (2 * below + term) / 2**n if n and wins != losses else 1.0


def clustered_mean(
    values: ArrayLike,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    confidence: float = 0.95,
) -> MeanEstimate:
    """The mean of values [n] with a standard error robust to any dependence within a cluster.

    Within a stratum of G clusters: G/(G-1) * sum over clusters of (sum of residuals)^2, over n^2 (CR1; its
    other factor (n-1)/(n-k) is 1 for a mean, k = 1). Strata add with the square of their shares.
    Source: Cameron & Miller, "A practitioner's guide to cluster-robust inference", Journal of Human
    Resources 50 (2015), section II; for model evaluations: Miller, arXiv 2411.00640.
    """
    parts = _strata(values, clusters, strata)
    mean = sum(part.share * part.mean for part in parts)
    num_clusters = sum(part.num_clusters for part in parts)
    df = num_clusters - len(parts)
    num_values = int(sum(part.sizes.sum() for part in parts))
    if min(part.num_clusters for part in parts) == 1:
        return MeanEstimate(mean, None, num_values, num_clusters, df, None)
    variance = 0.0
    for part in parts:
        residual = part.sums - part.mean * part.sizes
        factor = part.num_clusters / (part.num_clusters - 1)
        variance += part.share**2 * factor * float(residual @ residual) / float(part.sizes.sum()) ** 2
    se = math.sqrt(variance)
    interval = None
    if df >= 5:  # the least that `student_t_quantile` takes
        half = student_t_quantile(0.5 + confidence / 2, df) * se
        interval = Interval(mean, mean - half, mean + half, confidence)
    return MeanEstimate(mean, se, num_values, num_clusters, df, interval)


def cluster_bootstrap(
    values: ArrayLike,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int,
) -> Interval:
    """The mean of values [n] with its expanded percentile interval over resampled clusters.

    Whole clusters are drawn with replacement within each stratum. Two corrections for few clusters: the
    deviations of a stratum are stretched by sqrt(G/(G-1)), the bias of a resampled variance, and the tail
    is Phi(-t) rather than Phi(-z), t with clusters-less-strata degrees of freedom. For paired results pass
    the differences; negating the values negates the interval. The order of values does not matter.

    Raises: ValueError for an empty input, a non-finite value, or fewer than 5 clusters beyond the strata.
    Source: Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69 (2015),
    expanded percentile interval; resampling clusters: Cameron, Gelbach & Miller, Review of Economics and
    Statistics 90 (2008).
    """
    parts = _strata(values, clusters, strata)
    df = sum(part.num_clusters for part in parts) - len(parts)
    tail = normal_cdf(-student_t_quantile(0.5 + confidence / 2, df))
    mean = sum(part.share * part.mean for part in parts)
    deviation = np.zeros(resamples)
    for index, part in enumerate(parts):
        rng = generator(seed, "evals.cluster_bootstrap", index)
        stretch = math.sqrt(part.num_clusters / max(part.num_clusters - 1, 1))
        deviation += part.share * stretch * (_resampled_means(part, resamples, rng) - part.mean)
    low, high = np.quantile(deviation, [tail, 1 - tail])
    return Interval(mean, float(mean + low), float(mean + high), confidence)


def intracluster_correlation(values: ArrayLike, clusters: Sequence[str], strata: Sequence[str] | None = None) -> float:
    """The analysis-of-variance estimate of the correlation of values in one cluster; 0 where nothing varies.

    Negative estimates are returned as they are: they say "no sign of clustering".
    Source: Donner, "A review of inference procedures for the intraclass correlation coefficient in the
    one-way random effects model", International Statistical Review 54 (1986).
    """
    x = np.asarray(values, dtype=np.float64)
    parts = _strata(values, clusters, strata)
    between = sum(float((part.sums**2 / part.sizes).sum() - part.sizes.sum() * part.mean**2) for part in parts)
    within = float(x @ x) - sum(float((part.sums**2 / part.sizes).sum()) for part in parts)
    df_between = sum(part.num_clusters - 1 for part in parts)
    df_within = len(x) - sum(part.num_clusters for part in parts)
    if df_between == 0 or df_within == 0:
        raise ValueError("intra-cluster correlation needs two clusters in a stratum, and one with two values")
    size = sum(float(part.sizes.sum() - (part.sizes**2).sum() / part.sizes.sum()) for part in parts) / df_between
    ms_between, ms_within = between / df_between, within / df_within
    total = ms_between + (size - 1) * ms_within
    return (ms_between - ms_within) / total if total > 0 else 0.0


def _strata(values: ArrayLike, clusters: Sequence[str], strata: Sequence[str] | None) -> list[_Stratum]:
    """Cluster sums by stratum, in order of name, so that the order of values has no effect."""
    x = np.asarray(values, dtype=np.float64)
    names = np.asarray(strata if strata is not None else [""] * len(x), dtype=str)
    labels = np.asarray(clusters, dtype=str)
    if not len(x) == len(labels) == len(names):
        raise ValueError(f"{len(x)} values, {len(labels)} clusters, {len(names)} strata: lengths must agree")
    if not len(x) or not np.isfinite(x).all():
        raise ValueError("statistics need at least one value, all finite")
    parts = []
    for name in np.unique(names):
        inside = names == name
        _, index = np.unique(labels[inside], return_inverse=True)
        order = np.lexsort((x[inside], index))  # sums of floats depend on order; make them not
        sums = np.asarray(np.bincount(index[order], x[inside][order]), dtype=np.float64)
        sizes = np.bincount(index).astype(np.float64)
        parts.append(_Stratum(sums, sizes, float(inside.mean())))
    return parts


def _resampled_means(part: _Stratum, resamples: int, rng: np.random.Generator) -> Floats:
    """Means [R] of clusters drawn with replacement; ratio of sums, since cluster sizes differ."""
    G = part.num_clusters
    rows = max(1, _CHUNK // G)
    means = np.empty(resamples)
    for start in range(0, resamples, rows):
        pick = rng.integers(0, G, (min(rows, resamples - start), G))
        means[start : start + rows] = part.sums[pick].sum(1) / part.sizes[pick].sum(1)
    return means
