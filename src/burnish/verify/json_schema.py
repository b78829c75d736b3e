"""`json_schema`: the reply is one JSON value that fits this schema, and is this value where one is given.

Gold: `{"schema": {...}}`, optionally with `"value"`. A schema alone accepts minimal junk that happens to fit
it; give the value wherever there is one.

The rule: JSON Schema 2020-12, with three points made strict. `integer` means written as an integer (1.0 is
not one). An object described by `properties` accepts no others, unless it says `additionalProperties`,
`patternProperties`, `propertyNames` or `unevaluatedProperties` itself. References outside the schema are
refused (nothing is fetched). `format` is not checked. Leaves out repairing JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from burnish.core.errors import DataError
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed, require_object, unparseable
from burnish.verify.cases_structure import JSON_SCHEMA_CASES
from burnish.verify.json_extract import MAX_JSON_DEPTH, JsonRejected, json_equal, parse_json_reply
from burnish.verify.text import shown


def _is_integer(checker: Any, instance: Any) -> bool:
    return isinstance(instance, int) and not isinstance(instance, bool)


_extend: Callable[..., Any] = extend  # its stub leaves it untyped
_Strict = _extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)

# Where a subschema describes another value than its parent does: closed on its own.
_CHILD_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_CHILD_LISTS = ("prefixItems",)
_CHILD_SCHEMAS = ("items", "additionalProperties", "contains")
# Where it describes the same value: closed at the parent, or siblings would shut each other out.
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_SCHEMAS = ("if", "then", "else")
_OPENERS = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")


class JsonSchema(TextVerifier):
    """PASS iff the reply is one strict JSON value that fits the schema, and equals the value where one is
    given."""

    name = "json_schema"
    version = "2"
    cases = JSON_SCHEMA_CASES

    def read_gold(self, payload: Any) -> tuple[Validator, bool, Any]:
        """The closed schema's validator, whether a value is expected, and the value."""
        gold = require_object(payload, self.name, ["schema"], ["value"])
        validator = strict_validator(gold["schema"])
        if "value" in gold and next(validator.iter_errors(gold["value"]), None) is not None:
            raise DataError("json_schema: the gold value does not fit the gold schema", fix="mend one of them")
        return validator, "value" in gold, gold.get("value")

    def check(self, reply: Reply, gold: tuple[Validator, bool, Any], task: Task) -> Finding:
        """Parse, validate, compare."""
        validator, has_value, expected = gold
        try:
            value = parse_json_reply(reply.text)
        except JsonRejected as rejected:
            return unparseable(str(rejected), components={"parsed": 0.0, "valid": 0.0}, reply=shown(reply.text))
        error = best_match(validator.iter_errors(value))
        if error is not None:
            return failed(
                f"{error.json_path} breaks the rule {error.validator!r}",
                components={"parsed": 1.0, "valid": 0.0},
                reply=shown(reply.text),
                path=shown(error.json_path),
            )
        components = {"parsed": 1.0, "valid": 1.0}
        if has_value and not json_equal(value, expected):
            return failed("fits the schema, but is another value", components=components, reply=shown(reply.text))
        return passed("fits the schema" + (" and is the value" if has_value else ""), components=components)


def strict_validator(schema: Any) -> Validator:
    """A validator of the schema made strict as the module says.

    Raises: DataError where it is not a schema, nests too deeply, or refers outside itself.
    """
    if not isinstance(schema, dict):
        raise DataError(f"the schema is a {type(schema).__name__}, not an object", fix="give a JSON Schema")
    _check_references(schema, 0)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise DataError(f"not a JSON Schema: {shown(error.message)} at {error.json_path}", fix="mend it") from None
    validator: Validator = _Strict(_closed(schema, schema))
    return validator


def _check_references(schema: Any, depth: int) -> None:
    if depth > MAX_JSON_DEPTH:
        raise DataError(f"the schema nests deeper than {MAX_JSON_DEPTH} levels", fix="flatten it")
    if isinstance(schema, list):
        for item in schema:
            _check_references(item, depth + 1)
    elif isinstance(schema, dict):
        for key, item in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(item, str) and not item.startswith("#"):
                raise DataError(
                    f"the schema refers to {shown(item)}", fix="put it under $defs and refer to #/$defs/..."
                )
            _check_references(item, depth + 1)


def _closed(schema: Any, root: dict[str, Any]) -> Any:
    """The schema with `unevaluatedProperties: false` on every value whose properties it describes.

    `unevaluatedProperties` rather than `additionalProperties`, because it sees through allOf and $ref.
    """
    closed = _children_closed(schema, root)
    if isinstance(closed, dict) and _describes_properties(closed, root, ()) and not _is_open(closed):
        closed = {**closed, "unevaluatedProperties": False}
    return closed


def _children_closed(schema: Any, root: dict[str, Any]) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for key, item in schema.items():
        if key in _CHILD_MAPS and isinstance(item, dict):
            # A definition is used in place by its $ref, so only what lies below it is closed here.
            close = _children_closed if key in ("$defs", "definitions") else _closed
            result[key] = {name: close(child, root) for name, child in item.items()}
        elif key in _CHILD_LISTS and isinstance(item, list):
            result[key] = [_closed(child, root) for child in item]
        elif key in _CHILD_SCHEMAS:
            result[key] = _closed(item, root)
        elif key in _IN_PLACE_LISTS and isinstance(item, list):
            result[key] = [_children_closed(child, root) for child in item]
        elif key in _IN_PLACE_SCHEMAS:
            result[key] = _children_closed(item, root)
    return result


def _is_open(schema: dict[str, Any]) -> bool:
    return any(key in schema for key in _OPENERS)


def _describes_properties(schema: Any, root: dict[str, Any], seen: tuple[str, ...]) -> bool:
    """Whether the schema, or one applied in place with it, names properties."""
    if not isinstance(schema, dict):
        return False
    if "properties" in schema:
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        if _describes_properties(_resolve(reference, root), root, (*seen, reference)):
            return True
    in_place = [child for key in _IN_PLACE_LISTS for child in schema.get(key, [])]
    in_place += [schema[key] for key in _IN_PLACE_SCHEMAS if key in schema]
    return any(_describes_properties(child, root, seen) for child in in_place)


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    target: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        target = target.get(step) if isinstance(target, dict) else None
    return target
