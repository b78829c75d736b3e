from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from burnish.cli.main import VERBS
from burnish.cli.schemas import outputs

ROOT = Path(__file__).parents[2]


def test_reference_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "reference"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_verb_with_json_is_documented() -> None:
    documented = {output.verb.split("-")[0] for output in outputs()}
    assert set(VERBS) - documented == {"chat"}


def test_rescore_is_documented_as_it_is() -> None:
    """Its type is written out in `schemas`, because importing it brings torch."""
    import ast

    tree = ast.parse((ROOT / "src" / "burnish" / "train" / "verbs.py").read_text(encoding="utf-8"))
    [summary] = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "RescoreSummary"]
    fields = [n.target.id for n in summary.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    [schema] = [output.schema for output in outputs() if output.verb == "rescore"]
    assert list(schema["$defs"]["Rescored"]["properties"]) == fields
