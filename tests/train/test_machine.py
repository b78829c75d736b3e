"""Sizes and rates of a model on this machine. How fast it is nobody can assert; that each part is timed, one can."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from burnish.models.load import load_transformers
from burnish.train import machine
from burnish.train.machine import measure_rates, measure_size, recipe_rates
from burnish.train.recipe import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "smoke.yaml"


def test_size_of_a_model_is_that_of_its_folder(tiny_folder: Path) -> None:
    recipe = load_recipe(RECIPE, [f"model.source={tiny_folder}", "model.dtype=float32"]).recipe
    size = measure_size(tiny_folder, recipe)
    model = load_transformers(tiny_folder)
    assert size.params == sum(p.numel() for p in model.parameters())
    assert size.trainable_frac == 1.0
    adapters = load_recipe(recipe, ["model.lora.rank=4"]).recipe
    assert 0 < measure_size(tiny_folder, adapters).trainable_frac < 1


def test_what_a_layer_adds_counts_for_every_layer(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AutoConfig.from_pretrained(tiny_folder)
    config.num_hidden_layers = 11
    base, layer = torch.tensor([3.0, 1.0, 5.0]).numpy(), torch.tensor([0.5, 0.0, 2.0]).numpy()
    monkeypatch.setattr(machine, "_token_seconds", lambda model, *_: base + layer * model.config.num_hidden_layers)
    rates = measure_rates(config, torch.float32, autocast=False)
    assert astuple(rates) == pytest.approx((machine.FULL_SHARE / 8.5, 1.0, 1 / 27.0))


@pytest.mark.parametrize("lora", [[], ["model.lora.rank=4"]])
def test_rates_are_measured_without_a_trace(tiny_folder: Path, lora: list[str]) -> None:
    recipe = load_recipe(RECIPE, [f"model.source={tiny_folder}", *lora]).recipe
    before = torch.random.get_rng_state()
    rates = recipe_rates(tiny_folder, recipe)
    assert all(0 < rate < float("inf") for rate in astuple(rates))
    assert torch.equal(torch.random.get_rng_state(), before)
