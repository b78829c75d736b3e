"""How a recipe file becomes a tree of plain data that knows where each key came from.

Leaves out what the keys mean and whether they are right: `core.config` builds a `Config` from the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.core.errors import ConfigError

KeyPath = tuple[str | int, ...]

MAX_VALUES = 5_000  # a recipe has some fifty; aliases that multiply would otherwise expand without end
MAX_DEPTH = 20  # a recipe is four deep
MAX_VALUE_CHARS = 60  # of an offending value in a message, so that it stays on one line


def key_text(path: KeyPath) -> str:
    """`stages[2].rollout.group_size`, as messages write a key path."""
    text = ""
    for piece in path:
        text += f"[{piece}]" if isinstance(piece, int) else f".{piece}" if text else piece
    return text


def shown(value: Any) -> str:
    """A value as messages write it, cut to one line."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


# --- file -> tree -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data of a recipe and the origin of each key: `file:line` or `--set ...`."""

    data: dict[str, Any]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    source: str = "recipe"

    def origin(self, path: KeyPath) -> str:
        """Origin of the key, or of the nearest key around it that was written."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, self.source)


def load_tree(path: str | Path) -> Tree:
    """A YAML 1.2 file as a tree.

    Raises: ConfigError where the file is missing, not UTF-8, empty, not YAML or not a mapping, and for a
    duplicate key; with `file:line`.
    """
    text = _read(Path(path))
    loaded = _parse(text, str(path))
    if loaded is None:
        raise ConfigError("the file holds no keys", where=str(path), fix="write a recipe; burnish init makes one")
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"a recipe is a mapping of keys to values, not a {_kind(loaded)}",
            where=f"{path}:1",
            fix="write key: value",
        )
    origins: dict[KeyPath, str] = {}
    return Tree(_plain(loaded, (), str(path), origins), origins, str(path))


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", where=str(path.parent.resolve()), fix="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", where=str(path), fix="check the path") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=f"{path}:{line}",
            fix="save the file as UTF-8",
        ) from None


def _parse(text: str, source: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        key = re.search(r'duplicate key "([^"]*)"', str(error.problem))
        mark: Any = error.problem_mark
        raise ConfigError(
            f"the key {key.group(1) if key else '?'!r} is written twice",
            where=f"{source}:{mark.line + 1}",
            fix="keep one of the two",
        ) from None
    except (YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"not YAML: {what}", where=where, fix="mend the line") from None


def _plain(node: Any, path: KeyPath, source: str, origins: dict[KeyPath, str]) -> Any:
    """The node without ruamel's types; records the line of every key in `origins`."""
    if len(path) > MAX_DEPTH or len(origins) > MAX_VALUES:
        raise ConfigError(
            f"more than {MAX_DEPTH} levels or {MAX_VALUES} values",
            where=source,
            fix="nest less, and remove aliases (*name)",
        )
    if isinstance(node, dict):
        plain = {}
        for key, value in node.items():
            line = _line_of(node, key)
            if not isinstance(key, str):
                raise ConfigError(f"the key {key!r} is not text", where=f"{source}:{line}", fix="put it in quotes")
            origins[(*path, key)] = f"{source}:{line}"
            plain[str(key)] = _plain(value, (*path, str(key)), source, origins)
        return plain
    if isinstance(node, list):
        for index in range(len(node)):
            origins[(*path, index)] = f"{source}:{_line_of(node, index)}"
        return [_plain(item, (*path, index), source, origins) for index, item in enumerate(node)]
    if node is None or isinstance(node, bool):
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return bool(node) if type(node).__name__ == "ScalarBoolean" else kind(node)
    raise ConfigError(
        f"{key_text(path)} is a {_kind(node)}, which no key takes",
        where=origins.get(path, source),
        fix="put the value in quotes",
    )


def _line_of(node: Any, key: Any) -> int:
    position = getattr(node, "lc", None)
    where = position.data.get(key) if position is not None and position.data else None
    return int(where[0]) + 1 if where else 1


def _kind(value: Any) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (dict, "mapping"),
        (list, "list"),
        (str, "text"),
        (bool, "true/false"),
    )
    for kind, name in (*kinds, (int, "number"), (float, "number")):
        if isinstance(value, kind):
            return name
    return "nothing" if value is None else type(value).__name__


# --- --set ------------------------------------------------------------------------------------------


def apply_overrides(tree: Tree, assignments: Iterable[str]) -> Tree:
    """The tree with `stages.2.lr=1e-5` or `stages[2].lr=1e-5` written over it; values are YAML.

    Raises: ConfigError for an assignment without `=`, an index beyond its list, or a path through a value.
    """
    data, origins = _copied(tree.data), dict(tree.origins)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        origin = f"--set {assignment}"
        pieces = re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")
        if not equals or not all(pieces):
            raise ConfigError(f"{assignment!r} is not KEY=VALUE", where=origin, fix="write --set stages.0.lr=1e-5")
        path, parent = _descend(data, pieces, origin, origins)
        for known in [known for known in origins if known[: len(path)] == path]:
            del origins[known]
        below: dict[KeyPath, str] = {}
        parent[path[-1]] = _plain(_parse(text, origin), path, origin, below)
        origins.update(dict.fromkeys((path, *below), origin))
    return Tree(data, origins, tree.source)


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(item) for item in node] if isinstance(node, list) else node


def _descend(
    data: dict[str, Any], pieces: Sequence[str], origin: str, origins: dict[KeyPath, str]
) -> tuple[KeyPath, Any]:
    """Key path and the container of its last piece; mappings on the way are made where they are missing."""
    path: list[str | int] = []
    node: Any = data
    for position, piece in enumerate(pieces):
        here = key_text(tuple(path)) or "the recipe"
        if isinstance(node, list):
            if not piece.isdigit() or int(piece) >= len(node):
                raise ConfigError(
                    f"{here} has {len(node)} entries, none at {piece!r}", where=origin, fix="count from 0"
                )
            path.append(int(piece))
        elif isinstance(node, dict):
            path.append(piece)
        else:
            raise ConfigError(f"{here} is {shown(node)}, without keys", where=origin, fix="check the path")
        if position == len(pieces) - 1:
            break
        if isinstance(node, dict) and node.get(piece) is None:
            node[piece] = {}
            origins[tuple(path)] = origin
        node = node[path[-1]]
    return tuple(path), node
