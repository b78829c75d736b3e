"""Verifiers by name.

A spec is a name below, `module:attribute`, `path/to/file.py:attribute`, or the name of an entry point in the
group `burnish.verifiers`. The attribute is a verifier, a class of one that needs no arguments, or a plain
function (see `functions`). Naming a file or module runs it: name only what you trust. Leaves out settings: a
verifier that needs some is built in Python and named by `module:attribute`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.core.errors import BurnishError, ConfigError
from burnish.core.protocols import Verifier
from burnish.verify.functions import FunctionVerifier

VERIFIERS: dict[str, str] = {
    "bfcl": "burnish.verify.bfcl:Bfcl",
    "exact": "burnish.verify.exact:Exact",
    "instruction_format": "burnish.verify.format_checks:InstructionFormat",
    "json_schema": "burnish.verify.json_schema:JsonSchema",
    "numeric": "burnish.verify.numeric:Numeric",
    "refusal": "burnish.verify.refusal:Refusal",
    "structured_extraction": "burnish.verify.extraction:StructuredExtraction",
    "tool_call": "burnish.verify.tool_call:ToolCall",
}
"""Burnish's own, by name; each is imported when it is asked for."""

ENTRY_POINT_GROUP = "burnish.verifiers"


def verifier_names() -> tuple[str, ...]:
    """Every name that `get_verifier` knows on this machine, sorted."""
    return tuple(sorted({*VERIFIERS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def get_verifier(spec: str) -> Verifier:
    """The verifier that a spec names.

    Raises: ConfigError for an unknown name (with the nearest one and the list), and for a file, module or
    attribute that cannot be loaded or is no verifier.
    """
    if spec in VERIFIERS:
        return _load(VERIFIERS[spec], spec)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == spec:
            return _load(point.value, spec)
    if ":" in spec:
        return _load(spec, spec)
    names = verifier_names()
    near = difflib.get_close_matches(spec, names, n=1)
    raise ConfigError(
        f"unknown verifier {spec!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        where="verifier",
        fix=f"give one of {', '.join(names)}; or module:attribute; or path/to/file.py:attribute",
    )


def as_verifier(thing: Any, *, where: str = "") -> Verifier:
    """A verifier from a verifier, a class of one, or a plain function.

    Raises: ConfigError where it is none of these.
    """
    if inspect.isclass(thing):
        thing = _instance(thing, where)
    if isinstance(thing, Verifier):
        return thing
    if callable(thing):
        return FunctionVerifier(thing)
    raise ConfigError(
        f"{where} is a {type(thing).__name__}, neither a verifier nor a function",
        where=where,
        fix="name a function (reply, gold) -> float, or an object with name, version, cases and verify",
    )


def _load(target: str, spec: str) -> Verifier:
    module_name, _, attribute = target.rpartition(":")
    module = _file(module_name, spec) if module_name.endswith(".py") else _module(module_name, spec)
    thing: Any = module
    for step in attribute.split("."):
        if not hasattr(thing, step):
            near = difflib.get_close_matches(step, dir(thing), n=1)
            raise ConfigError(
                f"{module_name} has no {attribute!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                where=spec,
                fix="name a function or a verifier that it defines",
            )
        thing = getattr(thing, step)
    return as_verifier(thing, where=spec)


def _module(name: str, spec: str) -> ModuleType:
    return _loaded(lambda: importlib.import_module(name), name, spec)


def _file(name: str, spec: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"no file {name}", where=spec, fix="check the path; it is taken from the current folder")
    resolved = path.resolve()
    module_name = f"burnish_verifier_{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"

    def load() -> ModuleType:
        module_spec = importlib.util.spec_from_file_location(module_name, resolved)
        assert module_spec is not None, "a .py file has a spec"
        assert module_spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_name] = module  # dataclasses and pickling look a module up by its name
        module_spec.loader.exec_module(module)
        return module

    return _loaded(load, name, spec)


def _loaded(load: Callable[[], ModuleType], name: str, spec: str) -> ModuleType:
    try:
        return load()
    except BurnishError:
        raise
    except Exception as error:  # a user's module may raise anything while it loads; it is named, not traced
        raise ConfigError(
            f"cannot load {name}: {type(error).__name__}: {error}",
            where=spec,
            fix="mend it, or check its name and that its package is installed",
        ) from error


def _instance(thing: type, where: str) -> Any:
    try:
        return thing()
    except TypeError as error:
        raise ConfigError(
            f"{thing.__name__} cannot be made without arguments: {error}",
            where=where,
            fix="name an instance of it instead",
        ) from None
