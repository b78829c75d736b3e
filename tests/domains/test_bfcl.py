"""The external check: rows by seed, whole schemas, gold that passes, never for training; absence is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.core.errors import DataError
from burnish.core.types import Split
from burnish.domains.base import check_gold
from burnish.domains.bfcl import Bfcl, NotAvailable, load_bfcl


def test_every_row_has_gold_that_passes(shared_data: Path) -> None:
    loaded = load_bfcl(shared_data / "bfcl", per_set=240)
    assert not isinstance(loaded, NotAvailable)
    assert len({e.task.id for e in loaded}) >= 470  # a few rows of the public sets are equal
    assert len({e.task.cluster for e in loaded}) == 480
    check_gold(loaded)


def test_the_choice_is_the_seeds(shared_data: Path) -> None:
    folder = shared_data / "bfcl"
    chosen = Bfcl(folder).generate(Split.FINAL, 200, 3)
    assert chosen == load_bfcl(folder, seed=3)
    assert chosen != load_bfcl(folder, seed=4)
    assert [e.task.tags for e in chosen] == [("call",)] * 100 + [("no_call",)] * 100
    for example in chosen[:20]:
        tools, request = example.task.prompt[0].text.split("\nRequest: ")
        (tool,) = tools.splitlines()[1:]
        assert json.loads(tool)["parameters"]["type"] == "object"
        assert request.endswith('{"name": "none", "arguments": {}}.')


def test_other_splits_and_odd_counts_are_refused(tmp_path: Path) -> None:
    for split in (Split.TRAIN, Split.DEVELOPMENT, Split.GATE):
        with pytest.raises(DataError, match="for the final evaluation only"):
            Bfcl(tmp_path).generate(split, 2, 0)
    with pytest.raises(DataError, match="odd"):
        Bfcl(tmp_path).generate(Split.FINAL, 3, 0)


def test_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = load_bfcl(tmp_path / "nowhere")
    assert isinstance(missing, NotAvailable)
    assert "nowhere" in missing.reason
    monkeypatch.setenv("BURNISH_SHARED_DATA", str(tmp_path))
    assert isinstance(load_bfcl(), NotAvailable)
    with pytest.raises(DataError, match="BURNISH_SHARED_DATA"):
        Bfcl().generate(Split.FINAL, 2, 0)
    monkeypatch.delenv("BURNISH_SHARED_DATA")
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_bfcl(), NotAvailable)


def write(folder: Path, calls: str, answers: str) -> Path:
    (folder / "possible_answer").mkdir()
    (folder / "simple_python.json").write_text(calls)
    (folder / "irrelevance.json").write_text("")
    (folder / "possible_answer" / "simple_python.json").write_text(answers)
    return folder


@pytest.mark.parametrize(
    ("calls", "answers", "per_set", "what"),
    [
        ("{", "", 0, "cannot read simple_python.json"),
        ('{"id": "a", "function": [], "question": [[]]}', "", 2, "has 1 rows, 2 wanted"),
        (
            '{"id": "a", "function": [], "question": [[]]}',
            '{"id": "a", "ground_truth": []}',
            1,
            "no single expected call",
        ),
    ],
)
def test_damaged_data_is_named(tmp_path: Path, calls: str, answers: str, per_set: int, what: str) -> None:
    with pytest.raises(DataError, match=what):
        load_bfcl(write(tmp_path, calls, answers), per_set=per_set)


def test_first_choices_of_nested_answers(tmp_path: Path) -> None:
    schema = '{"type": "dict", "properties": {"o": {"type": "dict"}, "n": {"type": "float"}}}'
    function = f'[{{"name": "f", "parameters": {schema}}}]'
    calls = f'{{"id": "a", "function": {function}, "question": [[{{"role": "user", "content": "Go"}}]]}}'
    answers = '{"id": "a", "ground_truth": [{"f": {"o": [{"x": [1, 2], "y": ["", 3]}], "n": [0.5], "z": ["", 1]}}]}'
    write(tmp_path, calls, answers)
    (tmp_path / "irrelevance.json").write_text(calls)
    loaded = load_bfcl(tmp_path, per_set=1)
    assert not isinstance(loaded, NotAvailable)
    assert json.loads(loaded[0].demonstration.text) == {"name": "f", "arguments": {"o": {"x": 1}, "n": 0.5}}
    assert '"type":"object"' in loaded[0].task.prompt[0].text
    assert '"type":"number"' in loaded[0].task.prompt[0].text
