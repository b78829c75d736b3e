from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.outcomes import Outcome
from burnish.core.types import Artifacts, Split, TokenUse, Trajectory, Verdict
from burnish.domains.base import Example
from burnish.domains.registry import get_domain
from burnish.train.grpo import Draws, build_sequences, describe_grpo, rollout_metrics
from burnish.train.pipeline import dry_run
from burnish.train.recipe import load_recipe
from burnish.train.recipe_stages import GrpoStage
from burnish.train.reward import require_components, reward_of
from burnish.verify.registry import get_verifier
from burnish.verify.replies import reply_trajectory

STAGE = {"kind": "grpo", "lr": 1e-5, "steps": 1, "prompts_per_step": 1, "group_size": 3}


def stage(**keys: object) -> GrpoStage:
    return GrpoStage.model_validate(STAGE | keys)


@pytest.fixture(scope="module")
def example() -> Example:
    return get_domain("structured_extraction").generate(Split.TRAIN, 1, 0)[0]


def judged(example: Example, reply: str) -> Trajectory:
    trajectory = reply_trajectory(example.task, reply)
    verdict = asyncio.run(
        get_verifier(example.task.verifier).verify(example.task, example.gold, trajectory, Artifacts())
    )
    trajectory.verdicts["main"] = verdict
    return trajectory


def undecided(example: Example) -> Trajectory:
    trajectory = reply_trajectory(example.task, "?")
    trajectory.verdicts["main"] = Verdict(Outcome.UNDECIDED, None, "a fault", "v", "1", {"fields": 1.0})
    return trajectory


def test_partial_credit_ranks_failures_below_every_pass(example: Example) -> None:
    weights = {"keys": 0.5, "fields": 0.5}
    replies = ["no JSON", "{}", example.demonstration.text]
    nothing, parsed, right = (reward_of(judged(example, r), weights) for r in replies)
    assert nothing <= parsed < right == 2.0
    assert [reward_of(judged(example, r), {}) for r in replies] == [0.0, 0.0, 1.0]


def test_a_fault_has_no_reward_whatever_its_components(example: Example) -> None:
    assert math.isnan(reward_of(undecided(example), {"fields": 0.5}))


def test_an_absent_component_counts_as_nothing(example: Example) -> None:
    assert reward_of(judged(example, example.demonstration.text), {"arguments": 0.5}) == 1.0


def test_groups_that_only_partial_credit_tells_apart_are_trained_on(example: Example) -> None:
    group = [judged(example, "no JSON"), judged(example, "{}"), undecided(example)]
    for trajectory in group:
        trajectory.ids = np.array([5, 6], np.int32)
        trajectory.use = np.array([TokenUse.IS_PROMPT, TokenUse.TRAINED], np.uint8)
        trajectory.logp_rollout = np.array([np.nan, -1.0])
    credited = stage(partial_credit={"parsed": 0.25})
    plain, with_credit = Draws(), Draws(credited.partial_credit)
    for draws in (plain, with_credit):
        draws.add([group])
    assert (plain.useful, with_credit.useful) == ([], [0])
    metrics = rollout_metrics(with_credit, [], 1.0)
    assert metrics["reward_mean"] == pytest.approx(0.125)
    assert metrics["pass_rate"] == 0.0
    sequences, use = build_sequences([group], credited)
    assert [s.advantage for s in sequences] == pytest.approx([-0.125, 0.125])  # Dr. GRPO: reward less group mean
    assert use[2] is not TokenUse.TRAINED
    assert build_sequences([group], stage())[0] == []


def test_the_formula_says_what_is_rewarded() -> None:
    assert describe_grpo(stage(partial_credit={"fields": 0.5})).endswith("reward = score + 0.5 fields")
    assert "reward" not in describe_grpo(stage())


def test_a_component_that_nobody_reports_is_refused() -> None:
    require_components({"fields": 0.5}, {"fields", "keys"}, where="here")
    with pytest.raises(ConfigError, match="no verifier of this run reports 'field'") as caught:
        require_components({"field": 0.5}, {"fields", "keys"}, where="here")
    assert "fields, keys" in str(caught.value)
    with pytest.raises(ConfigError, match="report no components"):
        require_components({"fields": 0.5}, (), where="here")


def test_a_recipe_with_a_misspelt_component_stops_before_anything_runs(tiny_folder: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "smoke.yaml"
    overrides = [f"model.source={tiny_folder}", "stages.1.partial_credit={feilds: 0.5}"]
    with pytest.raises(ConfigError, match="feilds") as caught:
        dry_run(recipe, overrides)
    assert "stages[1].partial_credit" in caught.value.where


@pytest.mark.parametrize("value", ["{fields: -0.5}", "{fields: much}", "[fields]", "0.5"])
def test_weights_are_positive_numbers_by_name(value: str) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "smoke.yaml"
    with pytest.raises(ConfigError, match=r"partial_credit") as caught:
        load_recipe(recipe, [f"stages.1.partial_credit={value}"])
    assert len(str(caught.value).splitlines()) == 3
