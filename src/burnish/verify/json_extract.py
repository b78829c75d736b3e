"""The one JSON value that a reply consists of, read strictly.

The rule, which prompts should state: the whole reply is one JSON value, optionally inside one ``` fence (with
or without the word json); nothing before it, nothing after it. Within it: no duplicate keys, no NaN or
Infinity, no number that overflows or vanishes in a double, no lone surrogates, at most `MAX_JSON_CHARS`
characters and `MAX_JSON_DEPTH` levels. Leaves out whether the value is right.
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from typing import Any, NoReturn

MAX_JSON_CHARS = 65_536  # as base.MAX_REPLY_CHARS
MAX_JSON_DEPTH = 64  # the deepest value in the public sets we check is 9; the parser's own limit is far above
_MAX_INT_DIGITS = 309  # as many as the largest double has, so that integers and decimals have the same range

_WHITESPACE = " \t\r\n"  # JSON's own; any other space around the value is text
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)
_STRUCTURE = re.compile(r'["\\\[\]{}]')


class JsonRejected(Exception):
    """The text is not one strict JSON value; the message says why."""


def parse_json_reply(text: str) -> Any:
    """The value that a reply consists of.

    Raises: JsonRejected.
    """
    if len(text) > MAX_JSON_CHARS:
        raise JsonRejected(f"{len(text)} characters; at most {MAX_JSON_CHARS} are read")
    body = text.strip(_WHITESPACE)
    if body.startswith("```"):
        fenced = _FENCE.fullmatch(body)
        if fenced is None:
            raise JsonRejected("a code fence that is not one fence around the whole reply")
        body = fenced.group(1).strip(_WHITESPACE)
    return parse_strict_json(body)


def parse_strict_json(text: str) -> Any:
    """The value of a text that is one JSON value and nothing else.

    Raises: JsonRejected.
    """
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        raise JsonRejected(f"not JSON: {error.msg} at character {error.pos}") from None
    _check_strings(value)
    return value


def json_equal(left: Any, right: Any) -> bool:
    """Equality of JSON values by exact type: numbers by value (1 equals 1.0), true is not 1, strings exactly
    after NFC, key order irrelevant, arrays in order.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right
    if isinstance(left, str) and isinstance(right, str):
        return nfc(left) == nfc(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        right_by_key = {nfc(key): item for key, item in right.items()}
        return {nfc(key) for key in left} == set(right_by_key) and all(
            json_equal(item, right_by_key[nfc(key)]) for key, item in left.items()
        )
    return left is None and right is None


def nfc(text: str) -> str:
    """The text in Unicode normalization form C, in which equal-looking accents compare equal."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the recursive parser sees it: one pass over quotes, escapes and brackets."""
    depth, in_string, escaped_at = 0, False, -1
    for match in _STRUCTURE.finditer(text):
        character, position = match.group(), match.start()
        if position == escaped_at:
            continue
        if in_string:
            if character == "\\":
                escaped_at = position + 1
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise JsonRejected(f"nested deeper than {MAX_JSON_DEPTH} levels")
        elif character in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for key, value in pairs:
        if nfc(key) in seen:
            raise JsonRejected(f"the key {key[:40]!r} stands twice in one object")
        seen.add(nfc(key))
        found[key] = value
    return found


def _refuse_constant(literal: str) -> NoReturn:
    raise JsonRejected(f"{literal} is not JSON")


def _float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise JsonRejected(f"{literal[:40]} is beyond the range of a double")
    if value == 0 and any(digit in "123456789" for digit in re.split("[eE]", literal)[0]):
        raise JsonRejected(f"{literal[:40]} is not zero, but too small for a double")
    return value


def _int(literal: str) -> int:
    if len(literal) > _MAX_INT_DIGITS:
        raise JsonRejected(f"an integer of {len(literal)} digits")
    value = int(literal)
    if abs(value) > sys.float_info.max:  # as decimals: what divides it, as `multipleOf` does, must not overflow
        raise JsonRejected(f"{literal[:40]} is beyond the range of a double")
    return value


def _check_strings(value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise JsonRejected("a lone surrogate in a string")
    elif isinstance(value, list):
        for item in value:
            _check_strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_strings(key)
            _check_strings(item)
