"""What is kept of a guard is used again only where all that decided it is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from burnish.core.gold import Gold
from burnish.core.types import Message, Role, Split, Task
from burnish.evals.guard_suites import GuardRunner, UserGuardSuite
from burnish.evals.guards import GuardSpec

SPEC = GuardSpec("mine", "pass rate", 0.1, 2)


def item(number: int, prompt: str = "Say ok.", answer: str = "ok") -> tuple[Task, Gold]:
    task = Task.create(
        (Message.of(Role.USER, f"{number}. {prompt}"),),
        env="single",
        verifier="exact",
        domain="mine",
        split=Split.GATE,
        cluster=str(number),
        source="test",
        licence="Apache-2.0",
    )
    return task, Gold.seal(answer)


SUITE = UserGuardSuite(SPEC, (item(1), item(2)), max_tokens=8)


def driver(*, dtype: str = "float32", template: str = "chatml", version: str = "1") -> Any:
    """Stands in for a driver that only says what it is."""
    return SimpleNamespace(
        engine=SimpleNamespace(capabilities=lambda: SimpleNamespace(name="local", dtype=dtype)),
        renderer=SimpleNamespace(describe=lambda: template),
        verifier=lambda name: SimpleNamespace(version=version),
    )


def kept_at(folder: Path, suite: UserGuardSuite = SUITE, model: str = "m1", **changes: str) -> Path:
    runner = GuardRunner(driver(**changes), (), (suite,), cache=folder)
    path = runner._path("mine", model)
    assert path is not None
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"suite": replace(SUITE, items=(item(1), item(2, prompt="Say OK.")))},
        {"suite": replace(SUITE, items=(item(1), item(2, answer="OK")))},
        {"suite": replace(SUITE, items=SUITE.items[:1])},
        {"suite": replace(SUITE, max_tokens=9)},
        {"model": "m2"},
        {"dtype": "bfloat16"},
        {"template": "gemma"},
        {"version": "2"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_guard_is_measured_anew_where_anything_that_decides_it_changed(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert kept_at(tmp_path) == kept_at(tmp_path)
    assert kept_at(tmp_path, **changed) != kept_at(tmp_path)


def test_another_margin_judges_the_same_values(tmp_path: Path) -> None:
    assert kept_at(tmp_path, replace(SUITE, spec=replace(SPEC, margin=0.2))) == kept_at(tmp_path)


@pytest.mark.parametrize("name", ["held_out_text_nll", "instruction_format"])
def test_built_in_guards_are_kept_by_model(tmp_path: Path, name: str) -> None:
    paths = {GuardRunner(cast(Any, driver()), (name,), cache=tmp_path)._path(name, m) for m in ("m1", "m1", "m2")}
    assert len(paths) == 2
