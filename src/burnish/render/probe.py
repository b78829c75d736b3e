"""What a chat template can do, found by rendering small conversations with it.

A template says nowhere how it wants arguments, whether it knows tools, or how its calls are written. So each
possible form is tried in a fixed order and the first whose output holds everything that went in is taken;
the grammar is the one that reads the rendered call back. What was found is on the renderer, to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from burnish.core.errors import TemplateError
from burnish.core.types import (
    Message,
    ParseState,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from burnish.render.grammar import Grammar, parse_reply
from burnish.render.messages import EmptyContent, MessageForm, message_dicts, tool_dicts
from burnish.render.template import ChatTemplate

_USER = Message.of(Role.USER, "probe question")
_CALL = ToolCallPart("probe_tool", {"probe_key": "probe_value"}, call_id="probe0001")
_TOOL = ToolSpec(
    "probe_tool",
    "probe description",
    {"type": "object", "properties": {"probe_key": {"type": "string", "description": "d"}}, "required": []},
)
_REASONING = "probe reasoning"
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_GRAMMARS = (Grammar.HERMES, Grammar.LLAMA_JSON, Grammar.DEEPSEEK, Grammar.HARMONY, Grammar.JSON)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found.

    `grammar` is None where the template writes calls in a way that no grammar here reads; `opens_reasoning`:
    the generation prompt ends inside a reasoning block; `drops` names what the template leaves out without a
    word, each to be refused: "system message", "tool result", "second call of a turn",
    "text beside a call".
    """

    form: MessageForm
    grammar: Grammar | None
    opens_reasoning: bool
    drops: frozenset[str]


def probe(template: ChatTemplate) -> Capabilities:
    """Capabilities of a template.

    Raises: TemplateError where it cannot even render a user's question and an answer.
    """
    answer = Message.of(Role.ASSISTANT, "probe answer")
    template.render(message_dicts((_USER, answer), (), MessageForm()))
    prompt = template.render(message_dicts((_USER,), (), MessageForm()), add_generation_prompt=True).text
    lists_tools = _lists_tools(template)
    form = _call_form(template, lists_tools)
    grammar: Grammar | None = Grammar.HERMES
    if form is None:
        form = MessageForm(calls_in_text=True, tools_in_text=True)
    else:
        grammar = _grammar(template, form, lists_tools)
        form = replace(form, tools_in_text=not lists_tools)
    form = replace(form, reasoning_field=_reasoning_field(template))
    return Capabilities(form, grammar, prompt.rstrip().endswith("<think>"), _drops(template, form))


def _try(template: ChatTemplate, messages: tuple[Message, ...], form: MessageForm, *, tools: bool) -> str | None:
    given = (_TOOL,) if tools else ()
    try:
        return template.render(message_dicts(messages, given, form), tools=tool_dicts(given)).text
    except TemplateError:
        return None


def _lists_tools(template: ChatTemplate) -> bool:
    answer = Message.of(Role.ASSISTANT, "probe answer")
    text = _try(template, (_USER, answer), MessageForm(), tools=True)
    return text is not None and "probe description" in text


def _call_form(template: ChatTemplate, lists_tools: bool) -> MessageForm | None:
    call = Message(Role.ASSISTANT, (_CALL,))
    for as_text, empty in product((False, True), EmptyContent):
        form = MessageForm(arguments_as_text=as_text, empty_content=empty)
        text = _try(template, (_USER, call), form, tools=lists_tools)
        if text is None or "probe_value" not in text:
            continue
        if "'probe_key'" in text or '\\"probe_key' in text:  # Python's repr, or JSON inside a JSON string
            continue
        return form
    return None


def _grammar(template: ChatTemplate, form: MessageForm, lists_tools: bool) -> Grammar | None:
    call = Message(Role.ASSISTANT, (_CALL,))
    given = (_TOOL,) if lists_tools else ()
    prompt = template.render(
        message_dicts((_USER,), given, form), tools=tool_dicts(given), add_generation_prompt=True
    ).text
    text = _try(template, (_USER, call), form, tools=lists_tools) or ""
    if not text.startswith(prompt):
        prompt = prompt.removesuffix("<think>\n")
    reply = text.removeprefix(prompt)
    for grammar in _GRAMMARS:
        for cut in _cuts(reply):
            message, state = parse_reply(cut, grammar)
            if state is ParseState.CALL and [(c.name, c.arguments) for c in message.tool_calls] == [
                (_CALL.name, _CALL.arguments)
            ]:
                return grammar
    return None


def _drops(template: ChatTemplate, form: MessageForm) -> frozenset[str]:
    """What is written nowhere although the template does not refuse it."""
    twice = Message(Role.ASSISTANT, (_CALL, replace(_CALL, arguments={"probe_key": "probe_second"})))
    called = Message(Role.ASSISTANT, (_CALL,))
    beside = Message(Role.ASSISTANT, (TextPart("probe text"), _CALL))
    result = Message(Role.TOOL, (ToolResultPart("probe_result", _CALL.call_id, _CALL.name),))
    trials: dict[str, tuple[tuple[Message, ...], tuple[str, ...]]] = {
        "system message": ((Message.of(Role.SYSTEM, "probe_system"), _USER), ("probe_system",)),
        "second call of a turn": ((_USER, twice), ("probe_second",)),
        "text beside a call": ((_USER, beside), ("probe text", "probe_value")),
        "tool result": ((_USER, called, result), ("probe_result",)),
    }
    dropped = set()
    for name, (messages, marks) in trials.items():
        text = _try(template, messages, form, tools=not form.tools_in_text and name != "system message")
        if text is not None and not all(mark in text for mark in marks):
            dropped.add(name)
    return frozenset(dropped)


def _cuts(reply: str) -> list[str]:
    """The reply, and the reply without its last control token (an end token, unless part of the call)."""
    stripped = reply.rstrip("\n")
    start = stripped.rfind("<")
    return [stripped, stripped[:start]] if start > 0 and stripped.endswith(">") else [stripped]


def _reasoning_field(template: ChatTemplate) -> str | None:
    for field in _REASONING_FIELDS:
        if field not in template.source:
            continue
        message = Message(Role.ASSISTANT, (ReasoningPart(_REASONING), TextPart("probe answer")))
        text = _try(template, (_USER, message), MessageForm(reasoning_field=field), tools=False)
        if text is not None and _REASONING in text:
            return field
    return None
