"""Options and arguments that several verbs share.

Leaves out anything that one verb alone takes.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Write over a key: stages.0.lr=1e-5."
)
channel_option = click.option("--channel", default="default", show_default=True, help="Which live checkpoint is meant.")


def recipe_option(command: F) -> F:
    """`--recipe FILE`, required."""
    return click.option(
        "--recipe", required=True, type=click.Path(path_type=Path), help="The recipe whose tasks are used."
    )(command)


def find_run(run: str) -> Path:
    """A run's folder, from the folder or from a run id in the registry.

    Raises: ConfigError where it is neither.
    """
    if Path(run).is_dir():
        return Path(run)
    from burnish.registry.registry import Registry

    return Registry().run(run).folder


def user_name() -> str:
    """Who gives the command, for records: the login name, or the number of a user without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid {os.getuid()}"


def find_model(model: str) -> str:
    """What to load a model from: as it is, or the folder of the registered checkpoint with this digest.

    Raises: ConfigError for a digest that is not registered or is not unique.
    """
    is_digest = len(model) >= 4 and set(model) <= set("0123456789abcdef")
    if not is_digest or Path(model).exists():
        return model
    from burnish.registry.registry import Registry

    return Registry().checkpoint(model).ref.path
