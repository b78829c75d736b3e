from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.seeds import generator
from burnish.evals.power import PairedDesign, describe_sample, minimum_detectable, size_cv
from burnish.evals.stats import clustered_mean, student_t_quantile


def simulated_power(design: PairedDesign, delta: float, sizes: np.ndarray, trials: int) -> float:
    """Share of trials in which the closed-form interval's lower bound is above zero.

    A task copies its cluster's draw with probability sqrt(icc), else draws its own; two tasks
    of one cluster then correlate by icc exactly.
    """
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"{c:04d}" for c in labels]
    shares = [
        (design.discordance - delta) / 2,
        1 - design.discordance,
        (design.discordance + delta) / 2,
    ]
    found = 0
    for trial in range(trials):
        rng = generator(2, "test.power", trial)
        own = rng.choice([-1.0, 0.0, 1.0], len(labels), p=shares)
        common = rng.choice([-1.0, 0.0, 1.0], len(sizes), p=shares)[labels]
        diff = np.where(rng.random(len(labels)) < math.sqrt(design.icc), common, own)
        interval = clustered_mean(diff, names, confidence=design.confidence).interval
        found += interval is not None and interval.low > 0
    return found / trials


@pytest.mark.parametrize(
    ("icc", "size_sd", "delta"), [(0.0, 0.0, 0.04), (0.05, 0.0, 0.05), (0.05, 0.5, 0.06), (0.0, 0.5, 0.0)]
)
def test_power_matches_simulation(icc: float, size_sd: float, delta: float) -> None:
    rng = generator(1, "test.sizes")
    sizes = np.maximum(1, np.round(10 * np.exp(rng.normal(0, size_sd, 60)))).astype(int)
    design = PairedDesign(int(sizes.sum()), 60, 0.16, icc, size_cv(sizes.tolist()))
    got = simulated_power(design, delta, sizes, 800)
    # Three standard errors of 800 trials, and two points for the normal approximation.
    assert got == pytest.approx(design.power(delta), abs=3 * math.sqrt(0.25 / 800) * 0.9 + 0.02)


def test_six_hundred_tasks_find_four_points() -> None:
    # (1.964 + 0.842) * sqrt((0.1235 - 0.04^2) / 600) = 0.0400
    design = PairedDesign(600, 600, discordance=0.1235, icc=0.0)
    assert design.minimum_detectable() == pytest.approx(0.04, abs=2e-4)
    assert design.describe().startswith("600 tasks in 600 clusters find 4.0 points with 80 % power")


@given(
    st.integers(30, 200),
    st.integers(1, 30),
    st.floats(0.02, 1.0),
    st.floats(0.0, 0.3),
    st.floats(0.0, 1.0),
    st.sampled_from([0.5, 0.8, 0.9]),
)
@settings(max_examples=80, deadline=None)
def test_minimum_detectable_has_the_power_it_promises(
    clusters: int, size: int, discordance: float, icc: float, cv: float, power: float
) -> None:
    design = PairedDesign(clusters * size, clusters, discordance, icc, cv)
    delta = design.minimum_detectable(power)
    if math.isfinite(delta):
        assert design.power(delta) == pytest.approx(power, abs=1e-6)
        assert design.power(0.9 * delta) < power
    else:
        assert design.power(discordance * 0.999) < power


def test_no_gain_is_found_at_half_the_level() -> None:
    design = PairedDesign(600, 60, icc=0.05)
    assert design.power(0.0) == pytest.approx(0.025, abs=0.003)
    assert design.critical == pytest.approx(student_t_quantile(0.975, 59))


def test_more_tasks_help_less_than_more_clusters() -> None:
    base = minimum_detectable(600, 30, icc=0.05)
    assert minimum_detectable(1200, 30, icc=0.05) < base
    assert minimum_detectable(1200, 60, icc=0.05) < minimum_detectable(1200, 30, icc=0.05)
    assert minimum_detectable(600, 30, icc=0.0) < base
    assert minimum_detectable(600, 30, icc=0.05, size_cv=0.8) > base


def test_design_effect_by_hand() -> None:
    assert PairedDesign(600, 30, icc=0.05).design_effect == pytest.approx(1 + 19 * 0.05)
    assert size_cv([1, 3]) == pytest.approx(0.5)
    sizes = [5, 10, 30]
    cv = size_cv(sizes)
    # (1 + cv^2) * mean is Kish's sum of squares over sum
    assert PairedDesign(45, 3, icc=0.1, size_cv=cv).design_effect == pytest.approx(
        1 + (sum(s * s for s in sizes) / sum(sizes) - 1) * 0.1
    )


def test_impossible_designs_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot fill"):
        PairedDesign(10, 20)
    with pytest.raises(ValueError, match="discordance"):
        PairedDesign(100, 50, discordance=0.0)
    with pytest.raises(ValueError, match="at least that discordance"):
        PairedDesign(100, 50, discordance=0.1).power(0.2)


def test_a_sample_of_tasks_says_what_it_can_find() -> None:
    even = [("d", f"c{i % 50}") for i in range(600)]
    assert describe_sample(even) == PairedDesign(600, 50).describe()
    uneven = [("d", f"c{min(i, 49)}") for i in range(600)]  # one cluster holds most: far less is found
    assert "design effect 7" in describe_sample(uneven)
    assert describe_sample(even[:5]) == "5 tasks in 5 clusters are too few to find any difference"
