from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from burnish.core.errors import DataError
from burnish.core.outcomes import Ending, Outcome
from burnish.core.types import Verdict
from burnish.verify.extraction import StructuredExtraction, key_paths, leaves
from burnish.verify.json_extract import (
    MAX_JSON_CHARS,
    MAX_JSON_DEPTH,
    JsonRejected,
    json_equal,
    parse_json_reply,
)
from burnish.verify.json_schema import JsonSchema, strict_validator
from burnish.verify.numeric import Numeric


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 1}', "twice"),
        ('{"\u00e9": 1, "e\u0301": 1}', "twice"),
        ('{"a": 1} x', "not JSON"),
        ('x {"a": 1}', "not JSON"),
        ("NaN", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("1e400", "range"),
        ("-1e-400", "too small"),
        ("9" * 400, "digits"),
        ('"\\ud800"', "surrogate"),
        ("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1), "deeper"),
        (" " * MAX_JSON_CHARS + "1", "characters"),
        ("\u00a01", "not JSON"),
        ("```json\n1\n```\n2", "fence"),
        ("```json\n1\n``` ```json\n1\n```", "not JSON"),
        ("01", "not JSON"),
        ("+1", "not JSON"),
        ("'a'", "not JSON"),
        ('"a\nb"', "not JSON"),
    ],
)
def test_what_is_not_one_strict_json_value(text: str, why: str) -> None:
    with pytest.raises(JsonRejected, match=why):
        parse_json_reply(text)


def test_brackets_within_strings_are_not_depth() -> None:
    text = '{"a": "' + "[" * 500 + '\\"[["}'
    assert parse_json_reply(text) == {"a": "[" * 500 + '"[['}
    assert parse_json_reply("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH) is not None


def test_exact_types_and_numbers_by_value() -> None:
    assert json_equal({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert json_equal("é", "e\u0301")
    for left, right in [
        (1, True),
        (0, False),
        (None, False),
        (None, 0),
        ("1", 1),
        ([], {}),
        ([1, 2], [2, 1]),
    ]:
        assert not json_equal(left, right)
        assert not json_equal(right, left)


@pytest.mark.parametrize(
    ("reply", "components"),
    [
        ('{"a": 1, "b": {"c": 2}}', {"parsed": 1, "keys": 1, "fields": 1}),
        ('{"a": 1, "b": {"c": 3}}', {"parsed": 1, "keys": 1, "fields": 1 / 2}),
        ('{"a": 1}', {"parsed": 1, "keys": 1 / 3, "fields": 1 / 2}),
        ('{"a": 1, "b": {"c": 2}, "x": 0, "y": 0}', {"parsed": 1, "keys": 3 / 5, "fields": 2 / 4}),
        ("[1]", {"parsed": 1, "keys": 0, "fields": 0}),
        ("Sure!", {"parsed": 0, "keys": 0, "fields": 0}),
    ],
)
def test_extraction_components_by_hand(judge: Callable[..., Verdict], reply: str, components: dict[str, float]) -> None:
    verdict = judge(StructuredExtraction(), {"value": {"a": 1, "b": {"c": 2}}}, reply)
    assert verdict.components == pytest.approx(components)
    assert verdict.score == (1.0 if components["fields"] == 1 else 0.0)
    assert (verdict.ending is Ending.UNPARSEABLE) == (components["parsed"] == 0)


def test_paths() -> None:
    value = {"a": [{"b c": 1}, []], "d": {}}
    assert leaves(value) == {"$.a[0]['b c']": 1, "$.a[1]": [], "$.d": {}}
    assert key_paths(value) == ["$.a", "$.d", "$.a[0]['b c']"]


_DEFS: dict[str, Any] = {
    "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "free": {"type": "object"},
    },
    "type": "object",
    "properties": {"p": {"$ref": "#/$defs/point"}, "q": {"$ref": "#/$defs/free"}, "r": {"type": "object"}},
}
_MERGED: dict[str, Any] = {
    "allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]
}


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "integer"}, 1, True),
        ({"type": "integer"}, 1.0, False),
        ({"type": "number"}, 1, True),
        ({"type": "number"}, True, False),
        ({"properties": {"a": {}}}, {"b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, {"b": 1}, True),
        ({"items": {"properties": {"a": {}}}}, [{"b": 1}], False),
        (_DEFS, {"p": {"x": 1}}, True),
        (_DEFS, {"p": {"x": 1, "y": 1}}, False),
        (_DEFS, {"q": {"any": 1}, "r": {"any": 1}}, True),
        (_MERGED, {"a": 1, "b": 2}, True),
        (_MERGED, {"a": 1, "c": 2}, False),
        ({"properties": {"next": {"$ref": "#"}}}, {"next": {"next": {}}}, True),
        ({"properties": {"next": {"$ref": "#"}}}, {"next": {"other": 1}}, False),
    ],
)
def test_schemas_are_strict(schema: dict[str, Any], value: object, fits: bool) -> None:
    assert strict_validator(schema).is_valid(value) is fits


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "https://example.org/s"}, {"items": {"$ref": "other.json"}}, 3]
)
def test_schemas_at_fault_are_refused_and_nothing_is_fetched(schema: Any, judge: Callable[..., Verdict]) -> None:
    with pytest.raises(DataError):
        strict_validator(schema)
    verdict = judge(JsonSchema(), {"schema": schema}, "1")
    assert (verdict.outcome, verdict.ending) == (Outcome.UNDECIDED, Ending.VERIFIER_ERROR)
    assert verdict.flags == ()


def test_a_gold_value_must_fit_its_schema() -> None:
    with pytest.raises(DataError, match="does not fit"):
        JsonSchema().read_gold({"schema": {"type": "integer"}, "value": "1"})


@pytest.mark.parametrize(
    "gold",
    [True, None, "42 or 43", "NaN", {"value": 1, "units": "km"}, {"value": 1, "rel_tol": 0.5}, "x", [1]],
)
def test_numeric_gold_at_fault(gold: Any) -> None:
    with pytest.raises(DataError):
        Numeric().read_gold(gold)


def test_tolerance_is_relative_at_every_scale(judge: Callable[..., Verdict]) -> None:
    for exponent in (-300, -30, 0, 30, 300):
        gold = {"value": f"1e{exponent}", "rel_tol": 1e-3}
        assert judge(Numeric(), gold, f"1.0009e{exponent}").outcome is Outcome.PASS
        assert judge(Numeric(), gold, f"1.0011e{exponent}").outcome is Outcome.FAIL
        assert judge(Numeric(), gold, "0").outcome is Outcome.FAIL


@pytest.mark.parametrize("reply", ["1e999", "9" * 60_000, "\\boxed{" * 8_000, "Answer: " * 8_000, '"\\' * 30_000])
def test_expensive_texts_cost_little(judge: Callable[..., Verdict], reply: str) -> None:
    started = time.process_time()
    for verifier, gold in ((Numeric(), 1), (StructuredExtraction(), {"value": {"a": 1}})):
        assert judge(verifier, gold, reply).outcome is Outcome.FAIL
    assert time.process_time() - started < 1.0
