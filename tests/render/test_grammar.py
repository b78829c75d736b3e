from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.types import Message, ParseState, ReasoningPart, Role, TextPart, ToolCallPart
from burnish.render import Grammar, parse_reply

CALL, NO_CALL, UNPARSEABLE = ParseState.CALL, ParseState.NO_CALL, ParseState.UNPARSEABLE
GOOD = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"

CASES = [
    (Grammar.HERMES, "no call here", NO_CALL, 0),
    (Grammar.HERMES, '{"name": "f", "arguments": {}}', NO_CALL, 0),
    (Grammar.HERMES, GOOD, CALL, 1),
    (Grammar.HERMES, f"Let me look.\n{GOOD}\n{GOOD}", CALL, 2),
    (Grammar.HERMES, GOOD.removesuffix("</tool_call>"), UNPARSEABLE, 0),
    (Grammar.HERMES, GOOD + "</tool_call>", UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f"}</tool_call>', UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f", "arguments": []}</tool_call>', UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f", "arguments": {}, "x": 1}</tool_call>', UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', UNPARSEABLE, 0),
    (Grammar.HERMES, "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", UNPARSEABLE, 0),
    (Grammar.HERMES, f"{GOOD}<tool_call>broken</tool_call>", UNPARSEABLE, 0),
    (Grammar.HERMES, '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000, UNPARSEABLE, 0),
    (Grammar.LLAMA_JSON, '{"name": "f", "parameters": {"x": 1}}', CALL, 1),
    (Grammar.LLAMA_JSON, '<|python_tag|>{"name": "f", "parameters": {}}', CALL, 1),
    (Grammar.LLAMA_JSON, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', CALL, 2),
    (Grammar.LLAMA_JSON, '{"name": "f", "parameters": {}} and more', UNPARSEABLE, 0),
    (Grammar.LLAMA_JSON, '{"name": "f", "parameters": {', UNPARSEABLE, 0),
    (Grammar.LLAMA_JSON, "<|python_tag|>print(1)", UNPARSEABLE, 0),
    (Grammar.LLAMA_JSON, '{"total": 3}', NO_CALL, 0),
    (Grammar.LLAMA_JSON, "It is 3.", NO_CALL, 0),
    (Grammar.JSON, '{"name": "f", "arguments": {}}', CALL, 1),
    (Grammar.JSON, '{"name": "f", "arguments": "x"}', UNPARSEABLE, 0),
    (Grammar.JSON, '{"name": "Ada", "age": 36}', NO_CALL, 0),
    (Grammar.DEEPSEEK, DS + "<｜tool▁calls▁end｜>", CALL, 1),
    (Grammar.DEEPSEEK, DS, CALL, 1),
    (Grammar.DEEPSEEK, DS + "rest", UNPARSEABLE, 0),
    (Grammar.DEEPSEEK, "<｜tool▁call▁begin｜>function", UNPARSEABLE, 0),
    (Grammar.DEEPSEEK, "hello", NO_CALL, 0),
    (Grammar.HARMONY, "<|channel|>final<|message|>hello", NO_CALL, 0),
    (Grammar.HARMONY, ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', CALL, 1),
    (Grammar.HARMONY, '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}', CALL, 1),
    (Grammar.HARMONY, " to=functions.f<|channel|>commentary json<|message|>{x}", UNPARSEABLE, 0),
    (Grammar.HARMONY, "<|channel|>gossip<|message|>hello", UNPARSEABLE, 0),
    (Grammar.HARMONY, "hello", NO_CALL, 0),
    (Grammar.NONE, GOOD, NO_CALL, 0),
]


@pytest.mark.parametrize(("grammar", "text", "state", "num_calls"), CASES)
def test_three_states(grammar: Grammar, text: str, state: ParseState, num_calls: int) -> None:
    message, found = parse_reply(text, grammar)
    assert (found, len(message.tool_calls)) == (state, num_calls)
    if found is not CALL and grammar is not Grammar.HARMONY:
        assert message.text == text  # nothing is lost where nothing was understood


names = st.from_regex(r"[a-z_][a-z0-9_.]{0,20}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.builds(ToolCallPart, names, st.dictionaries(st.text(max_size=8), json_values, max_size=3)), max_size=3
)
# Words between tags: text that holds a grammar's own markers is not what this property is about.
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>{}｜"), max_size=40).map(str.strip)


def free_of_tags(parts: list[ToolCallPart]) -> bool:
    return not any("tool_call" in json.dumps(part.arguments) for part in parts)


def hermes(text: str, parts: list[ToolCallPart]) -> str:
    blocks = [
        "<tool_call>\n" + json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) + "\n</tool_call>"
        for c in parts
    ]
    return "\n".join([*([text] if text else []), *blocks])


@settings(deadline=None)
@given(plain, calls.filter(free_of_tags), plain.filter(bool))
def test_hermes_round_trip(text: str, parts: list[ToolCallPart], reasoning: str) -> None:
    expected = (*([TextPart(text)] if text else []), *parts)
    state = CALL if parts else NO_CALL
    assert parse_reply(hermes(text, parts)) == (Message(Role.ASSISTANT, expected), state)
    thought = f"<think>\n{reasoning}\n</think>\n\n{hermes(text, parts)}"
    assert parse_reply(thought) == (Message(Role.ASSISTANT, (ReasoningPart(reasoning), *expected)), state)


markers = [
    "<think>",
    "</think>",
    GOOD,
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    DS,
    "<｜tool▁calls▁end｜>",
]
markers += [
    "<|channel|>final",
    "<|message|>",
    "<|call|>",
    "<|start|>assistant",
    '{"name": "f", ',
    "\ud800",
    "\x00",
    "}",
]
soup = st.lists(st.sampled_from(markers) | st.text(max_size=8)).map("".join)


@settings(deadline=None, max_examples=300)
@given(soup, st.sampled_from(list(Grammar)), st.booleans())
def test_no_text_raises(text: str, grammar: Grammar, in_reasoning: bool) -> None:
    message, state = parse_reply(text, grammar, in_reasoning=in_reasoning)
    assert message.role is Role.ASSISTANT
    assert (state is CALL) == bool(message.tool_calls)


def test_unfinished_reasoning_is_no_answer() -> None:
    message, state = parse_reply(f"<think>I could answer 42 or call {GOOD}")
    assert (message.text, message.tool_calls, state) == ("", (), NO_CALL)


def test_calls_inside_reasoning_are_thoughts() -> None:
    message, state = parse_reply(f"<think>{GOOD}</think>done")
    assert (message.text, message.tool_calls, state) == ("done", (), NO_CALL)
