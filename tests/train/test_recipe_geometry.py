from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.errors import ResourceError
from burnish.train.geometry import (
    GIB,
    MICRO_BATCH_TOKENS,
    MachineRates,
    ModelSize,
    TokenLengths,
    derive_geometry,
    dry_run_text,
    estimate_bytes,
    estimate_seconds,
    require_fit,
)
from burnish.train.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
RATES = MachineRates(100, 1_000, 50)
SIZE = ModelSize(10**8, kv_bytes_per_token=10_000, activation_bytes_per_token=10**5)
LENGTHS = TokenLengths(prompt=140, example=50, reply=30, shared=40)


def recipe_with(**grpo: object) -> Recipe:
    return load_recipe(
        {
            "name": "r",
            "model": {"source": "m"},
            "tasks": {"domains": ["a", "b"], "gate": 50, "final": 70},
            "few_shot": {"candidates": 0},
            "sampling": {"max_tokens": 64},
            "guards": [],
            "stages": [{"kind": "grpo", "lr": 1e-5, "steps": 3, "prompts_per_step": 12, "group_size": 8, **grpo}],
        }
    ).recipe


def test_counts_of_a_small_run_by_hand() -> None:
    geometry = derive_geometry(recipe_with(), LENGTHS)
    baseline, grpo, gate, final = geometry.phases
    assert [phase.num_replies for phase in geometry.phases] == [2 * 50, 3 * 96, 2 * 50, 2 * 70 * 2]
    assert baseline.prefill_tokens == gate.prefill_tokens == 100 * 100
    assert grpo.prefill_tokens == 3 * 12 * 100  # a group's prompt once
    assert grpo.sampled_tokens == 3 * 96 * 30
    assert grpo.trained_tokens == 3 * 12 * (140 + 8 * 30)
    assert final.sampled_tokens == 280 * 30
    micro_batches = math.ceil(12 * 380 / MICRO_BATCH_TOKENS)
    assert grpo.text.startswith(f"12 prompts x 8 samples -> 96 rollouts -> {micro_batches} micro-batches, 3 steps")


def test_drawing_more_prompts_samples_more_and_trains_the_same() -> None:
    plain = derive_geometry(recipe_with(), LENGTHS).phases[1]
    drawn = derive_geometry(recipe_with(max_prompt_draws=24), LENGTHS).phases[1]
    assert drawn.sampled_tokens == 2 * plain.sampled_tokens
    assert drawn.trained_tokens == plain.trained_tokens
    assert "at most 24 prompts drawn" in drawn.text


def test_replies_are_never_counted_longer_than_they_may_be() -> None:
    geometry = derive_geometry(recipe_with(), TokenLengths(reply=500))
    assert geometry.phases[1].sampled_tokens == 3 * 96 * 64


@given(steps=st.integers(1, 50), prompts=st.integers(1, 50), group=st.integers(2, 16), updates=st.integers(1, 4))
def test_time_grows_with_work(steps: int, prompts: int, group: int, updates: int) -> None:
    recipe = recipe_with(steps=steps, prompts_per_step=prompts, group_size=group, updates_per_step=updates)
    more = recipe_with(steps=steps + 1, prompts_per_step=prompts, group_size=group, updates_per_step=updates)
    needed, needed_more = (sum(estimate_seconds(derive_geometry(r, LENGTHS), RATES).values()) for r in (recipe, more))
    step_s = prompts * (100 / 1_000 + group * 30 / 100 + updates * (140 + group * 30) / 50)
    assert needed_more - needed == pytest.approx(step_s)


def test_memory_of_full_training_adapters_and_a_reference() -> None:
    geometry = derive_geometry(recipe_with(), LENGTHS)
    full = estimate_bytes(geometry, SIZE)
    assert full["weights"] == full["gradients"] == 4e8
    assert full["optimiser"] == 8e8
    adapters = estimate_bytes(geometry, replace(SIZE, trainable_frac=0.01))
    assert adapters["optimiser"] == pytest.approx(8e6)
    assert adapters["weights"] == 4e8
    with_reference = derive_geometry(recipe_with(kl_coefficient=0.01), LENGTHS)
    assert estimate_bytes(with_reference, SIZE)["weights"] == 8e8


def test_a_run_that_does_not_fit_is_refused_with_both_numbers() -> None:
    recipe = recipe_with()
    needed = estimate_bytes(derive_geometry(recipe, LENGTHS), SIZE)
    require_fit(recipe, needed, sum(needed.values()), where="r.yaml")
    with pytest.raises(ResourceError, match=r"needs about 3\.\d GiB of memory and may use 1\.0") as caught:
        require_fit(recipe, needed, GIB, where="r.yaml")
    assert caught.value.exit_code == 2
    limited = load_recipe(recipe, ["engine.memory_gib=0.5"]).recipe
    with pytest.raises(ResourceError, match=r"may use 0\.5"):
        require_fit(limited, needed, 100 * GIB, where="r.yaml")


def test_control_takes_the_time_of_the_stage_it_is_held_against() -> None:
    recipe = load_recipe(RECIPES / "evidence.yaml").recipe
    geometry = derive_geometry(recipe)
    needed = estimate_seconds(geometry, RATES)
    assert needed["control"] == needed["stages[1] grpo"]
    assert "continued_sft for the wall time of stages[1] grpo" in dry_run_text(recipe, geometry, needed)


def test_dry_run_of_the_quick_start() -> None:
    recipe = load_recipe(RECIPES / "quickstart.yaml").recipe
    geometry = derive_geometry(recipe)
    text = dry_run_text(recipe, geometry, estimate_seconds(geometry, RATES), estimate_bytes(geometry, SIZE))
    assert "16 prompts x 8 samples -> 128 rollouts -> 6 micro-batches" in text
    assert "144 rows (48 replayed) x 2 epochs in steps of 20 -> 14 steps" in text
    assert "time   about" in text
    assert "memory about" in text
