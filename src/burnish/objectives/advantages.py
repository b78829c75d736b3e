"""Advantages from the rewards of a group: what a reply earned beyond its siblings.

Groups are keyed by id, never cut by a fixed stride, so a lost reply cannot shift its neighbours into another
group. An undecided reply has no reward: it leaves the group's mean and deviation too. Leaves out learned
values; NumPy only, in float64.

Legend: R replies of a step, in any order; n decided replies of one group.

| method | advantage of reply i | at most, for rewards in [0, 1] |
|---|---|---|
| `grpo_advantages`, "std" | (r_i - mean) / (std + epsilon) | (n - 1) / sqrt(n) |
| `grpo_advantages`, "none" | r_i - mean | 1 |
| `rloo_advantages` | r_i - mean of the others = n / (n - 1) (r_i - mean) | 1 |

`std` has the divisor n - 1, as in TRL and verl. Dividing by the deviation of the *others* is not offered: on
rewards [0, .95 x 7] the others are constant, and the advantage is the baseline over epsilon (-2,075 in a
public report).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burnish.core.types import TokenUse

# TRL 1.16's value; verl 0.9.1 has 1e-6. The larger one, so that rewards that differ by rounding stay small.
EPSILON = 1e-4

# At a deviation of EPSILON half of the divisor is epsilon: below it, what is left of a group is no signal to
# normalise. Binary rewards lie far above: 1 of n right has the deviation 1 / sqrt(n).
STD_FLOOR = EPSILON


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdvantages:
    """Advantages of R replies, and which of them to train.

    Shapes: `advantage` float64 [R], 0 where not trained; `use` uint8 [R], `TokenUse` of each reply's tokens:
    TRAINED, UNDECIDED, or ZERO_ADVANTAGE (near-constant group, or the only decided reply of its group).
    `num_groups` have a decided reply; of these, `num_zero_variance` are near-constant and `num_single` have
    just one.
    """

    advantage: NDArray[np.float64]
    use: NDArray[np.uint8]
    num_groups: int
    num_zero_variance: int
    num_single: int

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Replies to train, bool [R]."""
        trained: NDArray[np.bool_] = self.use == TokenUse.TRAINED
        return trained


def grpo_advantages(
    reward: ArrayLike,
    group: ArrayLike,
    decided: ArrayLike | None = None,
    *,
    normalisation: Literal["std", "none"] = "std",
    epsilon: float = EPSILON,
    std_floor: float = STD_FLOOR,
) -> GroupAdvantages:
    """Reward minus the group's mean; "std" divides by its deviation (GRPO), "none" does not (Dr. GRPO).

    Shapes: `reward` float [R] (anything where undecided), `group` [R] ids of any order, `decided` bool [R],
    all True if None.
    Source: Shao et al., DeepSeekMath, arXiv:2402.03300, section 4.1; Liu et al., arXiv:2503.20783 ("none").
    Departs: near-constant groups and groups of one are masked. Peers give the former 0 and leave it in the
    denominator; for the latter verl takes the raw reward, TRL refuses to train.
    Raises: ValueError for a decided reward that is not finite, or arrays of different lengths.
    """
    if normalisation not in ("std", "none"):
        raise ValueError(f"normalisation {normalisation!r} is neither 'std' nor 'none'")

    def centred(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        difference = rewards - rewards.mean()
        return difference / (rewards.std(ddof=1) + epsilon) if normalisation == "std" else difference

    return _by_group(reward, group, decided, std_floor, centred)


def rloo_advantages(
    reward: ArrayLike, group: ArrayLike, decided: ArrayLike | None = None, *, std_floor: float = STD_FLOOR
) -> GroupAdvantages:
    """Reward minus the mean of the other decided replies of the group (leave one out).

    Shapes and masking as `grpo_advantages`.
    Source: Ahmadian et al., Back to Basics, arXiv:2402.14740, section 3.
    """

    def against_others(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)

    return _by_group(reward, group, decided, std_floor, against_others)


def _by_group(
    rewards: ArrayLike,
    groups: ArrayLike,
    are_decided: ArrayLike | None,
    std_floor: float,
    formula: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> GroupAdvantages:
    reward = np.asarray(rewards, np.float64)
    group = np.asarray(groups)
    decided = np.ones(reward.shape, bool) if are_decided is None else np.asarray(are_decided, bool)
    if reward.ndim != 1 or group.shape != reward.shape or decided.shape != reward.shape:
        shapes = f"reward {reward.shape}, group {group.shape}, decided {decided.shape}"
        raise ValueError(f"{shapes}: expected [R] each")
    if not np.isfinite(reward[decided]).all():
        where = int(np.flatnonzero(decided & ~np.isfinite(reward))[0])
        raise ValueError(f"reply {where} is decided, but its reward is {reward[where]}")
    advantage = np.zeros(reward.shape)
    use = np.where(decided, TokenUse.TRAINED, TokenUse.UNDECIDED).astype(np.uint8)
    num_groups = num_zero_variance = num_single = 0
    for key in np.unique(group[decided]):
        rows = np.flatnonzero(decided & (group == key))
        num_groups += 1
        if len(rows) == 1:
            num_single += 1
            use[rows] = TokenUse.ZERO_ADVANTAGE
        elif reward[rows].std(ddof=1) < std_floor:
            num_zero_variance += 1
            use[rows] = TokenUse.ZERO_ADVANTAGE
        else:
            advantage[rows] = formula(reward[rows])
    return GroupAdvantages(advantage, use, num_groups, num_zero_variance, num_single)
