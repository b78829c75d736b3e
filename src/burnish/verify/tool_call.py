"""`tool_call`: the reply is the right call, or says that no tool fits.

The rule, which prompts should state. The reply is one of three states:

- CALL: one native tool call and no text, or one JSON object `{"name": ..., "arguments": {...}}` with exactly
  these keys, read as `json_extract` declares;
- NO_CALL: `{"name": "none", "arguments": {}}` or `null`;
- UNPARSEABLE: everything else, prose and malformed calls included. It fails, also where no call was wanted: a
  call that went wrong is never a refusal.

Gold: `{"call": {"name": ..., "arguments": {parameter: [accepted values]}}, "optional": [parameters]}`, or
`{"call": null}`. A parameter may be left out where it is under `optional` or "" is among its accepted values
(the form of BFCL). Each argument given must be named in the gold, fit the task's schema (`integer` is written
as an integer; an integer is accepted for `number`; true is not 1) and equal an accepted value. A task without
any tools has no schema: then only the accepted values decide, and an accepted integer needs an integer.

Leaves out several calls in one reply, and executing anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema.protocols import Validator

from burnish.core.errors import DataError
from burnish.core.types import ParseState, Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed, require_object, unparseable
from burnish.verify.cases_tools import TOOL_CALL_CASES
from burnish.verify.json_extract import JsonRejected, json_equal, parse_json_reply, parse_strict_json
from burnish.verify.json_schema import strict_validator
from burnish.verify.text import shown

NO_CALL_NAME = "none"

TYPE_SYNONYMS = {"dict": "object", "float": "number", "tuple": "array"}
"""Type names of the Berkeley Function Calling Leaderboard and their JSON Schema twins; its `any` is no
constraint."""

_IN_PLACE = ("allOf", "anyOf", "oneOf", "prefixItems")


@dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallGold:
    """The expected call: accepted values by parameter, and the parameters that may be left out."""

    name: str
    accepted: Mapping[str, list[Any]]
    optional: frozenset[str]


class CallRejected(Exception):
    """The reply is neither a call nor the declared form of no call; the message says why."""


def read_call(reply: Reply) -> Call | None:
    """The call of a reply, or None where it says in the declared form that no tool fits.

    Raises: CallRejected where it is unparseable.
    """
    if reply.malformed_call:
        raise CallRejected("a tool call that the template's grammar cannot parse")
    if reply.tool_calls:
        if len(reply.tool_calls) > 1 or reply.text.strip():
            raise CallRejected("a native call must stand alone: one call, no text beside it")
        return Call(reply.tool_calls[0].name, _strict_arguments(reply.tool_calls[0].arguments))
    try:
        value = parse_json_reply(reply.text)
    except JsonRejected as rejected:
        raise CallRejected(str(rejected)) from None
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise CallRejected('not an object with exactly the keys "name" and "arguments"')
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise CallRejected("the name is not a string, or the arguments are not an object")
    if name == NO_CALL_NAME:
        if arguments:
            raise CallRejected("no call, yet with arguments")
        return None
    return Call(name, arguments)


class ToolCall(TextVerifier):
    """PASS iff the reply is the gold call, or declares no call where none is wanted.

    Components, for reading only: `parsed`, `name`, `arguments` (share of the arguments given or wanted that
    are right).
    """

    name = "tool_call"
    version = "2"
    cases = TOOL_CALL_CASES

    def read_gold(self, payload: Any) -> CallGold | None:
        """The expected call, None for no call."""
        gold = require_object(payload, self.name, ["call"], ["optional"])
        if gold["call"] is None:
            return None
        call = require_object(gold["call"], self.name, ["name", "arguments"])
        name, accepted, optional = call["name"], call["arguments"], gold.get("optional", [])
        if not isinstance(name, str) or not name or name == NO_CALL_NAME:
            raise DataError(f"{self.name}: a tool cannot be named {name!r}", fix="give the tool another name")
        if not isinstance(accepted, dict) or not all(isinstance(v, list) and v for v in accepted.values()):
            raise DataError(f"{self.name}: arguments do not map to lists of accepted values", fix="list them")
        if not isinstance(optional, list) or not set(optional) <= set(accepted):
            raise DataError(f"{self.name}: optional names parameters that have no accepted values", fix="list them")
        may_miss = {*optional, *(parameter for parameter, values in accepted.items() if "" in values)}
        return CallGold(name, accepted, frozenset(may_miss))

    def check(self, reply: Reply, gold: CallGold | None, task: Task) -> Finding:
        """Read the call, then hold name and arguments against the gold."""
        schema = _schema_of(gold, task, self.name)  # first: a task at fault is at fault whatever the reply says
        try:
            call = read_call(reply)
        except CallRejected as rejected:
            return unparseable(
                str(rejected),
                components=_components(0.0, 0.0, 0.0),
                reply=shown(reply.text),
                parse_state=ParseState.UNPARSEABLE.value,
            )
        state = (ParseState.NO_CALL if call is None else ParseState.CALL).value
        if gold is None and call is None:
            return passed("no call, as wanted", components=_components(1.0, 1.0, 1.0), parse_state=state)
        if gold is None or call is None or call.name != gold.name:
            reason = "no call where a tool fits" if call is None else "a call of a tool that does not fit"
            return failed(reason, components=_components(1.0, 0.0, 0.0), reply=_quoted(reply, call), parse_state=state)
        wrong = self._wrong_arguments(call, gold, schema)
        considered = set(call.arguments) | (set(gold.accepted) - gold.optional)
        share = 1.0 - len(wrong) / len(considered) if considered else 1.0
        components = _components(1.0, 1.0, share)
        if not wrong:
            return passed("the call is right", components=components, parse_state=state)
        reason = f"{len(wrong)} of {len(considered)} arguments are wrong"
        named = {shown(parameter): problem for parameter, problem in wrong.items()}
        return failed(reason, components=components, reply=_quoted(reply, call), parse_state=state, wrong=named)

    def _wrong_arguments(self, call: Call, gold: CallGold, schema: dict[str, Any] | None) -> dict[str, str]:
        """What is wrong with each argument that is wrong."""
        wrong = {p: "missing" for p in gold.accepted if p not in call.arguments and p not in gold.optional}
        for parameter, value in call.arguments.items():
            if parameter not in gold.accepted:
                wrong[parameter] = "not asked for"
            elif not self._fits(value, parameter, gold.accepted[parameter], schema):
                wrong[parameter] = "of the wrong type"
            elif not any(self._equal(value, accepted) for accepted in gold.accepted[parameter]):
                wrong[parameter] = "has the wrong value"
        return wrong

    def _fits(self, value: Any, parameter: str, accepted: list[Any], schema: dict[str, Any] | None) -> bool:
        """Whether the value has the declared type."""
        if schema is None:
            return not isinstance(value, float) or any(isinstance(a, float) for a in accepted)
        return bool(argument_validator(schema, parameter, normalised_schema).is_valid(value))

    def _equal(self, value: Any, accepted: Any) -> bool:
        """Whether the value is this accepted value."""
        return json_equal(value, accepted)


def normalised_schema(schema: Any) -> Any:
    """The schema with BFCL's type names replaced by JSON Schema's."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, item in schema.items():
        if key == "type" and isinstance(item, str):
            if item != "any":
                result[key] = TYPE_SYNONYMS.get(item, item)
        elif key in ("properties", "$defs", "definitions") and isinstance(item, dict):
            result[key] = {name: normalised_schema(child) for name, child in item.items()}
        elif key in _IN_PLACE and isinstance(item, list):
            result[key] = [normalised_schema(child) for child in item]
        elif key in ("items", "additionalProperties", "not", "contains"):
            result[key] = normalised_schema(item)
        else:
            result[key] = item
    return result


