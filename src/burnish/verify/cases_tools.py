"""Cases of `tool_call` and `bfcl`."""

from __future__ import annotations

from burnish.core.protocols import VerifierCase
from burnish.core.types import ToolSpec
from burnish.verify.case_builders import fooled_others, must_fail, must_pass, null_replies

_BOOK = ToolSpec(
    "book_table",
    "Book a table.",
    {
        "type": "object",
        "properties": {
            "guests": {"type": "integer"},
            "budget": {"type": "number"},
            "terrace": {"type": "boolean"},
            "name": {"type": "string"},
            "area": {"type": "string", "enum": ["inside", "garden"]},
        },
        "required": ["guests", "name"],
    },
)
_CANCEL = ToolSpec("cancel_table", "Cancel.", {"type": "object", "properties": {"name": {"type": "string"}}})
_TOOLS = (_BOOK, _CANCEL)
_CALL = {
    "call": {
        "name": "book_table",
        "arguments": {"guests": [4], "name": ["Ann", "ann"], "budget": [50.0], "terrace": [True]},
    },
    "optional": ["budget", "terrace"],
}
_NONE = {"call": None}


def _reply(arguments: str, name: str = "book_table") -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


_RIGHT = _reply('{"guests": 4, "name": "Ann"}')

TOOL_CALL_CASES: tuple[VerifierCase, ...] = (
    must_pass(_CALL, _RIGHT, "the call, optional arguments left out", tools=_TOOLS),
    must_pass(_CALL, _reply('{"name": "ann", "guests": 4, "terrace": true}'), "another accepted value", tools=_TOOLS),
    must_pass(_CALL, _reply('{"guests": 4, "name": "Ann", "budget": 50}'), "an integer for a number", tools=_TOOLS),
    must_pass(_CALL, f"```json\n{_RIGHT}\n```", "one fence around it all", tools=_TOOLS),
    must_pass(_CALL, _RIGHT, "a task without tools: accepted values decide"),
    must_pass(
        {"call": {"name": "cancel_table", "arguments": {"name": ["Ann", ""]}}},
        _reply("{}", "cancel_table"),
        '"" among the accepted values lets an argument be left out',
        tools=_TOOLS,
    ),
    must_pass(_NONE, '{"name": "none", "arguments": {}}', "the declared form of no call", tools=_TOOLS),
    must_pass(_NONE, "null", "its short form", tools=_TOOLS),
    must_fail(_CALL, _reply('{"name": "Ann"}', "cancel_table"), "another tool", tools=_TOOLS),
    must_fail(_CALL, _reply('{"guests": 4}'), "a required argument is missing", tools=_TOOLS),
    must_fail(_CALL, _reply('{"guests": 5, "name": "Ann"}'), "a wrong value", tools=_TOOLS),
    must_fail(_CALL, "null", "no call where a tool fits", tools=_TOOLS),
    must_fail(_NONE, _RIGHT, "a call where no tool fits", tools=_TOOLS),
    must_fail(_CALL, f"[{_RIGHT}]", "a list of calls", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": 4.0, "name": "Ann"}'), "a decimal for an integer", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": 4.0, "name": "Ann"}'), "a decimal for an integer, without a schema"),
    fooled_others(_CALL, _reply('{"guests": "4", "name": "Ann"}'), "a string for an integer", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": 4, "name": "Ann", "terrace": 1}'), "a number for a boolean", tools=_TOOLS),
    fooled_others(
        {"call": {"name": "book_table", "arguments": {"guests": [1], "name": ["Ann"]}}},
        _reply('{"guests": true, "name": "Ann"}'),
        "a boolean for an integer",
        tools=_TOOLS,
    ),
    fooled_others(
        _CALL,
        _reply('{"guests": 4, "name": "Ann", "area": "garden"}'),
        "an argument nobody asked for",
        tools=_TOOLS,
    ),
    fooled_others(_CALL, _reply('{"guests": 4, "name": "Ann", "vip": true}'), "an invented argument", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": 9, "guests": 4, "name": "Ann"}'), "duplicate keys", tools=_TOOLS),
    fooled_others(_CALL, f"{_RIGHT} Booked!", "trailing text", tools=_TOOLS),
    fooled_others(_CALL, f"{_RIGHT}\n{_RIGHT}", "several calls", tools=_TOOLS),
    fooled_others(_CALL, f"I will not call {_RIGHT}", "deny the call", tools=_TOOLS),
    fooled_others(_CALL, "I have booked the table for you.", "claim success without acting", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": [4, 5, 6], "name": "Ann"}'), "list every candidate", tools=_TOOLS),
    fooled_others(_CALL, _reply('{"guests": 2 + 2, "name": "Ann"}'), "restate the expression", tools=_TOOLS),
    fooled_others(_CALL, _RIGHT.replace("Ann", "\u0410nn"), "a Cyrillic look-alike", tools=_TOOLS),
    fooled_others(_CALL, _RIGHT[:-1] + ', "id": 1}', "an extra key beside the call", tools=_TOOLS),
    fooled_others(_NONE, '{"name": "book_table", "arguments": {"guests": ', "a malformed call", tools=_TOOLS),
    fooled_others(_NONE, '{"name": "none", "arguments": {"guests": 4}}', "no call with arguments", tools=_TOOLS),
    fooled_others(_NONE, '{"name": "none"}', "half of the declared form", tools=_TOOLS),
    fooled_others(_NONE, "I cannot do that.", "prose is not the declared form", tools=_TOOLS),
    fooled_others(_NONE, "{}", "an empty object", tools=_TOOLS),
    *null_replies(_CALL, _TOOLS),
    *null_replies(_NONE, _TOOLS),
)

_AREA = ToolSpec(
    "geometry.area",
    "Area of a triangle.",
    {
        "type": "dict",
        "properties": {
            "base": {"type": "integer"},
            "scale": {"type": "float"},
            "unit": {"type": "string"},
            "corners": {"type": "array", "items": {"type": "tuple", "items": {"type": "float"}}},
            "style": {
                "type": "dict",
                "properties": {"colour": {"type": "string"}, "width": {"type": "integer"}},
            },
        },
        "required": ["base"],
    },
)
_BFCL_TOOLS = (_AREA,)
_BFCL = {
    "call": {
        "name": "geometry.area",
        "arguments": {
            "base": [10],
            "scale": [2.0, ""],
            "unit": ["square meters", "m^2", ""],
            "corners": [[[0.0, 1.0], [2.0, 3.0]], ""],
            "style": [{"colour": ["red", "dark red"], "width": [2, ""]}, ""],
        },
    }
}


def _area(arguments: str) -> str:
    return f'{{"name": "geometry.area", "arguments": {arguments}}}'


BFCL_CASES: tuple[VerifierCase, ...] = (
    must_pass(_BFCL, _area('{"base": 10}'), "everything optional left out", tools=_BFCL_TOOLS),
    must_pass(
        _BFCL,
        _area('{"base": 10, "unit": "Square-Meters"}'),
        "case and punctuation ignored",
        tools=_BFCL_TOOLS,
    ),
    must_pass(_BFCL, _area('{"base": 10, "scale": 2}'), "an integer for a float", tools=_BFCL_TOOLS),
    must_pass(_BFCL, _area('{"base": 10, "corners": [[0, 1], [2, 3.0]]}'), "tuples in an array", tools=_BFCL_TOOLS),
    must_pass(_BFCL, _area('{"base": 10, "style": {"colour": "Dark Red"}}'), "an accepted object", tools=_BFCL_TOOLS),
    must_pass(
        {"call": {"name": "f", "arguments": {"where": [True]}}},
        '{"name": "f", "arguments": {"where": true}}',
        "the type of an accepted value instead of the schema's",
        tools=(ToolSpec("f", "", {"type": "dict", "properties": {"where": {"type": "string"}}}),),
    ),
    must_pass(_NONE, "null", "irrelevance", tools=_BFCL_TOOLS),
    must_fail(_BFCL, _area('{"base": 11}'), "a wrong value", tools=_BFCL_TOOLS),
    must_fail(_BFCL, _area('{"base": 10, "unit": "feet"}'), "a wrong optional value", tools=_BFCL_TOOLS),
    must_fail(_BFCL, _area('{"base": 10, "style": {"colour": "blue"}}'), "a wrong value inside", tools=_BFCL_TOOLS),
    must_fail(_BFCL, _area('{"base": 10, "style": {"width": 2}}'), "a key left out inside", tools=_BFCL_TOOLS),
    must_fail(
        _BFCL,
        _area('{"base": 10, "style": {"colour": "red", "x": 1}}'),
        "a key invented inside",
        tools=_BFCL_TOOLS,
    ),
    must_fail(_BFCL, _area('{"base": 10, "corners": [[0, 1]]}'), "an array too short", tools=_BFCL_TOOLS),
    must_fail(_BFCL, '{"name": "geometry_area", "arguments": {"base": 10}}', "another name", tools=_BFCL_TOOLS),
    fooled_others(_BFCL, _area('{"base": 10.0}'), "a decimal for an integer", tools=_BFCL_TOOLS),
    fooled_others(_BFCL, _area('{"base": 10, "unit": "-"}'), "ignored characters alone", tools=_BFCL_TOOLS),
    fooled_others(_NONE, "geometry.area(base=", "a malformed call counted as a refusal", tools=_BFCL_TOOLS),
    fooled_others(_NONE, "I cannot help with that.", "prose counted as a refusal", tools=_BFCL_TOOLS),
    *null_replies(_BFCL, _BFCL_TOOLS),
    *null_replies(_NONE, _BFCL_TOOLS),
)
