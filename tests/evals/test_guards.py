from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.codec import dumps, loads
from burnish.core.seeds import generator
from burnish.evals.guards import (
    DEFAULT_GUARDS,
    UNCHANGED_NOISE,
    GuardOutcome,
    GuardResult,
    GuardSpec,
    assess,
    calibrate_margins,
    guard_result,
    needed_margins,
    pass_all_rate,
)

HIGHER = GuardSpec("kept", "pass rate", 0.1, 60)
LOWER = GuardSpec("nll", "nats/token", 0.1, 60, higher_is_better=False)
BOTH = GuardSpec("length", "log ratio", 0.1, 60, two_sided=True)
ITEMS = [f"{i:03d}" for i in range(60)]


def judged(guard: GuardResult, seed: int = 1, **changes: object) -> GuardOutcome:
    settings = {"confidence": 0.9, "resamples": 1000, "min_clusters": 30, "max_undecided_frac": 0.05}
    return assess(guard, seed=seed, **{**settings, **changes})  # type: ignore[arg-type]


def shifted(spec: GuardSpec, shift: float, sd: float = 0.05) -> GuardResult:
    base = generator(1, "test.guards").normal(2.0, 0.5, 60)
    noise = generator(2, "test.guards").normal(0.0, sd, 60)
    return guard_result(spec, ITEMS, base.tolist(), (base + shift + noise - noise.mean()).tolist())


@pytest.mark.parametrize(
    ("spec", "shift", "status"),
    [
        (HIGHER, 0.0, "holds"),
        (HIGHER, 1.0, "holds"),
        (HIGHER, -1.0, "broken"),
        (HIGHER, -0.1, "unclear"),
        (LOWER, 0.0, "holds"),
        (LOWER, -1.0, "holds"),
        (LOWER, 1.0, "broken"),
        (LOWER, 0.1, "unclear"),
        (BOTH, 0.0, "holds"),
        (BOTH, 1.0, "broken"),
        (BOTH, -1.0, "broken"),
        (BOTH, 0.1, "unclear"),
    ],
)
def test_status_follows_the_direction_of_harm(spec: GuardSpec, shift: float, status: str) -> None:
    found = judged(shifted(spec, shift))
    assert found.status == status
    assert spec.name in found.explain()
    assert loads(GuardOutcome, dumps(found)) == found


def test_an_identical_model_changes_nothing_and_holds() -> None:
    values = generator(3, "test.guards").random(60).tolist()
    found = judged(guard_result(HIGHER, ITEMS, values, values))
    assert (found.status, found.change, found.low, found.high) == ("holds", 0.0, 0.0, 0.0)


@given(st.integers(0, 20), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_undecided_items_change_nothing_but_their_count(extra: int, random: object) -> None:
    guard = shifted(HIGHER, 0.02)
    more = list(guard.items) + [replace(guard.items[0], item_id=f"u{i}", new=None) for i in range(extra)]
    random.shuffle(more)  # type: ignore[attr-defined]
    found, plain = judged(GuardResult(HIGHER, tuple(more)), max_undecided_frac=0.5), judged(guard)
    assert replace(found, undecided=0) == plain
    assert found.undecided == extra


def test_too_many_undecided_or_too_few_clusters_make_a_guard_unusable() -> None:
    guard = shifted(HIGHER, 0.0)
    undecided = GuardResult(HIGHER, tuple(replace(x, base=None) if i < 4 else x for i, x in enumerate(guard.items)))
    assert judged(undecided).status == "unusable"
    assert "4 of 60 items are undecided" in judged(undecided).explain()
    few = guard_result(HIGHER, ITEMS, [0.0] * 60, [0.0] * 60, [str(i % 29) for i in range(60)])
    assert "29 clusters" in judged(few).problem
    assert judged(GuardResult(HIGHER, ())).status == "unusable"


def test_bad_guards_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        guard_result(HIGHER, ["a"], [0.0], [math.nan])
    with pytest.raises(ValueError, match="occurs twice"):
        guard_result(HIGHER, ["a", "a"], [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="positive"):
        replace(HIGHER, margin=0.0)


def test_default_margins_pass_an_equal_model_in_95_percent() -> None:
    margins = {spec.name: spec.margin for spec in DEFAULT_GUARDS}
    needed = {noise.name: needed_margins(noise, trials=400, seed=21) for noise in UNCHANGED_NOISE}
    assert pass_all_rate(needed, margins) >= 0.95
    assert {spec.name: spec.num_items for spec in DEFAULT_GUARDS} == {
        noise.name: noise.num_items for noise in UNCHANGED_NOISE
    }


def test_calibrated_margins_hold_on_fresh_trials_and_shrink_with_items() -> None:
    few = UNCHANGED_NOISE[:2]
    margins = calibrate_margins(few, pass_all=0.9, trials=300, seed=22)
    fresh = {noise.name: needed_margins(noise, trials=300, seed=23) for noise in few}
    assert pass_all_rate(fresh, margins) == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / 300) * 1.5)
    wide = calibrate_margins([replace(noise, num_items=4 * noise.num_items) for noise in few], trials=200)
    narrow = calibrate_margins(few, trials=200)
    assert all(wide[name] == pytest.approx(narrow[name] / 2, rel=0.25) for name in narrow)


def test_noise_is_unbiased_with_the_spread_it_states() -> None:
    for noise in UNCHANGED_NOISE:
        draws = np.concatenate([noise.draw(generator(5, noise.name, i)) for i in range(300)])
        sd = math.sqrt(noise.noise) if noise.binary else noise.noise
        assert draws.mean() == pytest.approx(0.0, abs=4 * sd / math.sqrt(len(draws)))
        assert draws.std() == pytest.approx(sd, rel=0.03)
