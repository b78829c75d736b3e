from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from burnish.core.seeds import generator
from burnish.evals.stats import (
    cluster_bootstrap,
    clustered_mean,
    intracluster_correlation,
    mcnemar_midp,
    student_t_quantile,
    wilson_interval,
)

PAIRS = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 1.0, 0.25]), st.integers(0, 11), st.integers(0, 1)),
    min_size=30,
    max_size=60,
).filter(lambda rows: len({(c, d) for _, c, d in rows}) >= 8)


def unpack(rows: list[tuple[float, int, int]]) -> tuple[list[float], list[str], list[str]]:
    return [v for v, _, _ in rows], [f"{d}/{c}" for _, c, d in rows], [str(d) for _, _, d in rows]


@pytest.mark.parametrize("df", [5, 8, 29, 62, 1000])
@pytest.mark.parametrize("p", [0.005, 0.025, 0.05, 0.5, 0.9, 0.975, 0.995])
def test_t_quantile_matches_scipy(p: float, df: int) -> None:
    assert student_t_quantile(p, df) == pytest.approx(scipy_stats.t.ppf(p, df), rel=5e-3, abs=1e-12)


def test_t_quantile_refuses_where_the_expansion_fails() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        student_t_quantile(0.975, 4)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (5, 1, 0.125),  # 2 * 7/64 - 6/64
        (1, 5, 0.125),
        (3, 0, 0.125),  # 2/8 - 1/8
        (0, 0, 1.0),
        (4, 4, 1.0),
        (10, 2, 0.022460937500),  # 2 * 79/4096 - 66/4096 = 92/4096
    ],
)
def test_mcnemar_midp_by_hand(wins: int, losses: int, p: float) -> None:
    assert mcnemar_midp(wins, losses) == pytest.approx(p, abs=1e-12)


@given(st.integers(0, 900), st.integers(0, 900))
@settings(max_examples=60, deadline=None)
def test_mcnemar_midp_is_the_exact_binomial_less_half_of_both_tails(wins: int, losses: int) -> None:
    n, fewer = wins + losses, min(wins, losses)
    if n == 0 or wins == losses:
        assert mcnemar_midp(wins, losses) == 1.0
        return
    exact = scipy_stats.binomtest(wins, n, 0.5).pvalue
    assert mcnemar_midp(wins, losses) == pytest.approx(exact - scipy_stats.binom.pmf(fewer, n, 0.5), rel=1e-7)


@given(st.integers(1, 400), st.data())
@settings(max_examples=40, deadline=None)
def test_wilson_matches_scipy(trials: int, data: st.DataObject) -> None:
    passes = data.draw(st.integers(0, trials))
    want = scipy_stats.binomtest(passes, trials).proportion_ci(0.95, "wilson")
    got = wilson_interval(passes, trials)
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=1e-9)
    assert 0 <= got.low <= got.estimate <= got.high <= 1


def test_clustered_mean_of_singletons_is_the_textbook_standard_error() -> None:
    x = generator(1, "test").normal(size=50)
    found = clustered_mean(x, [str(i) for i in range(50)])
    assert found.se == pytest.approx(x.std(ddof=1) / np.sqrt(50), rel=1e-12)
    assert found.interval is not None
    want = scipy_stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((want.low, want.high), rel=1e-4)


def test_clustered_mean_by_hand() -> None:
    # Means 1/2; residual sums +1, -1, 0 by cluster; 3/2 * (1 + 1 + 0) / 36
    found = clustered_mean([1, 1, 0, 0, 1, 0], ["a", "a", "b", "b", "c", "c"])
    assert found.mean == 0.5
    assert found.se == pytest.approx((3 / 2 * 2 / 36) ** 0.5)
    assert found.interval is None  # 2 degrees of freedom


