"""Reply text -> message: the tool-call grammar of each family, and the split of reasoning from the answer.

Three states, never two: CALL (every call is well formed), NO_CALL (the reply does not try), UNPARSEABLE (it
tries and fails: the whole text stays in one text part, nothing is guessed or repaired). No text raises.

Leaves out whether the named tool exists and its arguments fit its schema: that is a verifier's question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from burnish.core.types import Message, ParseState, Part, ReasoningPart, Role, TextPart, ToolCallPart


class Grammar(StrEnum):
    """How a family writes tool calls."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen2.5, Qwen3, Hermes
    LLAMA_JSON = "llama_json"  # {"name": ..., "parameters": {...}} is the whole reply
    DEEPSEEK = "deepseek"  # <|tool_calls_begin|>...: DeepSeek V3 and R1
    HARMONY = "harmony"  # channels: gpt-oss
    JSON = "json"  # {"name": ..., "arguments": {...}}, the whole reply
    NONE = "none"  # every reply is text


def parse_reply(
    text: str, grammar: Grammar = Grammar.HERMES, *, in_reasoning: bool = False
) -> tuple[Message, ParseState]:
    """The assistant message in a reply, and what became of its tool calls.

    `in_reasoning`: the prompt ended inside a reasoning block, so the reply starts there. Reasoning that never
    ends leaves an empty answer. Never raises.
    """
    if grammar is Grammar.HARMONY:
        return _parse_harmony(text)
    reasoning, answer = _split_reasoning(text, in_reasoning)
    parts: list[Part] = [ReasoningPart(reasoning)] if reasoning else []
    parsed = _PARSERS[grammar](answer)
    if parsed is None:
        return _message([*parts, *_text_parts(answer)]), ParseState.UNPARSEABLE
    content, calls = parsed
    state = ParseState.CALL if calls else ParseState.NO_CALL
    return _message([*parts, *_text_parts(content), *calls]), state


_Parsed = tuple[str, list[ToolCallPart]] | None
"""Text outside the calls, and the calls; None where a call was tried and is malformed."""


def _message(parts: list[Part]) -> Message:
    return Message(Role.ASSISTANT, tuple(parts))


def _text_parts(text: str) -> list[Part]:
    return [TextPart(text)] if text else []


def _split_reasoning(text: str, in_reasoning: bool) -> tuple[str, str]:
    opened = re.match(r"\s*<think>", text)
    if opened is None and not in_reasoning:
        return "", text
    body = text[opened.end() :] if opened else text
    reasoning, _, answer = body.partition("</think>")
    return reasoning.strip("\n"), answer.lstrip("\n")


