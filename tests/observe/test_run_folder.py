from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from burnish.core.errors import ResourceError
from burnish.observe.events import StageSkipped, Warning_
from burnish.observe.run_folder import RunFolder, _to_yaml, in_use, is_run_folder

CONFIG: dict[str, Any] = {
    "name": "demo",
    "seed": 0,
    "stages": [{"kind": "sft", "lr": 5e-5, "stop": []}, {"kind": "rl", "lr": 1e-5, "stop": ["\n\n", "yes"]}],
    "hub": {"token": "abc"},
}
ORIGINS = {
    "seed": "default",
    "stages.1.lr": "--set",
    "stages.0.stop": "demo.yaml:7",
    "stages.1.stop.1": "demo.yaml:9",
}

HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from burnish.observe.run_folder import RunFolder\n"
    "folder = RunFolder.create(Path(sys.argv[1]), {'a': 1}, name='held')\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


def test_a_new_run_has_its_layout_and_its_config_with_origins(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run", CONFIG, name="demo", origins=ORIGINS) as run:
        assert sorted(p.name for p in run.path.iterdir() if not p.name.startswith(".")) == [
            "checkpoints", "config.yaml", "evals", "events.jsonl", "report", "run.json", "trajectories",
        ]  # fmt: skip
        text = (run.path / "config.yaml").read_text("utf-8")
    lines = text.splitlines()
    assert next(line for line in lines if "seed" in line).endswith("# default")
    assert any("1e-05" in line and line.endswith("# --set") for line in lines)
    assert any("stop: []" in line and line.endswith("# demo.yaml:7") for line in lines)
    assert any("yes" in line and line.endswith("# demo.yaml:9") for line in lines)
    assert "abc" not in text


def test_config_and_origins_come_back(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG, name="demo", origins=ORIGINS, run_id="r-1") as run:
        expected = {**CONFIG, "hub": {"token": "<redacted>"}}
        assert run.config() == expected
    again = RunFolder.open(tmp_path / "run")
    assert (again.run_id, again.name, again.origins, again.config()) == ("r-1", "demo", ORIGINS, expected)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
_CONFIGS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.recursive(
        _LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def _leaf_keys(value: Any, key: str = "") -> list[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for name, item in items for leaf in _leaf_keys(item, f"{key}.{name}" if key else str(name))]
    return found or [key]


@settings(deadline=None, max_examples=60)
@given(_CONFIGS, st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30))
@example({"a": "\x85", "b": ["\u2028 x", "\n\n", "# no comment", "1e5", "yes", "~"]}, "here: # there")
def test_any_config_survives_yaml_whatever_its_origins(config: dict[str, Any], origin: str) -> None:
    data = _to_yaml(config, dict.fromkeys(_leaf_keys(config), origin))
    assert YAML(typ="safe", pure=True).load(data) == config


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ResourceError, match=r"not empty: thesis\.tex") as caught:
        RunFolder.create(tmp_path, CONFIG)
    assert caught.value.where == str(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_second_run_in_a_finished_run_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", CONFIG, run_id="first").close()
    with pytest.raises(ResourceError, match="already holds a run") as caught:
        RunFolder.create(tmp_path / "run", CONFIG)
    assert "--resume" in caught.value.fix
    assert RunFolder.open(tmp_path / "run").run_id == "first"


def test_a_file_in_place_of_the_folder_or_above_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ResourceError) as caught:
            RunFolder.create(path, CONFIG)
        assert caught.value.where == str(path)
        assert caught.value.exit_code == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_two_runs_in_one_folder_are_refused_while_reading_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, CONFIG) as run:
        run.events.append(Warning_("here"))
        assert in_use(path)
        with pytest.raises(ResourceError, match=f"another run is using the folder: process {os.getpid()} on"):
            RunFolder.resume(path)
        reader = RunFolder.open(path)
        assert reader.read_events().events == (Warning_("here"),)
        with pytest.raises(ResourceError, match="open for reading"):
            _ = reader.events
    assert not in_use(path)


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert in_use(path)
        with pytest.raises(ResourceError, match=f"process {process.pid} on"):
            RunFolder.resume(path)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    deadline = time.monotonic() + 10
    while in_use(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    with RunFolder.resume(path) as run:
        assert run.name == "held"


def test_resume_goes_on_with_the_log(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        run.events.append(StageSkipped("sft", "x"))
    with RunFolder.resume(tmp_path / "run") as run:
        record = run.events.append(StageSkipped("rl", "y"))
    assert record.seq == 1


@pytest.mark.parametrize("method", [RunFolder.open, RunFolder.resume])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, method: Any) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        assert not is_run_folder(path)
        assert not in_use(path)
        with pytest.raises(ResourceError, match="not a run folder"):
            method(path)
    assert os.listdir(tmp_path) == []
