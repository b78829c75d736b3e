"""Who answers the model between its turns.

An environment speaks messages only: it never sees tokens or gold, and never scores. Choose one by name with
`make_environment`; test your own with `check_environment`. Leaves out tools and sandboxed episodes.
"""

from __future__ import annotations

from burnish.envs.conformance import Violation, check_environment
from burnish.envs.registry import ENVIRONMENTS, environment_names, make_environment
from burnish.envs.single_turn import SingleTurn

__all__ = [
    "ENVIRONMENTS",
    "SingleTurn",
    "Violation",
    "check_environment",
    "environment_names",
    "make_environment",
]