def test_duplicating_every_value_inside_its_cluster_adds_no_information() -> None:
    x = generator(2, "test").normal(size=40)
    labels = [str(i // 2) for i in range(40)]
    once, twice = clustered_mean(x, labels), clustered_mean(np.tile(x, 2), labels * 2)
    assert twice.se == pytest.approx(once.se, rel=1e-12)


def test_a_stratum_of_one_cluster_has_no_standard_error() -> None:
    found = clustered_mean([1, 0, 1, 0], ["a", "a", "b", "c"], ["x", "x", "y", "y"])
    assert found.se is None
    assert found.interval is None


def test_intracluster_correlation_at_its_extremes() -> None:
    labels = [str(i // 5) for i in range(50)]
    between = generator(3, "test").normal(size=10)
    assert intracluster_correlation(np.repeat(between, 5), labels) == pytest.approx(1.0)
    balanced = np.tile([1.0, -1.0, 2.0, -2.0, 0.0], 10)
    assert intracluster_correlation(balanced, labels) == pytest.approx(-1 / 4)  # -1 / (size - 1), its least
    assert intracluster_correlation(np.zeros(50), labels) == 0.0


def test_intracluster_correlation_recovers_a_known_value() -> None:
    rng = generator(4, "test")
    sizes = rng.integers(2, 30, 2000)
    labels = np.repeat(np.arange(2000), sizes)
    x = 0.5 * rng.normal(size=2000)[labels] + np.sqrt(0.75) * rng.normal(size=len(labels))
    assert intracluster_correlation(x, [str(c) for c in labels]) == pytest.approx(0.25, abs=0.02)


@given(PAIRS, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_bootstrap_does_not_depend_on_order(rows: list[tuple[float, int, int]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = cluster_bootstrap(*unpack(rows), resamples=300, seed=5)
    assert cluster_bootstrap(*unpack(shuffled), resamples=300, seed=5) == first
    assert clustered_mean(*unpack(shuffled)) == clustered_mean(*unpack(rows))


@given(PAIRS)
@settings(max_examples=30, deadline=None)
def test_bootstrap_of_swapped_models_is_the_negated_interval(rows: list[tuple[float, int, int]]) -> None:
    values, clusters, strata = unpack(rows)
    there = cluster_bootstrap(values, clusters, strata, resamples=300, seed=6)
    back = cluster_bootstrap([-v for v in values], clusters, strata, resamples=300, seed=6)
    assert (back.estimate, back.low, back.high) == pytest.approx((-there.estimate, -there.high, -there.low))


def test_bootstrap_is_a_function_of_its_seed() -> None:
    x, labels = generator(7, "test").normal(size=60), [str(i) for i in range(60)]
    assert cluster_bootstrap(x, labels, seed=1) == cluster_bootstrap(x, labels, seed=1)
    assert cluster_bootstrap(x, labels, seed=1) != cluster_bootstrap(x, labels, seed=2)


def test_bootstrap_spread_is_the_clustered_standard_error() -> None:
    rng = generator(8, "test")
    labels = np.repeat(np.arange(40), rng.integers(2, 12, 40))
    x = rng.normal(size=40)[labels] + rng.normal(size=len(labels))
    names, strata = [str(c) for c in labels], [str(c % 2) for c in labels]
    want = clustered_mean(x, names, strata).interval
    got = cluster_bootstrap(x, names, strata, resamples=20_000, seed=1)
    assert want is not None
    assert got.estimate == pytest.approx(x.mean())
    assert (got.high - got.low) == pytest.approx(want.high - want.low, rel=0.06)


def test_bootstrap_of_constants_has_no_width() -> None:
    found = cluster_bootstrap([0.5] * 20, [str(i) for i in range(20)], resamples=300, seed=1)
    assert (found.low, found.high) == (0.5, 0.5)


def test_bootstrap_refuses_what_it_cannot_resample() -> None:
    with pytest.raises(ValueError, match="all finite"):
        cluster_bootstrap([np.nan] * 10, [str(i) for i in range(10)], seed=1)
    with pytest.raises(ValueError, match="at least one value"):
        cluster_bootstrap([], [], seed=1)
    with pytest.raises(ValueError, match="degrees of freedom"):
        cluster_bootstrap([1.0, 0.0], ["a", "b"], seed=1)
    with pytest.raises(ValueError, match="lengths must agree"):
        cluster_bootstrap([1.0, 0.0], ["a"], seed=1)


def test_ten_thousand_resamples_of_800_pairs_take_less_than_a_second() -> None:
    x = generator(9, "test").choice([-1.0, 0.0, 1.0], 800)
    started = time.process_time()
    cluster_bootstrap(x, [str(i) for i in range(800)], resamples=10_000, seed=1)
    assert time.process_time() - started < 1.0
