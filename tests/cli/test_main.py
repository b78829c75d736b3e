from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from burnish import __version__
from burnish.cli.main import VERBS
from burnish.core.errors import BurnishError, GateRefusedError, PolicyMismatchError

from .conftest import Burnish, checked

COMMAND = [sys.executable, "-c", "import sys; from burnish.cli.main import main; sys.exit(main())"]
ALL = "init run eval gate compare promote rollback runs lineage chat preflight verify check rescore doctor report clean"


def test_help_has_one_line_for_each_verb(burnish: Burnish) -> None:
    assert list(VERBS) == ALL.split()
    answer = burnish("--help")
    assert answer.code == 0
    for verb, line in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(line)}$", answer.out, re.MULTILINE), verb
    assert burnish().out == answer.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_few_flags(burnish: Burnish, verb: str) -> None:
    answer = burnish(verb, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: burnish {verb} ")
    command = importlib.import_module(f"burnish.cli.{verb}").command
    flags = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert len(flags) <= 6
    assert verb == "chat" or any("--json" in flag.opts for flag in flags)


def test_version(burnish: Burnish) -> None:
    assert burnish("--version").out == f"burnish, version {__version__}\n"


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    heavy = ("torch", "transformers", "pydantic", "sqlalchemy", "numpy", "rich", "ruamel")
    code = (
        "import sys; sys.argv = ['burnish', '--help']; from burnish.cli.main import main; main();"
        f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.3, statistics.median(seconds)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["rnu"], "No such command 'rnu'"),
        (["run", "--nope"], "No such option"),
        (["run"], "no recipe given"),
        (["run", "--resume"], "--resume without --out"),
        (["gate", "x"], "Missing option '--parent'"),
        (["check", "weather"], "Invalid value"),
        (["eval", "m", "--recipe", "r", "--samples", "0"], "Invalid value for '--samples'"),
    ],
)
def test_wrong_command_lines_exit_2_in_three_lines(burnish: Burnish, args: list[str], what: str) -> None:
    answer = burnish(*args)
    assert answer.code == 2
    assert answer.error[0].startswith(what)
    assert answer.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PolicyMismatchError("sampler is at version 3", where="step 4", fix="report it"), 1),
        (GateRefusedError("not better", where="gate", fix="train more"), 3),
    ],
)
def test_errors_of_the_run_keep_their_exit_code(
    burnish: Burnish, monkeypatch: pytest.MonkeyPatch, error: BurnishError, code: int
) -> None:
    def refuse(run: str) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "burnish.evals.report", SimpleNamespace(rebuild_report=refuse))
    answer = burnish("report", ".")
    assert answer.code == code
    assert answer.err == f"{error}\n"
    as_json = burnish("report", ".", "--json")
    assert (as_json.code, as_json.out) == (code, "")
    assert checked(as_json.err) == {"schema": "burnish/error/1", **error.to_json()}


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    environment = os.environ | {"BURNISH_REGISTRY": str(tmp_path / "r.sqlite")}
    shell = f"{sys.executable} -m burnish.cli.main check verifier exact | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


CRASH = """
import sys
from types import SimpleNamespace
def crash(run): raise ZeroDivisionError("token hf_abcdefghijklmnopqrstuvwxyz0123456789")
sys.modules["burnish.evals.report"] = SimpleNamespace(rebuild_report=crash)
sys.argv = ["burnish", "report", "."]
from burnish.cli.main import main
sys.exit(main())
"""


def test_what_no_one_foresaw_leaves_one_line_and_a_file(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    environment.pop("BURNISH_DEBUG", None)
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    [crash_file] = tmp_path.glob("burnish-crash-*.txt")
    assert done.stderr.splitlines()[-1].endswith(f"the traceback is in {crash_file}")
    assert len(done.stderr.splitlines()) == 1
    written = crash_file.read_text(encoding="utf-8")
    assert "ZeroDivisionError" in written
    assert "Traceback" in written
    assert "hf_abcdefghijklmnopqrstuvwxyz0123456789" not in written + done.stderr
    debug = environment | {"BURNISH_DEBUG": "1"}
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, env=debug, check=False)
    assert "Traceback" in done.stderr


def test_json_on_stdout_is_one_line(burnish: Burnish) -> None:
    answer = burnish("runs", "--json")
    assert answer.out.count("\n") == 1
    assert json.loads(answer.out)["schema"] == "burnish/runs/1"
