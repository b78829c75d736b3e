"""Cases of `json_schema` and `structured_extraction`."""

from __future__ import annotations

from burnish.core.protocols import VerifierCase
from burnish.verify.case_builders import fooled_others, must_fail, must_pass, null_replies

_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0},
        "role": {"enum": ["admin", "user"]},
    },
    "required": ["name", "age"],
}
_SHAPE = {"schema": _SCHEMA}
_ANN = {"schema": _SCHEMA, "value": {"name": "Ann", "age": 41}}
_ORDER = {"value": {"customer": "Zoë", "paid": True, "total": 12.5, "items": [{"sku": "A1", "count": 2}]}}
_ORDER_TEXT = '{"customer": "Zoë", "paid": true, "total": 12.5, "items": [{"sku": "A1", "count": 2}]}'

JSON_SCHEMA_CASES: tuple[VerifierCase, ...] = (
    must_pass(_ANN, '{"name": "Ann", "age": 41}', "the value"),
    must_pass(_ANN, '{"age": 41, "name": "Ann"}', "key order does not matter"),
    must_pass(_ANN, '```json\n{"name": "Ann", "age": 41}\n```', "one fence around it all"),
    must_pass(_SHAPE, '{"name": "Bo", "age": 0, "role": "user"}', "any value that fits, where none is given"),
    must_fail(_SHAPE, '{"name": "Bo"}', "a required key is missing"),
    must_fail(_SHAPE, '{"name": "Bo", "age": -1}', "out of range"),
    must_fail(_SHAPE, '{"name": "Bo", "age": 1, "role": "root"}', "not in the enumeration"),
    must_fail(_SHAPE, '[{"name": "Bo", "age": 1}]', "another type at the top"),
    must_fail(_ANN, '{"name": "Ann", "age": 42}', "fits, but is another value"),
    fooled_others(_SHAPE, '{"name": "Bo", "age": 1, "note": "x"}', "a key that the schema does not name"),
    fooled_others(_SHAPE, '{"name": "Bo", "age": 1.0}', "a decimal for an integer"),
    fooled_others(_SHAPE, '{"name": "Bo", "age": true}', "a boolean for an integer"),
    fooled_others(_ANN, '{"name": "x", "age": 0}', "minimal junk that satisfies the schema"),
    fooled_others(_ANN, '{"name": "Ann", "age": 1, "age": 41}', "duplicate keys"),
    fooled_others(_ANN, '{"name": "Ann", "age": 41} I hope this helps', "trailing text"),
    fooled_others(_ANN, 'Sure:\n```json\n{"name": "Ann", "age": 41}\n```', "text before a fence"),
    fooled_others(_ANN, '{"name": "Bo", "age": 1}\n{"name": "Ann", "age": 41}', "several objects"),
    fooled_others(_SHAPE, '{"name": "Bo", "age": NaN}', "NaN"),
    fooled_others(_SHAPE, '{"name": "Bo", "age": Infinity}', "Infinity"),
    fooled_others({"schema": {"type": "number"}}, "1e400", "overflows to infinity"),
    fooled_others(
        {"schema": {"type": "number", "multipleOf": 0.01}}, "9" * 309, "an integer that no double holds, to be divided"
    ),
    fooled_others(_ANN, str(_SCHEMA), "echo the schema"),
    fooled_others(_ANN, "{'name': 'Ann', 'age': 41}", "Python's literal syntax"),
    *null_replies(_ANN),
)

EXTRACTION_CASES: tuple[VerifierCase, ...] = (
    must_pass(_ORDER, _ORDER_TEXT, "the object"),
    must_pass(_ORDER, f"```\n{_ORDER_TEXT}\n```", "one fence around it all"),
    must_pass(_ORDER, _ORDER_TEXT.replace("12.5", "12.50"), "numbers by value"),
    must_pass(_ORDER, _ORDER_TEXT.replace('"count": 2', '"count": 2.0'), "numbers by value, integers too"),
    must_pass(_ORDER, _ORDER_TEXT.replace("Zoë", "Zoe\u0308"), "the same text, differently composed"),
    must_pass({"value": {"a": None, "b": []}}, '{"b": [], "a": null}', "null and empty values"),
    must_fail(_ORDER, _ORDER_TEXT.replace("12.5", "12.6"), "one field wrong"),
    must_fail(_ORDER, _ORDER_TEXT.replace("12.5", '"12.5"'), "a string for a number"),
    must_fail(_ORDER, _ORDER_TEXT.replace("true", "1"), "a number for a boolean"),
    must_fail(_ORDER, _ORDER_TEXT.replace("Zoë", "zoë"), "case counts"),
    must_fail(_ORDER, '{"customer": "Zoë"}', "fields missing"),
    must_fail({"value": {"a": [1, 2]}}, '{"a": [2, 1]}', "arrays are ordered"),
    must_fail({"value": {"a": None}}, "{}", "null is not absent"),
    fooled_others(_ORDER, _ORDER_TEXT[:-1] + ', "total_usd": 12.5}', "a field that nobody asked for"),
    fooled_others(_ORDER, '{"total": 1, ' + _ORDER_TEXT[1:], "duplicate keys"),
    fooled_others(_ORDER, f"{_ORDER_TEXT} Done.", "trailing text"),
    fooled_others(_ORDER, f"Here it is: {_ORDER_TEXT}", "leading text"),
    fooled_others(_ORDER, f"{_ORDER_TEXT}\n{{}}", "several objects"),
    fooled_others(_ORDER, f"[{_ORDER_TEXT}]", "list of candidates"),
    fooled_others(_ORDER, _ORDER_TEXT.replace("12.5", "NaN"), "NaN"),
    fooled_others(_ORDER, _ORDER_TEXT.replace("12.5", "1e400"), "overflows to infinity"),
    fooled_others({"value": {"a": 0}}, '{"a": 1e-400}', "vanishes to zero"),
    fooled_others(_ORDER, _ORDER_TEXT.replace("A1", "\u0410" + "1"), "a Cyrillic look-alike in a value"),
    fooled_others(_ORDER, _ORDER_TEXT.replace("sku", "s\u200bku"), "a zero-width character in a key"),
    fooled_others(_ORDER, _ORDER_TEXT.replace("12.5", "10 + 2.5"), "restate the expression"),
    fooled_others(_ORDER, "{}", "an empty object"),
    *null_replies(_ORDER),
)
