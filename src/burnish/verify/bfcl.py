"""`bfcl`: `tool_call` with the comparison of the Berkeley Function Calling Leaderboard.

Gold: as `tool_call`, with the leaderboard's accepted values as they stand: `{"call": {"name": ...,
"arguments": {parameter: [accepted, ...]}}}`, or `{"call": null}` for its irrelevance set. Three things differ
from `tool_call`:

- strings are equal when they agree without case, without the characters space , . / - _ * ^ and with either
  kind of quotation mark;
- an accepted object lists accepted values for each of its keys ("" lets the key be left out), also inside an
  accepted array; below that, objects are compared as they are;
- a scalar may have the type of an accepted value instead of the schema's, and enumerations are not checked.

Source: the leaderboard's AST evaluation for Python (Patil et al., "The Berkeley Function Calling
Leaderboard", ICML 2025, section on AST evaluation).
Departs: the reply is JSON in `tool_call`'s form rather than Python call syntax, names are compared as written
(no exchange of dots and underscores), exactly one call is read, and where no call is wanted only the declared
form of no call passes (the leaderboard passes any reply that does not parse, a malformed call included). So
scores here are not comparable with its table.
"""

from __future__ import annotations

from typing import Any

from burnish.verify.cases_tools import BFCL_CASES
from burnish.verify.json_extract import json_equal
from burnish.verify.tool_call import ToolCall, argument_validator, normalised_schema

_IGNORED = str.maketrans("'", '"', " ,./-_*^")


class Bfcl(ToolCall):
    """PASS iff the reply is an accepted call by the leaderboard's comparison."""

    name = "bfcl"
    version = "2"
    cases = BFCL_CASES

    def _fits(self, value: Any, parameter: str, accepted: list[Any], schema: dict[str, Any] | None) -> bool:
        is_scalar = not isinstance(value, (list, dict))
        if is_scalar and any(a != "" and type(value) is type(a) for a in accepted):
            return True
        if schema is None:
            return super()._fits(value, parameter, accepted, None)
        return bool(argument_validator(schema, parameter, _types_only).is_valid(value))

    def _equal(self, value: Any, accepted: Any) -> bool:
        return bfcl_equal(value, accepted)


def standardised(text: str) -> str:
    """The text as the leaderboard compares it."""
    return text.translate(_IGNORED).lower()


def bfcl_equal(value: Any, accepted: Any, *, keys_list_values: bool = True) -> bool:
    """The leaderboard's comparison of one value with one accepted value.

    `keys_list_values`: an accepted object holds lists of accepted values.
    """
    if isinstance(value, str) and isinstance(accepted, str):
        # A text of ignored characters alone would otherwise equal every other one, and "" (left out).
        return standardised(value) == standardised(accepted) if standardised(accepted) else value == accepted
    if isinstance(value, list) and isinstance(accepted, list):
        return len(value) == len(accepted) and all(
            bfcl_equal(v, a, keys_list_values=keys_list_values) for v, a in zip(value, accepted, strict=True)
        )
    if isinstance(value, dict) and isinstance(accepted, dict):
        if not keys_list_values:
            return set(value) == set(accepted) and all(
                bfcl_equal(v, accepted[key], keys_list_values=False) for key, v in value.items()
            )
        return set(value) <= set(accepted) and all(
            _key_accepted(value, key, choices) for key, choices in accepted.items()
        )
    return json_equal(value, accepted)


def _key_accepted(value: dict[str, Any], key: str, choices: Any) -> bool:
    choices = choices if isinstance(choices, list) else [choices]
    if key not in value:
        return "" in choices
    return any(bfcl_equal(value[key], choice, keys_list_values=False) for choice in choices)


def _types_only(schema: Any) -> Any:
    """The schema's types, without the constraints that the leaderboard does not check."""
    full = normalised_schema(schema)
    if not isinstance(full, dict):
        return full
    kept = {key: full[key] for key in ("type", "$ref", "$defs", "definitions", "anyOf", "oneOf") if key in full}
    if isinstance(full.get("items"), dict):
        kept["items"] = _types_only(full["items"])
    return kept
