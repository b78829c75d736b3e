from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.core.errors import ConfigError
from burnish.core.outcomes import Outcome
from burnish.core.types import Verdict
from burnish.verify.cases import run_cases
from burnish.verify.registry import ENTRY_POINT_GROUP, VERIFIERS, get_verifier, verifier_names

_FILE = """
from burnish.core.protocols import VerifierCase

LIMIT = {limit}

def close(a, b):
    return abs(a - b) <= LIMIT{extra}

def near(reply, gold):
    return 1.0 if close(float(reply), gold) else 0.0

def other(reply, gold):
    return 0.0

class Mine:
    name, version, cases = "mine", "3", ()
    async def verify(self, task, gold, trajectory, artifacts):
        raise NotImplementedError

class Needy(Mine):
    def __init__(self, setting):
        pass

CASES = [VerifierCase(1.0, "1.05", "pass", "must_pass"), VerifierCase(1.0, "2", "fail")]
number = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[..., str]:
    def write(limit: float = 0.1, extra: str = "", name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(_FILE.format(limit=limit, extra=extra), "utf-8")
        return str(path)

    return write


def test_names_give_verifiers_of_that_name() -> None:
    assert set(VERIFIERS) <= set(verifier_names())
    for name in VERIFIERS:
        assert get_verifier(name).name == name
    assert get_verifier("burnish.verify.exact:Exact").name == "exact"


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        get_verifier("tool_cal")
    assert "did you mean 'tool_call'?" in caught.value.what
    assert all(name in caught.value.fix for name in VERIFIERS)


def test_a_function_in_a_file(user_file: Callable[..., str], judge: Callable[..., Verdict]) -> None:
    verifier = get_verifier(f"{user_file()}:near")
    assert verifier.name == "near"
    assert judge(verifier, 1.0, "1.05").outcome is Outcome.PASS
    assert judge(verifier, 1.0, "1.5").outcome is Outcome.FAIL
    assert run_cases(verifier).ok
    assert get_verifier(f"{user_file()}:Mine").name == "mine"


def test_the_version_follows_what_the_function_uses(user_file: Callable[..., str]) -> None:
    base = get_verifier(f"{user_file(name='a.py')}:near").version
    assert get_verifier(f"{user_file(name='b.py')}:near").version == base
    assert get_verifier(f"{user_file(limit=0.2, name='c.py')}:near").version != base
    assert get_verifier(f"{user_file(extra=' * 2', name='d.py')}:near").version != base
    others = {
        get_verifier(f"{user_file(limit=0.1, name='e.py')}:other").version,
        get_verifier(f"{user_file(limit=0.2, name='f.py')}:other").version,
    }
    assert len(others) == 1


_TABLES = """
import re
WORDS = {{"one", "two", "three", "four", "five", "six"}}
LONG = re.compile("{long}")
def check_a(reply, gold): return {inner}
CHECKS = {{"a": check_a, "b": [lambda reply, gold: 1.0]}}
def table(reply, gold):
    return CHECKS["a"](reply, gold) if reply in WORDS or LONG.match(reply) else 0.0
def make(bound):
    def closed(reply, gold):
        return float(reply) < bound
    return closed
closed = make({bound})
"""


def test_the_version_follows_tables_long_patterns_and_closures_alone(tmp_path: Path) -> None:
    """In processes of their own, whose sets have their own order and functions their own addresses."""

    def version(function: str, **changed: object) -> str:
        values = {"long": "x" * 300 + "a", "inner": 0.5, "bound": 3} | changed
        (tmp_path / "mine.py").write_text(_TABLES.format(**values), "utf-8")
        script = f"from burnish.verify.registry import get_verifier; print(get_verifier('mine.py:{function}').version)"
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    assert version("table") == version("table") == version("table", bound=4)
    assert len({version("table"), version("table", inner=0.6), version("table", long="x" * 300 + "b")}) == 3
    assert version("closed") == version("closed", inner=0.6) != version("closed", bound=4)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("neer", "did you mean 'near'"),
        ("number", "neither a verifier nor a function"),
        ("Needy", "without arguments"),
        ("close.x", "has no"),
    ],
)
def test_what_is_no_verifier(user_file: Callable[..., str], attribute: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier(f"{user_file()}:{attribute}")


@pytest.mark.parametrize("source", ["def (", "1 / 0", "import no_such_package", "raise KeyError('x')"])
def test_a_file_that_does_not_load_is_named(tmp_path: Path, source: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source, "utf-8")
    with pytest.raises(ConfigError, match="cannot load") as caught:
        get_verifier(f"{path}:f")
    assert str(path) in caught.value.where


@pytest.mark.parametrize("spec", ["no/such/file.py:f", "no_such_module_zq:f", "", ":", "x:", ":f"])
def test_specs_that_lead_nowhere(spec: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_verifier(spec)
    assert caught.value.fix


def test_entry_points_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nadded = added_zq:right\n", "utf-8")
    (tmp_path / "added_zq.py").write_text("def right(reply, gold):\n    return reply == gold\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert "added" in verifier_names()
    assert get_verifier("added").name == "right"


def test_a_verifier_in_a_running_loop_can_be_loaded() -> None:
    async def load() -> str:
        return get_verifier("numeric").name

    assert asyncio.run(load()) == "numeric"
