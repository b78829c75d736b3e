"""What reinforcement learning rewards: the verifier's score, and partial credit where a recipe asks for it.

    reward = score + sum over named components of weight * component

Evaluations and gates never see a reward: they count what passes. A component lies in [0, 1] and is 1 in every
reply that passes, so partial credit ranks failures and leaves right answers on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from burnish.core.errors import ConfigError
from burnish.core.outcomes import OUTCOME_TABLE
from burnish.core.types import Trajectory


def reward_of(trajectory: Trajectory, partial_credit: Mapping[str, float]) -> float:
    """The reward; NaN where the outcome leaves the reward out (undecided). A component that is absent is 0."""
    verdict = trajectory.main
    if verdict is None or verdict.score is None or not OUTCOME_TABLE[verdict.ending].in_reward:
        return math.nan
    credit = math.fsum(weight * verdict.components.get(name, 0.0) for name, weight in partial_credit.items())
    return verdict.score + credit


def describe_reward(partial_credit: Mapping[str, float]) -> str:
    """The reward as a formula."""
    return " + ".join(["score", *(f"{weight:g} {name}" for name, weight in partial_credit.items())])


def require_components(partial_credit: Mapping[str, float], known: Iterable[str], *, where: str) -> None:
    """Every named component is one that some verifier of the run reports.

    Raises: ConfigError naming those that are.
    """
    names = sorted(known)
    for name in partial_credit:
        if name not in names:
            fix = f"write one of {', '.join(names)}" if names else "remove it: these verifiers report no components"
            raise ConfigError(f"{where}.{name}: no verifier of this run reports {name!r}", where=where, fix=fix)
