"""Runs the command line in this process, on a registry and a folder of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from burnish.cli.main import main


@cache
def schemas() -> dict[str, list[dict[str, Any]]]:
    from burnish.cli.schemas import outputs

    found: dict[str, list[dict[str, Any]]] = {}
    for output in outputs():
        found.setdefault(output.schema["properties"]["schema"]["const"], []).append(output.schema)
    return found


@dataclass(frozen=True)
class Answer:
    """What a command line answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout, after holding it to its documented schema."""
        return checked(self.out)

    @property
    def error(self) -> list[str]:
        """The three lines of an error."""
        lines = self.err.splitlines()
        assert len(lines) == 3, self.err
        assert lines[1].startswith("  where: "), self.err
        assert lines[2].startswith("  fix:   "), self.err
        return lines


def checked(line: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(line)
    documented = schemas()[data["schema"]]
    keys = [schema for schema in documented if set(schema["properties"]) == set(data)]
    jsonschema.validate(data, keys[0] if keys else documented[0])
    return data


Burnish = Callable[..., Answer]


@pytest.fixture
def burnish(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Burnish:
    monkeypatch.setenv("BURNISH_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))

    def call(*args: object) -> Answer:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
