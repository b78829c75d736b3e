from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.core.config import nested_classes, walk_keys
from burnish.core.errors import ConfigError
from burnish.observe.run_folder import RunFolder
from burnish.train.recipe import GATE, Recipe, load_recipe
from burnish.train.recipe_stages import GrpoStage, SftStage

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(RECIPES.glob("*.yaml"))

MINIMAL = """\
name: mine
model:
  source: some/model
tasks:
  domains: [structured_extraction]
  train_labels: 64
stages:
  - kind: sft
    lr: 5e-5
  - kind: grpo
    lr: 1e-5
    steps: 10
    prompts_per_step: 12
    group_size: 8
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


def test_all_recipes_are_here() -> None:
    assert {path.stem for path in SHIPPED} >= {"quickstart", "evidence", "smoke"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_load_and_survive_the_run_folder(path: Path, tmp_path: Path) -> None:
    loaded = load_recipe(path)
    RunFolder.create(tmp_path / "run", loaded.resolved(), origins=loaded.origins).close()
    again = load_recipe(tmp_path / "run" / "config.yaml")
    assert again.recipe == loaded.recipe
    assert {key for key, origin in loaded.origins.items() if origin == "default"} < set(loaded.origins)
    assert f"name: {loaded.recipe.name}  # {path}:" in (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")


def test_quickstart_is_what_the_readme_promises() -> None:
    recipe = load_recipe(RECIPES / "quickstart.yaml").recipe
    assert recipe.tasks.domains == ("structured_extraction", "tool_call")
    assert (recipe.tasks.development, recipe.tasks.gate, recipe.tasks.final) == (200, 200, 200)
    assert [stage.kind for stage in recipe.stages] == ["sft", "grpo"]
    assert recipe.few_shot.candidates >= 8
    lines = (RECIPES / "quickstart.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 45


def test_evidence_is_three_seeds_with_a_control() -> None:
    recipe = load_recipe(RECIPES / "evidence.yaml").recipe
    assert recipe.seeds == (1, 2, 3)
    assert recipe.control == "continued_sft"
    assert (recipe.tasks.gate, recipe.tasks.final) == (600, 600)
    one = recipe.for_seed(2)
    assert (one.seed, one.seeds) == (2, ())
    assert one.model_dump(exclude={"seed", "seeds"}) == recipe.model_dump(exclude={"seed", "seeds"})


def test_a_recipe_from_python_is_the_same(minimal: Path) -> None:
    recipe = load_recipe(minimal).recipe
    assert load_recipe(recipe).recipe == recipe
    assert load_recipe(recipe, ["seed=7"]).recipe.seed == 7
    assert load_recipe(recipe.model_dump(exclude_unset=True)).recipe == recipe
    with pytest.raises(ConfigError, match="unknown key 'sede'") as caught:
        load_recipe({**recipe.model_dump(exclude_unset=True), "sede": 1})
    assert caught.value.where == "the recipe given from Python, sede"


def test_stages_are_typed(minimal: Path) -> None:
    sft, grpo = load_recipe(minimal).recipe.stages
    assert isinstance(sft, SftStage)
    assert isinstance(grpo, GrpoStage)
    assert grpo.updates_per_step == 1


def test_gate_asks_for_every_guard_of_the_recipe(minimal: Path) -> None:
    own = "guards=[response_length, {name: house, tasks: a.jsonl, verifier: exact, margin: 0.05}]"
    recipe = load_recipe(minimal, [own, "gate.confidence=0.9"]).recipe
    config = recipe.gate_config()
    assert config.required_guards == ("response_length", "house")
    assert (config.confidence, config.resamples) == (0.9, GATE.resamples)
    assert load_recipe(minimal).recipe.gate_config() == GATE


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["few_shot.candidates=0", "few_shot.shots=4"], "few_shot.shots", "few_shot.candidates=0"),
        (["stages.1.kl_estimator=k3"], "stages[1].kl_estimator", "kl_coefficient=0"),
        (
            ["stages.1.kl_estimator=k3", "stages.1.kl_coefficient=0"],
            "stages[1].kl_estimator",
            "kl_coefficient=0",
        ),
        (["stages.0.patience=3"], "stages[0].patience", "evaluate_every_steps=0"),
        (["tasks.verifier=exact"], "tasks.verifier", "no entry of tasks.domains is a file"),
        (["seeds=[1,2]", "seed=0"], "seed", "seeds"),
        (["tasks.curve=30"], "tasks.curve", "no stage has evaluate_every_steps"),
        (
            [
                "stages=[{kind: grpo, lr: 1e-5, steps: 1, prompts_per_step: 1, group_size: 2}]",
                "few_shot.candidates=0",
            ],
            "tasks.train_labels",
            "nothing reads a label",
        ),
        (
            ["stages=[{kind: sft, lr: 1e-5}]", "sampling.temperature=0", "sampling.top_k=20"],
            "sampling.top_k",
            "sampling.temperature=0",
        ),
    ],
)
def test_keys_without_effect_are_refused(minimal: Path, overrides: list[str], key: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        load_recipe(minimal, overrides)
    assert caught.value.what.startswith(f"{key}=")
    assert reason in caught.value.what
    assert key in caught.value.where


@pytest.mark.parametrize(
    ("overrides", "what", "fix"),
    [
        (["tasks.train_labels=0"], "tasks.train_labels=0 leaves stages[0] (sft)", "64 or more"),
        (
            ["tasks.train_labels=3", "stages.0.rows_per_step=1"],
            "tasks.train_labels=3 cannot fill",
            "few_shot.candidates to 0",
        ),
        (
            ["stages.0.rows_per_step=65"],
            "stages[0].rows_per_step=65 is more than the 64 labelled tasks",
            "at most 64",
        ),
        (["sampling.temperature=0"], "sampling.temperature=0 makes all replies of a group equal", "1.0"),
        (["stages.1.group_size=1"], "stages[1].group_size=1 is not at least 2", "at least 2"),
        (
            ["stages.1.warmup_steps=11"],
            "stages[1].warmup_steps=11 is more than the stage's 10 steps",
            "at most 10",
        ),
        (
            ["stages.1.max_prompt_draws=11"],
            "stages[1].max_prompt_draws=11 is less than prompts_per_step=12",
            "24",
        ),
        (
            ["tasks.development=30", "stages.0.evaluate_every_steps=4"],
            "tasks.curve=40 is more than the 30 development tasks",
            "at most 30",
        ),
        (
            ["tasks.domains=[mine.jsonl]"],
            "tasks.verifier is missing: mine.jsonl says no way",
            "name a verifier",
        ),
        (["tasks.domains=[a, b, a]"], "tasks.domains names a twice", "once"),
        (["guards=[perplexity]"], "guards[0]='perplexity' is no guard", "held_out_text_nll"),
        (
            ["guards=[response_length, response_length]"],
            "guards[1] names 'response_length' a second time",
            "once",
        ),
        (
            ["sampling.top_p=0.9", "stages.1.kl_coefficient=0.1"],
            "stages[1].kl_coefficient=0.1 compares whole distributions",
            "sampling.top_p to 1 and sampling.top_k to 0, or kl_coefficient to 0",
        ),
        (
            ["sampling.top_k=40", "stages.1.replay_rows=8"],
            "stages[1].replay_rows=8 compares whole distributions",
            "replay_rows to 0",
        ),
        (["seeds=[1, 1]"], "seeds=[1, 1] are not different numbers from 0", "once"),
        (
            ["control=continued_sft", "stages=[{kind: sft, lr: 1e-5}]"],
            "control='continued_sft' needs a grpo",
            "remove",
        ),
        (["stages=[]"], "stages=[] is not a list with an entry", "list"),
        (["name=a/b"], "name='a/b' is not text like", "text like"),
        (["model.lora.alpha=16"], "model.lora.rank is missing", "add rank"),
    ],
)
def test_keys_that_contradict_each_other(minimal: Path, overrides: list[str], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(minimal, overrides)
    assert caught.value.what.startswith(what)
    assert fix in caught.value.fix
    assert caught.value.where
    assert len(str(caught.value).splitlines()) == 3


def test_every_key_says_meaning_and_range() -> None:
    seen: list[type] = []

    def check(cls: type) -> None:
        for name, info in cls.model_fields.items():  # type: ignore[attr-defined]
            text = info.description or ""
            assert text.endswith("."), f"{cls.__name__}.{name} has no sentence"
            number = re.search(r"\b(int|float)\b", str(info.annotation))
            assert not number or any(c.isdigit() for c in text), f"{cls.__name__}.{name} names no sane range"
            for inner in nested_classes(info.annotation):
                if inner not in seen:
                    seen.append(inner)
                    check(inner)

    check(Recipe)
    assert len(seen) >= 10


def test_keys_stay_few() -> None:
    keys = list(walk_keys(Recipe))
    leaves = {key[-1] for key in keys if not any(other[: len(key)] == key and other != key for other in keys)}
    assert len(leaves) <= 58  # names a person can meet; each stage kind adds some


def test_loading_a_recipe_needs_no_torch(minimal: Path) -> None:
    code = (
        "import sys; from burnish.train import geometry, recipe;"
        f"geometry.derive_geometry(recipe.load_recipe({str(minimal)!r}).recipe);"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_group_is_sampled_together(minimal: Path) -> None:
    with pytest.raises(ConfigError, match="cannot sample the groups of stages\\[1\\] together") as caught:
        load_recipe(minimal, ["engine.max_sequences=7"])
    assert "8 or more" in caught.value.fix
    load_recipe(minimal, ["engine.max_sequences=8"])
