"""What `burnish eval` and `burnish gate` do, on a tiny model: the parts behind them are real."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from burnish.core.codec import decode
from burnish.core.errors import ConfigError
from burnish.core.types import Decision, Split
from burnish.evals.report_data import ReportData
from burnish.evals.results import SuiteResult
from burnish.evals.suite import Suite, SuiteRunner
from burnish.registry.registry import Registry
from burnish.train.pipeline import run
from burnish.train.prepare import prepare
from burnish.train.recipe import load_recipe
from burnish.train.session import final_digests
from burnish.train.verbs import evaluate, gate_checkpoints, why_not_recorded

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
    evaluate(str(tiny_folder), RECIPE, overrides=overrides, split="final")
    assert looks(overrides) == {"toy": 1}


def test_looks_at_other_models_are_other_looks(tiny_folder: Path, overrides: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    for model in (tiny_folder, other):
        evaluate(str(model), RECIPE, overrides=overrides, split="final")
    assert looks(overrides) == {"toy": 2}


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


def test_a_gate_outside_a_run_chooses_the_prompt_that_a_run_would(
    tiny_folder: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy domain's second candidate is made the best; without a choice it would be the first."""
    rates = {"plain": 0.0, "few_shot:toy-0": 0.1, "few_shot:toy-1": 0.6}
    asked: list[tuple[str, str, int]] = []
    real = SuiteRunner.run

    async def counted(self: SuiteRunner, suite: Suite, *args: Any, prompt: str = "plain", **given: Any) -> Any:
        asked.append((str(suite.split), prompt, len(suite.items)))
        return await real(self, suite, *args, prompt=prompt, **given)

    def of_prompt(result: SuiteResult) -> float:
        return rates[result.prompt]

    monkeypatch.setattr(SuiteRunner, "run", counted)
    monkeypatch.setattr("burnish.train.few_shot.mean_pass_rate", of_prompt)
    gate_checkpoints(str(tiny_folder), str(tiny_folder), RECIPE, overrides=overrides)
    assert {prompt for split, prompt, _ in asked if split == "development"} == set(rates)
    assert [prompt for split, prompt, _ in asked if split == "gate"] == ["plain", "plain", "few_shot:toy-1"]


def test_only_what_the_runs_own_gate_would_say_is_written_down(
    tiny_folder: Path, overrides: list[str], tmp_path: Path
) -> None:
    sft = "stages=[{kind: sft, epochs: 1, lr: 1e-3, rows_per_step: 8, evaluate_every_steps: 2}]"
    changed = [*overrides, "seeds=[3, 4]", sft]
    run(RECIPE, overrides=changed, out=tmp_path / "out")
    report = json.loads((tmp_path / "out" / "seed-3" / "report" / "report.json").read_text("utf-8"))
    said = decode(ReportData, report).stages[0].gate
    assert said is not None
    assert said.decision is Decision.INCONCLUSIVE
    assert why_not_recorded(said, RECIPE, changed) == ""
    assert why_not_recorded(said, tmp_path / "out" / "seed-3" / "config.yaml") == ""
    lenient = why_not_recorded(said, RECIPE, [*changed, "gate.confidence=0.6"])
    assert "under another recipe: gate with" in lenient
    assert "on the development set" in why_not_recorded(replace(said, split=Split.DEVELOPMENT), RECIPE, changed)
    assert "its parent on record is" in why_not_recorded(replace(said, parent_digest="0" * 32), RECIPE, changed)
    assert why_not_recorded(replace(said, decision=Decision.REJECT, split=Split.FINAL), RECIPE) == ""
    assert "no run registered" in why_not_recorded(replace(said, candidate_digest="0" * 32), RECIPE, changed)


def test_no_gate_reads_an_external_check(tiny_folder: Path, overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="no set 'bfcl'"):
        gate_checkpoints(str(tiny_folder), str(tiny_folder), RECIPE, overrides=overrides, split="bfcl")
