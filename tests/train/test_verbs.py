"""What `burnish eval` and `burnish gate` do, on a tiny model: the parts behind them are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.core.errors import ConfigError
from burnish.core.types import Decision, Split
from burnish.registry.registry import Registry
from burnish.train.prepare import prepare
from burnish.train.recipe import load_recipe
from burnish.train.session import final_digests
from burnish.train.verbs import evaluate, gate_checkpoints

RECIPE = Path(__file__).parents[2] / "recipes" / "smoke.yaml"
DOMAINS = "tasks.domains=['toy_domain:Toy']"


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_REGISTRY", str(tmp_path / "registry.sqlite"))


@pytest.fixture
def overrides(tiny_folder: Path) -> list[str]:
    return [f"model.source={tiny_folder}", DOMAINS]


def looks(overrides: list[str]) -> dict[str, int]:
    """How many others have opened the recipe's final set, seen by one who opens it now."""
    sets = prepare(load_recipe(RECIPE, overrides).recipe, RECIPE.parent).sets
    registry = Registry()
    return {
        domain: registry.open_final_set(digest, domain=domain, by="a test", models=["m"])
        for domain, digest in final_digests(sets.final).items()
    }


def test_evaluate_is_greedy_unless_more_replies_are_asked_for(tiny_folder: Path, overrides: list[str]) -> None:
    told: list[tuple[str, int, int]] = []
    result, kept = evaluate(
        str(tiny_folder), RECIPE, overrides=overrides, keep=2, on_progress=lambda *seen: told.append(seen)
    )
    assert result.split is Split.DEVELOPMENT
    assert len(result.records) == 8
    assert len(kept) == 2
    assert told[-1] == ("evaluating", 8, 8)
    again, _ = evaluate(str(tiny_folder), RECIPE, overrides=overrides)
    assert again.records == result.records
    sampled, _ = evaluate(str(tiny_folder), RECIPE, overrides=overrides, num_samples=3)
    assert sampled.sampling != result.sampling
    assert {len(record.outcomes) for record in sampled.records} == {3}
    assert looks(overrides) == {"toy": 0}


def test_a_look_at_the_final_set_is_counted(tiny_folder: Path, overrides: list[str]) -> None:
    result, _ = evaluate(str(tiny_folder), RECIPE, overrides=overrides, split="final")
    assert result.split is Split.FINAL
    assert looks(overrides) == {"toy": 1}


@pytest.mark.parametrize(("split", "says"), [("test", "no set 'test'"), ("train", "no set"), ("bfcl", "left out")])
def test_a_set_that_is_not_there(tiny_folder: Path, overrides: list[str], split: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        evaluate(str(tiny_folder), RECIPE, overrides=overrides, split=split)
    assert caught.value.where == "--split"
    assert caught.value.fix


def test_a_model_is_not_above_itself(tiny_folder: Path, overrides: list[str]) -> None:
    found = gate_checkpoints(str(tiny_folder), str(tiny_folder), RECIPE, overrides=overrides)
    assert found.decision is not Decision.PROMOTE
    assert found.reasons
    assert looks(overrides) == {"toy": 0}


def test_no_gate_reads_an_external_check(tiny_folder: Path, overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="no set 'bfcl'"):
        gate_checkpoints(str(tiny_folder), str(tiny_folder), RECIPE, overrides=overrides, split="bfcl")
