from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from burnish.core import errors
from burnish.core.errors import BurnishError, ConfigError, ExitCode, GateRefusedError, InputError, RunError


def classes(root: type[BurnishError] = BurnishError) -> Iterator[type[BurnishError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = re.findall(r"(\w+Error|RefusedError)\b", (errors.__doc__ or "").split("Leaves out")[0])
    assert drawn == [cls.__name__ for cls in classes()]


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_three_lines_json_and_pickle(cls: type[BurnishError]) -> None:
    error = cls("lr=3 is too high", where="a.yaml:3, stages[0].lr", fix="set lr to 1e-5")
    assert str(error) == "lr=3 is too high\n  where: a.yaml:3, stages[0].lr\n  fix:   set lr to 1e-5"
    assert error.to_json() == {
        "error": cls.__name__,
        "what": "lr=3 is too high",
        "where": "a.yaml:3, stages[0].lr",
        "fix": "set lr to 1e-5",
        "exit_code": int(cls.exit_code),
    }
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)


def test_exit_codes() -> None:
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 130]
    for cls in classes():
        if issubclass(cls, InputError):
            assert cls.exit_code == ExitCode.BAD_INPUT
        elif issubclass(cls, GateRefusedError):
            assert cls.exit_code == ExitCode.GATE_REFUSED
        else:
            assert cls.exit_code == ExitCode.RUN_FAILED
    assert RunError.exit_code != ConfigError.exit_code


def test_where_and_fix_may_be_absent() -> None:
    assert str(ConfigError("no")) == "no"
    assert str(ConfigError("no", fix="yes")) == "no\n  fix:   yes"
