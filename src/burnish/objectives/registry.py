"""Objectives by name, or by `module:Class` for one's own.

Leaves out entry points: a formula is named by the recipe that trains with it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from burnish.core.errors import ConfigError
from burnish.core.protocols import Objective
from burnish.objectives.grpo import GRPO
from burnish.objectives.rehearsal import Rehearsal
from burnish.objectives.sft import SFT

OBJECTIVES: dict[str, Callable[..., Objective]] = {"sft": SFT, "grpo": GRPO, "rehearsal": Rehearsal}


def make_objective(name: str, **config: Any) -> Objective:
    """The objective of that name, or of `module:Class`, built with its own config.

    Raises: ConfigError for an unknown name, a class that cannot be imported, or config it does not take.
    """
    factory = OBJECTIVES[name] if name in OBJECTIVES else _import(name)
    try:
        objective = factory(**config)
    except TypeError as error:
        raise ConfigError(
            f"objective {name} cannot be built from {config}: {error}",
            where="objective",
            fix="mend these keys",
        ) from error
    if not isinstance(objective, Objective):
        raise ConfigError(
            f"{name} is no objective: it lacks `needs` or cannot be called",
            where="objective.name",
            fix="implement burnish.core.protocols.Objective",
        )
    return objective


def _import(name: str) -> Callable[..., Objective]:
    module, _, attribute = name.partition(":")
    if not attribute:
        nearest = difflib.get_close_matches(name, OBJECTIVES, n=1)
        raise ConfigError(
            f"unknown objective {name!r}; there are {', '.join(sorted(OBJECTIVES))}",
            where="objective.name",
            fix=f"set it to {nearest[0]}" if nearest else "set it to one of these, or to module:Class",
        )
    try:
        factory: Callable[..., Objective] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"objective {name!r} cannot be imported: {error}",
            where="objective.name",
            fix="name an importable module and a class in it, as module:Class",
        ) from error
    return factory
