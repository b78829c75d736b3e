"""Domains by name: Burnish's own, `module:Class`, and entry points of the group `burnish.domains`."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points

from burnish.core.errors import BurnishError, ConfigError
from burnish.domains.base import Domain

ENTRY_POINT_GROUP = "burnish.domains"

DOMAINS: dict[str, str] = {
    "structured_extraction": "burnish.domains.structured_extraction:StructuredExtraction",
    "tool_call": "burnish.domains.tool_call:ToolCall",
    "bfcl": "burnish.domains.bfcl:Bfcl",
}
"""Burnish's own domains, imported when asked for."""


def domain_names() -> list[str]:
    """Every name that `get_domain` knows, sorted; installed packages included."""
    return sorted({*DOMAINS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def get_domain(name: str) -> Domain:
    """A domain by name, or from `module:Class`.

    Raises: ConfigError where the name is unknown, cannot be imported, or is no domain.
    """
    path = _path(name)
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except BurnishError:
        raise
    except Exception as error:  # a user's module may raise anything while it loads; it is named, not traced
        what = f"domain {path!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(
            what, where=name, fix="give an importable module:Class, or a file of rows (.jsonl)"
        ) from error
    if not (isinstance(factory, type) and issubclass(factory, Domain)):
        raise ConfigError(f"{path} is not a domain", where=name, fix="name a subclass of burnish.domains.base.Domain")
    try:
        return factory()
    except TypeError as error:
        what = f"domain {path} cannot be made without arguments: {error}"
        raise ConfigError(what, where=name, fix="give its arguments defaults, or name a subclass that does") from error


def _path(name: str) -> str:
    if name in DOMAINS:
        return DOMAINS[name]
    if ":" in name:
        return name
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return point.value
    known = domain_names()
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"unknown domain {name!r}",
        where=f"known: {', '.join(known)}",
        fix=f"write {near[0]!r}" if near else "choose a known one, or give module:Class",
    )