def argument_validator(schema: dict[str, Any], parameter: str, dialect: Any) -> Validator:
    """A strict validator of one parameter, its schema first passed through `dialect` (a plain function)."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return _cached_validator(json.dumps(dialect({**definitions, **schema["properties"][parameter]}), sort_keys=True))


@lru_cache(maxsize=512)  # a group's replies share their task's schemas; compiling one takes about a millisecond
def _cached_validator(schema: str) -> Validator:
    return strict_validator(json.loads(schema))


def _schema_of(gold: CallGold | None, task: Task, verifier: str) -> dict[str, Any] | None:
    """The parameters' schema of the gold tool; None for no call and for a task without tools.

    Raises: DataError where the task has tools and the gold call does not fit them.
    """
    if gold is None or not task.tools:
        return None
    schema = next((tool.parameters for tool in task.tools if tool.name == gold.name), None)
    if schema is None:
        raise DataError(f"{verifier}: the task has no tool of the gold's name", where=task.id, fix="mend the task")
    properties = schema.get("properties", {})
    stray = sorted(set(gold.accepted) - set(properties))
    absent = sorted(set(schema.get("required", [])) - set(gold.accepted))
    if stray or absent:
        raise DataError(
            f"{verifier}: the gold names parameters the tool lacks {stray}, or lacks required ones {absent}",
            where=task.id,
            fix="mend the gold or the schema",
        )
    for parameter in gold.accepted:
        argument_validator(schema, parameter, normalised_schema)  # a schema at fault shows here, whatever the reply
    return schema


def _strict_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Native arguments held to the same rules as written ones (finite numbers, depth, whole strings)."""
    try:
        value = parse_strict_json(json.dumps(arguments))
    except (JsonRejected, TypeError, ValueError, RecursionError) as error:
        raise CallRejected(f"native arguments that are not strict JSON: {error}") from None
    if not isinstance(value, dict):
        raise CallRejected("native arguments that are not an object")
    return value


def _quoted(reply: Reply, call: Call | None) -> str:
    if reply.text or call is None:
        return shown(reply.text)
    return shown(json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False))


def _components(parsed: float, name: float, arguments: float) -> dict[str, float]:
    return {"parsed": parsed, "name": name, "arguments": arguments}