# --- strict JSON ------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _json_at(text: str, start: int = 0) -> tuple[Any, int] | None:
    """The JSON value at `start` and where it ends, or None. No duplicate keys, no NaN, no runaway nesting."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _whole_json(text: str) -> Any:
    """The JSON value that is the whole text but for white space around it, or None."""
    stripped = text.strip(" \t\r\n")
    found = _json_at(stripped)
    return found[0] if found and found[1] == len(stripped) else None


def _call_of(value: Any, arguments_key: str) -> ToolCallPart | None:
    if not isinstance(value, dict) or set(value) != {"name", arguments_key}:
        return None
    name, arguments = value["name"], value[arguments_key]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCallPart(name, arguments)


# --- families ---------------------------------------------------------------------------------------


def _parse_none(text: str) -> _Parsed:
    return text, []


_HERMES_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _parse_hermes(text: str) -> _Parsed:
    calls = [_call_of(_whole_json(block), "arguments") for block in _HERMES_BLOCK.findall(text)]
    outside = _HERMES_BLOCK.sub("", text)
    if None in calls or "<tool_call" in outside or "</tool_call" in outside:
        return None
    if not calls:
        return text, []
    first, last = text.index("<tool_call>"), text.rindex("</tool_call>") + len("</tool_call>")
    between = _HERMES_BLOCK.sub("", text[first:last])
    after = text[last:]
    kept = [piece for piece in (text[:first].rstrip("\n"), between.strip(), after.strip()) if piece]
    return "\n".join(kept), [call for call in calls if call is not None]


def _parse_json_call(text: str, arguments_key: str) -> _Parsed:
    value = _whole_json(text)
    if value is None:
        tries = text.lstrip().startswith("{") and re.search(rf'"name"|"{arguments_key}"', text) is not None
        return None if tries else (text, [])
    if not (isinstance(value, dict) and "name" in value and arguments_key in value):
        return text, []  # some other JSON is an answer, not an attempt at a call
    call = _call_of(value, arguments_key)
    return None if call is None else ("", [call])


def _parse_json(text: str) -> _Parsed:
    return _parse_json_call(text, "arguments")


_PYTHON_TAG = "<|python_tag|>"


def _parse_llama(text: str) -> _Parsed:
    body = text.strip()
    tagged = body.startswith(_PYTHON_TAG)
    if _PYTHON_TAG in body[len(_PYTHON_TAG) if tagged else 0 :]:
        return None
    body = body.removeprefix(_PYTHON_TAG)
    calls, position = [], 0
    while (found := _json_at(body, position)) is not None:
        call = _call_of(found[0], "parameters")
        if call is None:
            break
        calls.append(call)
        separator = re.compile(r"\s*;?\s*").match(body, found[1])
        position = separator.end() if separator else found[1]
        if position == len(body):
            return "", calls
    if calls or tagged:
        return None
    return _parse_json_call(text, "parameters")


_DS_BEGIN, _DS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DS_CALL = re.compile(
    r"\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>([^\n]+)\n```json\n(.*?)\n```<｜tool▁call▁end｜>",
    re.DOTALL,
)


def _parse_deepseek(text: str) -> _Parsed:
    content, marker, rest = text.partition(_DS_BEGIN)
    if not marker:
        return None if "<｜tool▁" in text else (text, [])
    calls, position = [], 0
    while (match := _DS_CALL.match(rest, position)) is not None:
        arguments = _whole_json(match[2])
        if not isinstance(arguments, dict):
            return None
        calls.append(ToolCallPart(match[1], arguments))
        position = match.end()
    # V3's own template leaves the closing token out after a single call, so its absence is no fault.
    if not calls or rest[position:].strip() not in ("", _DS_END) or "<｜tool▁" in content:
        return None
    return content.rstrip("\n"), calls


_HARMONY_BLOCK = re.compile(
    r"(?:<\|start\|>assistant)?(?P<before>[^<]*)<\|channel\|>(?P<channel>analysis|commentary|final)(?P<after>[^<]*)"
    r"(?:<\|constrain\|>json)?<\|message\|>(?P<body>.*?)(?:<\|end\|>|<\|call\|>|<\|return\|>|$(?!\n))",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


def _parse_harmony(text: str) -> tuple[Message, ParseState]:
    parts: list[TextPart | ReasoningPart | ToolCallPart] = []
    position = 0
    while position < len(text):
        match = _HARMONY_BLOCK.match(text, position)
        part = _harmony_part(match) if match else None
        if match is None or part is None:
            if position == 0 and "<|" not in text:
                return _message(_text_parts(text)), ParseState.NO_CALL
            return _message(_text_parts(text)), ParseState.UNPARSEABLE
        parts.append(part)
        position = match.end()
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    kept = [part for part in parts if isinstance(part, ToolCallPart) or part.text]
    return _message([*kept]), ParseState.CALL if calls else ParseState.NO_CALL


def _harmony_part(match: re.Match[str]) -> TextPart | ReasoningPart | ToolCallPart | None:
    recipient = _RECIPIENT.search(match["before"] + " " + match["after"])
    body = match["body"]
    if "<|start|>" in body or "<|channel|>" in body:
        return None
    if recipient:
        arguments = _whole_json(body)
        return ToolCallPart(recipient[1], arguments) if isinstance(arguments, dict) else None
    if match["channel"] == "analysis":
        return ReasoningPart(body)
    return TextPart(body)


_PARSERS: dict[Grammar, Callable[[str], _Parsed]] = {
    Grammar.HERMES: _parse_hermes,
    Grammar.LLAMA_JSON: _parse_llama,
    Grammar.DEEPSEEK: _parse_deepseek,
    Grammar.JSON: _parse_json,
    Grammar.NONE: _parse_none,
}
