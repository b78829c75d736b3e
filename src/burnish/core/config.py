"""The base of every configuration, and how a recipe file becomes one.

    recipe.yaml --load_tree--> Tree --apply_overrides--> Tree --build--> Config --effective--> run folder

A `Tree` is plain data plus, for every key, where it came from (`file:line`, `--set ...`); what nobody wrote
is a default. Whatever is wrong is a `ConfigError` with the key path and the line. A key that was written but
can have no effect beside the others is wrong too: a class names such keys in `inert`.

Leaves out what the keys mean: that is in the classes that derive from `Config` (`train.recipe`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from burnish.core.config_tree import KeyPath, Tree, key_text, shown
from burnish.core.errors import ConfigError

C = TypeVar("C", bound="Config")

DEFAULT = "default"


class Config(BaseModel):
    """Base of configurations: frozen, strict, no unknown keys.

    A field's docstring says meaning, unit and sane range; it becomes the reference and the JSON Schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def inert(self) -> dict[str, str]:
        """Keys that have no effect beside the other values, with the reason; `few_shot.shots` style paths."""
        return {}

    @model_validator(mode="after")
    def _refuse_inert(self) -> Self:
        for key, reason in self.inert().items():
            if _was_set(self, key):
                raise problem(
                    key,
                    f"{{path}}={shown(_value_at(self, key))} has no effect: {reason}",
                    f"remove {key.rpartition('.')[2]}, or change what makes it idle",
                )
        return self


def problem(key: str, what: str, fix: str) -> PydanticCustomError:
    """What a validator of a `Config` raises: `build` turns it into a `ConfigError`.

    `key` is relative to the class that raises; `{path}` in `what` becomes the full key path.
    """
    return PydanticCustomError("burnish", "{what}", {"what": what, "fix": fix, "key": key})


def _was_set(config: Config, key: str) -> bool:
    node: Any = config
    for piece in key.split("."):
        if isinstance(node, Config):
            if piece not in node.model_fields_set:
                return False
            node = getattr(node, piece)
        else:
            node = node[int(piece)]
    return True


def _value_at(config: Config, key: str) -> Any:
    node: Any = config
    for piece in key.split("."):
        node = getattr(node, piece) if isinstance(node, Config) else node[int(piece)]
    return node


# --- tree -> config ---------------------------------------------------------------------------------


def build(cls: type[C], tree: Tree) -> C:
    """The validated configuration.

    Raises: ConfigError for the most telling fault; the other keys at fault are listed in it.
    """
    try:
        return cls.model_validate(tree.data)
    except ValidationError as error:
        raise _config_error(cls, error, tree) from None


_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text like {pattern}",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "too_short": "a list with an entry",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
"""pydantic's kind of fault -> what the key takes; a kind without an entry is told in pydantic's words."""


def _config_error(cls: type[Config], error: ValidationError, tree: Tree) -> ConfigError:
    # A misspelt key also makes the right one missing, so unknown keys come first.
    rank = {"extra_forbidden": 0, "burnish": 1}
    faults = sorted(error.errors(include_url=False), key=lambda fault: rank.get(fault["type"], 2))
    placed = [(*_locate(cls, fault["loc"], tree.data), fault) for fault in faults]
    place, owners, _ = placed[0]
    path, what, fix = _explain(cls, place, owners, [fault for at, _, fault in placed if at == place])
    # A union has a fault for each of its types: those around the key just named add nothing.
    others = dict.fromkeys(key_text(at) for at, _, _ in placed if at != place[: len(at)])
    if others:
        what += f" (and {len(others)} more: {', '.join(others)})"
    where = tree.origin(path)
    return ConfigError(what, where=f"{where}, {key_text(path)}" if path else where, fix=fix)


def _explain(
    cls: type[Config], path: KeyPath, owners: Sequence[type[Config]], faults: Sequence[ErrorDetails]
) -> tuple[KeyPath, str, str]:
    """Key path, what and fix of pydantic's faults at one place."""
    kind, context = faults[0]["type"], faults[0].get("ctx", {})
    text, value = key_text(path), faults[0]["input"]
    if kind == "burnish":
        full = (*path, *(int(piece) if piece.isdigit() else piece for piece in context["key"].split(".")))
        return full, context["what"].replace("{path}", key_text(full)), context["fix"]
    if kind == "extra_forbidden":
        return path, *_explain_unknown(cls, path, owners)
    if kind == "missing":
        return path, f"{text} is missing", f"add {path[-1]}: {_meaning(owners, path)}"
    if kind == "union_tag_not_found":
        return path, f"{text} has no kind", f"add kind, one of {', '.join(_tags(owners, path))}"
    if kind in ("union_tag_invalid", "literal_error") and len(faults) == 1:
        allowed = re.findall(r"'([^']*)'", str(context.get("expected_tags", context.get("expected"))))
        if kind == "union_tag_invalid":
            path, value = (*path, "kind"), context["tag"]
        near = difflib.get_close_matches(str(value), allowed, n=1)
        fix = f"write {near[0]}" if near else f"write one of {', '.join(allowed)}"
        return path, f"{key_text(path)}={shown(value)} is none of {', '.join(allowed)}", fix
    wanted = " or ".join(dict.fromkeys(map(_wanted, faults)))
    return (
        path,
        f"{text or 'the recipe'}={shown(value)} is not {wanted}",
        f"give {wanted}: {_meaning(owners, path)}",
    )


