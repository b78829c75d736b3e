"""Versioned JSON for what goes to disk.

`encode(obj)` gives plain JSON with `schema` and `version`; `decode(cls, data)` migrates forward, then
validates. NumPy arrays keep dtype, shape and every bit (NaN included) as base64. Unknown keys and newer
versions are refused, never skipped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from burnish.core.errors import DataError

T = TypeVar("T")
Migration = Callable[[dict[str, Any]], dict[str, Any]]

SCHEMA_VERSIONS: dict[str, int] = {"Task": 1, "Trajectory": 1, "Verdict": 1, "Message": 1, "CheckpointRef": 1}
"""Current version by type name; a type without an entry is version 1."""

MIGRATIONS: dict[tuple[str, int], Migration] = {}
"""(type name, from version) -> function that returns the data at the next version."""


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, arrays, tuples and paths as plain JSON values, without schema tags."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return {
            "dtype": data.dtype.str,
            "shape": list(data.shape),
            "base64": base64.b64encode(data.tobytes()).decode("ascii"),
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def encode(obj: Any) -> dict[str, Any]:
    """Plain JSON of a dataclass, tagged with its schema name and version."""
    name = type(obj).__name__
    return {"schema": name, _version_key(type(obj)): SCHEMA_VERSIONS.get(name, 1), **to_plain(obj)}


def _version_key(cls: type[Any]) -> str:
    """The key of the schema's version: another one beside a field that is itself called `version`."""
    has_own = is_dataclass(cls) and any(f.name == "version" for f in fields(cls))
    return "schema_version" if has_own else "version"


def decode(cls: type[T], data: dict[str, Any], *, where: str = "") -> T:
    """The object that `encode` wrote.

    Raises: DataError where schema, version, keys or types do not fit.
    """
    data = dict(data)
    name = cls.__name__
    schema, version = data.pop("schema", name), data.pop(_version_key(cls), 1)
    current = SCHEMA_VERSIONS.get(name, 1)
    if schema != name:
        raise DataError(f"expected a {name}, found a {schema}", where=where, fix="pass the right file")
    if not isinstance(version, int) or version > current:
        raise DataError(
            f"{name} version {version!r} is newer than this Burnish reads ({current})",
            where=where,
            fix="update Burnish",
        )
    while version < current:
        migrate = MIGRATIONS.get((name, version))
        if migrate is None:
            raise DataError(f"{name} version {version} cannot be migrated", where=where, fix="write it again")
        data, version = migrate(data), version + 1
    try:
        result = _build(cls, data, name)
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"not a valid {name}: {error}", where=where, fix="write the file again") from None
    return result  # type: ignore[no-any-return]


def dumps(obj: Any) -> str:
    """One line of JSON for a dataclass (see `encode`)."""
    return json.dumps(encode(obj), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(cls: type[T], line: str, *, where: str = "") -> T:
    """The object in one line of JSON.

    Raises: DataError where the line is not JSON or does not decode.
    """
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}", where=where, fix="mend the line") from None
    if not isinstance(data, dict):
        raise DataError(f"expected a JSON object, found {type(data).__name__}", where=where, fix="mend the line")
    return decode(cls, data, where=where)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _build(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{path}: {value!r} is not one of {get_args(hint)}")
        return value
    if origin in (Union, UnionType):
        return _build_union(get_args(hint), value, path)
    if hint is np.ndarray or origin is np.ndarray:
        return _build_array(value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build_dataclass(hint, value, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if origin in (tuple, list):
        return _build_sequence(hint, origin, value, path)
    if (origin is not None and hasattr(origin, "items")) or hint is dict:
        return _build_mapping(hint, value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise TypeError(f"{path}: expected {hint.__name__}, found {type(value).__name__}")
    return value


def _build_union(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and NoneType in choices:
        return None
    if isinstance(value, dict) and "kind" in value:
        for choice in choices:
            if is_dataclass(choice) and any(f.name == "kind" and f.default == value["kind"] for f in fields(choice)):
                return _build(choice, value, path)
    errors = []
    for choice in choices:
        if choice is NoneType:
            continue
        try:
            return _build(choice, value, path)
        except (TypeError, ValueError, KeyError) as error:
            errors.append(str(error))
    raise ValueError(f"{path}: fits none of its types ({'; '.join(errors)})")


def _build_array(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{path}: expected an encoded array, found {type(value).__name__}")
    raw = base64.b64decode(value["base64"], validate=True)
    return np.frombuffer(raw, dtype=np.dtype(value["dtype"])).reshape(value["shape"]).copy()


def _build_dataclass(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{path}: expected an object, found {type(value).__name__}")
    hints = _hints(hint)
    known = {f.name for f in fields(hint)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise ValueError(f"{path}: unknown keys {unknown}")
    return hint(**{key: _build(hints[key], item, f"{path}.{key}") for key, item in value.items()})


def _build_sequence(hint: Any, origin: Any, value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{path}: expected a list, found {type(value).__name__}")
    args = get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return tuple(_build(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is tuple:
        if len(args) != len(value):
            raise ValueError(f"{path}: expected {len(args)} entries, found {len(value)}")
        return tuple(_build(a, item, f"{path}[{i}]") for i, (a, item) in enumerate(zip(args, value, strict=True)))
    return [_build(args[0] if args else Any, item, f"{path}[{i}]") for i, item in enumerate(value)]


def _build_mapping(hint: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{path}: expected an object, found {type(value).__name__}")
    args = get_args(hint)
    return {key: _build(args[1] if len(args) == 2 else Any, item, f"{path}.{key}") for key, item in value.items()}
