"""The learning rate as a function of the step."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.errors import ConfigError
from burnish.train.schedule import Schedule
from burnish.train.sft import TICKS, TimeBudget


def test_golden_values() -> None:
    linear = Schedule(1.0, total_steps=6, warmup_steps=2, decay="linear", final_frac=0.0)
    assert [linear.at(s) for s in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = Schedule(2.0, total_steps=4, decay="cosine", final_frac=0.5)
    assert cosine.at(2) == pytest.approx(2 * 0.75)
    assert cosine.at(1) == pytest.approx(2 * (0.5 + 0.5 * (1 + math.sqrt(0.5)) / 2))
    assert Schedule(1e-5, total_steps=3).at(2) == 1e-5
    assert Schedule(1e-5, total_steps=3, warmup_steps=3).at(2) == 1e-5


@given(
    st.floats(1e-8, 1),
    st.integers(1, 300),
    st.floats(0, 1),
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 1),
)
def test_rises_then_never_rises_and_always_moves(
    lr: float, total: int, warm: float, decay: Any, final_frac: float
) -> None:
    warmup = int(warm * total)
    rates = [Schedule(lr, total, warmup, decay, final_frac).at(s) for s in range(total)]
    assert all(0 < rate <= lr * (1 + 1e-12) for rate in rates)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup:]))
    assert max(rates) == pytest.approx(lr)
    if decay != "constant":
        assert rates[-1] >= final_frac * lr * (1 - 1e-12) or warmup == total


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": float("inf")}, "lr"),
        ({"total_steps": 0}, "steps"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_steps": 11}, "warmup_steps"),
        ({"decay": "cosin"}, "schedule"),
        ({"final_frac": 1.5}, "final_frac"),
    ],
)
def test_nonsense_is_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule(**{"lr": 1e-4, "total_steps": 10, **config})
    assert caught.value.where == key
    assert caught.value.fix


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_steps_outside_are_refused(step: int) -> None:
    with pytest.raises(ValueError, match="outside the schedule"):
        Schedule(1e-4, total_steps=10).at(step)


@given(st.floats(1, 1e5), st.integers(1, 20), st.lists(st.floats(0.001, 0.3), min_size=1, max_size=400))
def test_a_control_is_evaluated_as_often_as_what_it_is_held_against(
    seconds: float, evaluations: int, shares: list[float]
) -> None:
    """Steps of any length: never more evaluations than agreed, none early, and the last when the time is over."""
    budget, elapsed, evaluated = TimeBudget(seconds, evaluations), 0.0, 0
    ticks = [budget.tick(elapsed)]
    for share in [*shares, 1.0]:
        elapsed += share * seconds / evaluations  # a step shorter than the time between two evaluations
        if budget.due(elapsed, evaluated):
            evaluated += 1
            assert elapsed / seconds >= evaluated / evaluations - 1e-9
        ticks.append(budget.tick(elapsed))
        if budget.share(elapsed) == 1.0:
            break
    assert evaluated == min(evaluations, int(evaluations * budget.share(elapsed) + 1e-9))
    assert ticks == sorted(ticks)
    assert ticks[0] == 0
    assert ticks[-1] <= TICKS - 1
    assert (ticks[-1] == TICKS - 1) or budget.share(elapsed) < 1.0
