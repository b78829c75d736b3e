"""Group advantages: closed forms, keyed groups, and the inputs that blew up elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from burnish.core.types import TokenUse
from burnish.objectives.advantages import EPSILON, STD_FLOOR, grpo_advantages, rloo_advantages

REWARDS = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=24)


def test_closed_forms() -> None:
    reward, group = [1.0, 0.0, 0.0, 0.0], [7, 7, 7, 7]
    std = 0.5  # variance 3/4 * 1/3 with the divisor n - 1
    np.testing.assert_allclose(
        grpo_advantages(reward, group).advantage,
        np.array([0.75, -0.25, -0.25, -0.25]) / (std + EPSILON),
        rtol=1e-14,
    )
    np.testing.assert_allclose(
        grpo_advantages(reward, group, normalisation="none").advantage,
        [0.75, -0.25, -0.25, -0.25],
        rtol=1e-14,
    )
    np.testing.assert_allclose(rloo_advantages(reward, group).advantage, [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-14)


@given(REWARDS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_groups_are_keyed_so_order_and_partial_groups_do_not_matter(rewards, num_groups, random) -> None:  # type: ignore[no-untyped-def]
    group = np.array([random.randrange(num_groups) for _ in rewards])
    order = np.array(random.sample(range(len(rewards)), len(rewards)))
    reward = np.array(rewards)
    for function in (grpo_advantages, rloo_advantages):
        whole, shuffled = function(reward, group), function(reward[order], group[order])
        np.testing.assert_allclose(shuffled.advantage, whole.advantage[order], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(shuffled.use, whole.use[order])
        for key in set(group.tolist()):
            rows = group == key
            alone = function(reward[rows], group[rows])
            np.testing.assert_array_equal(alone.advantage, whole.advantage[rows])
            assert abs(whole.advantage[rows].sum()) < 1e-7


@given(REWARDS, st.data())
def test_an_undecided_reply_leaves_the_mean_of_its_siblings(rewards: list[float], data: st.DataObject) -> None:
    reward = np.array(rewards)
    decided = np.array(data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards))))
    group = np.zeros(len(rewards), int)
    poisoned = np.where(decided, reward, np.nan)
    for function in (grpo_advantages, rloo_advantages):
        found, without = function(poisoned, group, decided), function(reward[decided], group[decided])
        np.testing.assert_array_equal(found.advantage[decided], without.advantage)
        assert not found.advantage[~decided].any()
        assert (found.use[~decided] == TokenUse.UNDECIDED).all()


@given(REWARDS)
def test_advantages_are_bounded_whatever_the_rewards(rewards: list[float]) -> None:
    group, n = np.zeros(len(rewards), int), len(rewards)
    assert np.abs(grpo_advantages(rewards, group).advantage).max() <= (n - 1) / np.sqrt(n) + 1e-9
    for result in (grpo_advantages(rewards, group, normalisation="none"), rloo_advantages(rewards, group)):
        assert np.abs(result.advantage).max() <= 1 + 1e-9


def test_one_failure_among_near_constant_rewards_is_not_blown_up() -> None:
    reward, group = [0.0] + [0.95] * 7, [0] * 8
    assert grpo_advantages(reward, group).advantage.min() == pytest.approx(-7 / np.sqrt(8), rel=1e-3)
    assert rloo_advantages(reward, group).advantage.min() == pytest.approx(-0.95)


@pytest.mark.parametrize(
    "reward",
    [
        np.full(8, 0.95),
        0.95 + np.array([0, 1, 2, 3, 4, 5, 6, 7]) * 1e-17,
        0.95 + np.array([0, 0, 0, 0, 0, 0, 0, 1]) * STD_FLOOR,
    ],
)
def test_near_constant_groups_are_masked_and_counted(reward: NDArray[np.float64]) -> None:
    other = np.array([0.0, 1.0])
    for function in (grpo_advantages, rloo_advantages):
        result = function(np.concatenate([reward, other]), [3] * 8 + [1] * 2)
        assert (result.use[:8] == TokenUse.ZERO_ADVANTAGE).all()
        assert not result.advantage[:8].any()
        assert result.trained[8:].all()
        assert (result.num_groups, result.num_zero_variance, result.num_single) == (2, 1, 0)


def test_a_group_of_one_has_no_advantage() -> None:
    result = grpo_advantages([1.0, 0.0, 1.0, np.nan], [0, 1, 1, 0], [True, True, True, False])
    assert list(result.use) == [
        TokenUse.ZERO_ADVANTAGE,
        TokenUse.TRAINED,
        TokenUse.TRAINED,
        TokenUse.UNDECIDED,
    ]
    assert result.advantage[0] == 0
    assert (result.num_groups, result.num_single) == (2, 1)


def test_nothing_decided() -> None:
    result = grpo_advantages([np.nan, np.nan], [0, 0], [False, False])
    assert not result.trained.any()
    assert result.num_groups == 0


def test_a_decided_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="reply 1 is decided"):
        grpo_advantages([1.0, np.inf], [0, 0])
    with pytest.raises(ValueError, match="expected"):
        grpo_advantages([1.0, 0.0], [0])
