"""What is wrong with a recipe or a file: exit code 2, three lines, no traceback, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from .conftest import Burnish, checked

GOOD = """\
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

CASES = {
    "misspelt key": (
        GOOD.replace("group_size", "groupsize").encode(),
        "unknown key 'groupsize' in stages[1] (and 1 more: stages[1].group_size)",
        ":14, stages[1].groupsize",
        "write group_size",
    ),
    "wrong type": (
        GOOD.replace("group_size: 8", "group_size: eight").encode(),
        "stages[1].group_size='eight' is not an integer",
        ":14, stages[1].group_size",
        "give an integer: Replies to each prompt",
    ),
    "key without effect": (
        (GOOD + "    kl_coefficient: 0\n    kl_estimator: k3\n").encode(),
        "stages[1].kl_estimator='k3' has no effect: kl_coefficient=0 leaves the divergence out of the loss",
        ":16, stages[1].kl_estimator",
        "remove kl_estimator, or change what makes it idle",
    ),
    "duplicate key": (
        (GOOD + "name: again\n").encode(),
        "the key 'name' is written twice",
        ":15",
        "keep one of the two",
    ),
    "not UTF-8": (
        GOOD.replace("mine", "m\xe9ine").encode("latin-1"),
        "byte 0xe9 is not UTF-8",
        ":1",
        "save the file as UTF-8",
    ),
    "empty file": (b"", "the file holds no keys", "", "write a recipe; burnish init makes one"),
    "no mapping": (b"- a\n", "a recipe is a mapping of keys to values, not a list", ":1", "write key: value"),
    "no YAML": (b"name: [\n", "not YAML: ", ":2", "mend the line"),
}


@pytest.fixture(autouse=True)
def pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real loading of recipes with nothing behind it, so that no test here needs a model."""
    from burnish.train.recipe import load_recipe

    def load(recipe: Path, overrides: tuple[str, ...] = (), **_: object) -> None:
        load_recipe(recipe, overrides)
        pytest.fail("the recipe was accepted")

    fake = SimpleNamespace(run=load, dry_run=load)
    monkeypatch.setitem(sys.modules, "burnish.train.pipeline", fake)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--out", "OUT"]], ids=["run", "dry-run", "out"])
def test_a_bad_recipe(
    burnish: Burnish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content, what, where, fix = CASES[case]
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    answer = burnish("run", path, *flags)
    assert answer.code == 2
    lines = answer.error
    assert lines[0].startswith(what)
    assert lines[1] == f"  where: {path}{where}"
    assert lines[2] == f"  fix:   {fix}"
    assert answer.out == ""
    assert sorted(tmp_path.rglob("*")) == before
    assert path.read_bytes() == content


def test_a_bad_recipe_as_json(burnish: Burnish, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(CASES["wrong type"][0])
    answer = burnish("run", path, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert checked(answer.err) == {
        "schema": "burnish/error/1",
        "error": "ConfigError",
        "what": CASES["wrong type"][1],
        "where": f"{path}{CASES['wrong type'][2]}",
        "fix": CASES["wrong type"][3],
        "exit_code": 2,
    }


def test_a_bad_override_names_itself(burnish: Burnish, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD, encoding="utf-8")
    answer = burnish("run", path, "--set", "stages.1.lr=fast")
    assert answer.code == 2
    assert answer.error == [
        "stages[1].lr='fast' is not a number",
        "  where: --set stages.1.lr=fast, stages[1].lr",
        "  fix:   give a number: Peak learning rate",
    ]


def test_missing_recipe(burnish: Burnish, tmp_path: Path) -> None:
    answer = burnish("run", tmp_path / "nowhere.yaml")
    assert answer.code == 2
    assert answer.error[0] == f"there is no file {tmp_path / 'nowhere.yaml'}"


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (b"", "the file is empty", ""),
        (b'{"gold": 1, "reply": "1"}\n{"reply": "1"}\n', "the row has no `gold`", ":2"),
        (b'{"gold": 1}\n', "the row has no `reply` text", ":1"),
        (b'{"gold": 1, "reply": "caf\xe9"}\n', "not UTF-8", ":1"),
        (b"{]\n", "the row is not", ":1"),
    ],
)
def test_bad_files_of_replies(burnish: Burnish, tmp_path: Path, content: bytes, what: str, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    answer = burnish("verify", "numeric", path)
    assert answer.code == 2
    assert answer.error[0].startswith(what)
    assert answer.error[1] == f"  where: {path}{line}"
    assert answer.out == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"prompt": "1 + 1", "answer": "2"}\n{"prompt": "2 + 2"}\n', ":2"),
        (b"", ""),
        (b'{"prompt": "\xe9"}\n', ":1"),
    ],
)
def test_bad_rows_to_train_on(burnish: Burnish, tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    answer = burnish("preflight", path, "--model", tmp_path)
    assert answer.code == 2
    assert answer.error[1].startswith(f"  where: {path}{line}")


def test_verifiers_that_do_not_exist(burnish: Burnish, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"gold": 1, "reply": "1"}\n')
    assert burnish("verify", "exakt", path).error[0] == "unknown verifier 'exakt'; did you mean 'exact'?"
    assert burnish("check", "verifier", "exakt").code == 2
    assert burnish("check", "domain", "tool_cal").error[0] == "unknown domain 'tool_cal'"
    assert burnish("verify", "exact", path, "--deadline", "0").error[0] == "--deadline 0.0 is not above 0"
