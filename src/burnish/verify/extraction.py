"""`structured_extraction`: the reply is exactly this JSON object.

Gold: `{"value": {...}}`. Parsed equality as `json_extract.json_equal` declares it. Components, for reading
only (the score is 1 or 0): `parsed`, `keys` (share of key paths that are right) and `fields` (share of leaf
fields that are right), both over the union of gold and reply, so that inventing fields costs. Leaves out the
schema's text (the prompt states it) and any partial score.
"""

from __future__ import annotations

from typing import Any

from burnish.core.errors import DataError
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed, require_object, unparseable
from burnish.verify.cases_structure import EXTRACTION_CASES
from burnish.verify.json_extract import JsonRejected, json_equal, nfc, parse_json_reply
from burnish.verify.text import shown

_MAX_NAMED_FIELDS = 8  # wrong fields named in the evidence


class StructuredExtraction(TextVerifier):
    """PASS iff the reply is the gold object."""

    name = "structured_extraction"
    version = "2"
    cases = EXTRACTION_CASES

    def read_gold(self, payload: Any) -> dict[str, Any]:
        """The expected object."""
        value = require_object(payload, self.name, ["value"])["value"]
        if not isinstance(value, dict) or not value:
            raise DataError("structured_extraction: the gold value is not an object with fields", fix="give one")
        return value

    def check(self, reply: Reply, gold: dict[str, Any], task: Task) -> Finding:
        """Parse and compare; the components say how near it came."""
        try:
            value = parse_json_reply(reply.text)
        except JsonRejected as rejected:
            return unparseable(str(rejected), components=_components(0.0, 0.0, 0.0), reply=shown(reply.text))
        if not isinstance(value, dict):
            return failed(
                f"the reply is a JSON {_kind(value)}, not an object",
                components=_components(1.0, 0.0, 0.0),
                reply=shown(reply.text),
            )
        expected, found = leaves(gold), leaves(value)
        paths = sorted(set(expected) | set(found))
        wrong = [p for p in paths if p not in expected or p not in found or not json_equal(expected[p], found[p])]
        expected_keys, found_keys = set(key_paths(gold)), set(key_paths(value))
        components = _components(
            1.0,
            len(expected_keys & found_keys) / len(expected_keys | found_keys),
            1.0 - len(wrong) / len(paths),
        )
        if json_equal(value, gold):
            return passed("every field is right", components=components)
        named = [shown(path) for path in wrong[:_MAX_NAMED_FIELDS]]
        reason = f"{len(wrong)} of {len(paths)} fields are wrong, missing or extra"
        return failed(reason, components=components, reply=shown(reply.text), wrong_fields=named)


def leaves(value: Any, path: str = "$") -> dict[str, Any]:
    """Leaf values by path; an empty object or array is a leaf."""
    if isinstance(value, dict) and value:
        return {p: leaf for key, item in value.items() for p, leaf in leaves(item, _child(path, key)).items()}
    if isinstance(value, list) and value:
        return {p: leaf for i, item in enumerate(value) for p, leaf in leaves(item, f"{path}[{i}]").items()}
    return {path: value}


def key_paths(value: Any, path: str = "$") -> list[str]:
    """The path of every object key."""
    if isinstance(value, dict):
        children = [(_child(path, key), item) for key, item in value.items()]
        return [p for p, _ in children] + [p for child, item in children for p in key_paths(item, child)]
    if isinstance(value, list):
        return [p for i, item in enumerate(value) for p in key_paths(item, f"{path}[{i}]")]
    return []


def _child(path: str, key: str) -> str:
    key = nfc(key)
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


def _components(parsed: float, keys: float, fields: float) -> dict[str, float]:
    return {"parsed": parsed, "keys": keys, "fields": fields}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}[type(value)]