def _wanted(fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    if fault["type"] == "literal_error":
        return str(context["expected"])
    return _WANTED.get(fault["type"], fault["msg"].removeprefix("Input should be ")).format(**context)


def _tags(owners: Sequence[type[Config]], path: KeyPath) -> list[str]:
    names = [piece for piece in path if isinstance(piece, str)]
    return [_tag(c) for owner in owners for c in nested_classes(_annotation(owner, names[-1]))]


def _explain_unknown(cls: type[Config], path: KeyPath, owners: Sequence[type[Config]]) -> tuple[str, str]:
    key, parent = str(path[-1]), key_text(path[:-1]) or "the recipe"
    here = [name for owner in owners for name in owner.model_fields]
    what = f"unknown key {key!r} in {parent}"
    near = difflib.get_close_matches(key, here, n=1)
    if near:
        return what, f"write {near[0]}"
    elsewhere = [place for place in walk_keys(cls) if place[-1] == key]
    if elsewhere:
        return what, f"move it to {'.'.join(elsewhere[0])}"
    return what, f"remove it; {parent} takes {', '.join(dict.fromkeys(here))}"


def _locate(cls: type[Config], loc: Sequence[str | int], data: Any) -> tuple[KeyPath, list[type[Config]]]:
    """The key path in `loc`, without pydantic's union tags, and the classes that may own its last key."""
    path: list[str | int] = []
    owners, below, node = [cls], [cls], data
    for piece in loc:
        if isinstance(piece, int):
            path.append(piece)
            node = node[piece] if isinstance(node, list) and piece < len(node) else None
        elif isinstance(node, dict) and (piece in node or any(piece in c.model_fields for c in below)):
            path.append(piece)
            owners = below
            node = node.get(piece)
            below = [c for owner in owners for c in nested_classes(_annotation(owner, piece))]
        else:
            below = [c for c in below if piece in (c.__name__, _tag(c))] or below
    return tuple(path), owners


def _tag(cls: type[Config]) -> str:
    info = cls.model_fields.get("kind")
    return str(get_args(info.annotation)[0]) if info is not None and get_args(info.annotation) else ""


def _annotation(cls: type[Config], key: str) -> Any:
    info = cls.model_fields.get(key)
    return None if info is None else info.annotation


def nested_classes(annotation: Any) -> Iterator[type[Config]]:
    """The configuration classes in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for argument in get_args(annotation):
        yield from nested_classes(argument)


def _meaning(owners: Sequence[type[Config]], path: KeyPath) -> str:
    names = [piece for piece in path if isinstance(piece, str)]
    for owner in owners:
        info = owner.model_fields.get(names[-1]) if names else None
        if info is not None and info.description:
            return re.split(r"[.;]\s|\.$", " ".join(info.description.split()), maxsplit=1)[0]
    return "see docs/reference/recipe.md"


def walk_keys(cls: type[Config]) -> Iterator[tuple[str, ...]]:
    """Every key path of a configuration class, depth first; list indices are left out."""
    for name, info in cls.model_fields.items():
        yield (name,)
        for inner in nested_classes(info.annotation):
            yield from ((name, *rest) for rest in walk_keys(inner))


# --- config -> run folder ---------------------------------------------------------------------------


def effective(config: Config) -> dict[str, Any]:
    """Plain data that builds an equal configuration; keys without effect, which it refuses, are left out."""
    data: dict[str, Any] = {}
    for name in sorted(type(config).model_fields, key=lambda name: name != "kind"):  # kind first, as people do
        value = getattr(config, name)
        if isinstance(value, tuple):
            data[name] = [effective(item) if isinstance(item, Config) else item for item in value]
        else:
            data[name] = effective(value) if isinstance(value, Config) else value
    for key in config.inert():
        *parents, last = key.split(".")
        node: Any = data
        for piece in parents:
            node = node[int(piece)] if isinstance(node, list) else node[piece]
        del node[last]
    return data


def provenance(config: Config, tree: Tree) -> dict[str, str]:
    """For every leaf of `effective`, in order: `stages.2.lr` -> `file:line`, `--set ...` or `default`."""
    return {".".join(map(str, path)): tree.origins.get(path, DEFAULT) for path in _leaves(effective(config), ())}


def _leaves(node: Any, path: KeyPath) -> Iterator[KeyPath]:
    if not isinstance(node, (dict, list)) or not node:
        yield path
        return
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(value, (*path, key))


def json_schema(cls: type[Config]) -> dict[str, Any]:
    """The JSON Schema of a configuration, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}
