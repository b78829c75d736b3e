"""Environments by name: Burnish's own, `module:Class`, and entry points (`burnish.environments`)."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from importlib.metadata import entry_points

from burnish.core.errors import ConfigError
from burnish.core.protocols import Environment
from burnish.envs.single_turn import SingleTurn

ENTRY_POINT_GROUP = "burnish.environments"

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {"single_turn": SingleTurn}
"""Burnish's own environments; one new object per episode in flight."""


def environment_names() -> list[str]:
    """Every name that `make_environment` knows, sorted; installed packages included."""
    return sorted({*ENVIRONMENTS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def make_environment(name: str) -> Environment:
    """A new environment by name, or from `module:Class`.

    Raises: ConfigError where the name is unknown, cannot be imported, or does not build an environment.
    """
    made = _factory(name)()
    if not isinstance(made, Environment):
        raise ConfigError(
            f"{name} builds a {type(made).__name__}, which is no environment",
            where=name,
            fix="give it the coroutines reset, step, finish and close (burnish.core.protocols.Environment)",
        )
    return made


def _factory(name: str) -> Callable[[], Environment]:
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if ":" in name:
        return _imported(name)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _imported(point.value)
    known = environment_names()
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"unknown environment {name!r}",
        where=f"known: {', '.join(known)}",
        fix=f"write {near[0]!r}" if near else "choose a known one, or give module:Class",
    )


def _imported(path: str) -> Callable[[], Environment]:
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"environment {path!r} cannot be imported: {error}",
            where=path,
            fix="give an importable module:Class",
        ) from None
    if not callable(factory):
        raise ConfigError(f"{path} is not callable", where=path, fix="name a class, or a function without arguments")
    return factory  # type: ignore[no-any-return]
