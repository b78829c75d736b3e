"""Messages and tools as chat templates take them: plain dicts in the OpenAI shape.

Templates disagree on details (arguments as object or as JSON text, what content an assistant has that only
calls a tool, where reasoning goes). A `MessageForm` names the details; `probe` finds the form of a template
by rendering with it. Where a template has no room for tools or calls, they are written into the text, and
`Renderer` says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from burnish.core.errors import DataError
from burnish.core.types import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)


class EmptyContent(StrEnum):
    """What `content` is in an assistant message that only calls tools."""

    EMPTY = "empty"
    ABSENT = "absent"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How one template takes messages.

    `reasoning_field`: key for reasoning, or None: then it stands in the content as `<think>` text, so that
    nothing the model wrote is dropped. `tools_in_text`: the template does not list tools, so the system turn
    does. `calls_in_text`: it does not write calls and results, so they stand in the content.
    """

    arguments_as_text: bool = False
    empty_content: EmptyContent = EmptyContent.EMPTY
    reasoning_field: str | None = None
    tools_in_text: bool = False
    calls_in_text: bool = False


_ALLOWED: dict[Role, tuple[type[Part], ...]] = {
    Role.SYSTEM: (TextPart,),
    Role.USER: (TextPart,),
    Role.ASSISTANT: (TextPart, ReasoningPart, ToolCallPart),
    Role.TOOL: (TextPart, ToolResultPart),
}


def tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Tools in the OpenAI shape; None where there are none, which is what templates test for."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
        }
        for t in tools
    ]


def message_dicts(messages: Sequence[Message], tools: Sequence[ToolSpec], form: MessageForm) -> list[dict[str, Any]]:
    """Messages as one template takes them. With calls in text, neighbouring tool messages are one user turn.

    Raises: DataError where a part has no place in its role (an image, a tool result from the user).
    """
    dicts: list[dict[str, Any]] = []
    if form.tools_in_text and tools and (not messages or messages[0].role is not Role.SYSTEM):
        dicts.append({"role": "system", "content": tool_manual(tools, form)})
    for index, message in enumerate(messages):
        new = _message_dicts(message, form, index)
        if form.tools_in_text and tools and index == 0 and message.role is Role.SYSTEM:
            new[0]["content"] = f"{message.text}\n\n{tool_manual(tools, form)}"
        after_tool = index > 0 and messages[index - 1].role is Role.TOOL
        if form.calls_in_text and message.role is Role.TOOL and after_tool:
            dicts[-1]["content"] += "\n" + new[0]["content"]
        else:
            dicts.extend(new)
    return dicts


def tool_manual(tools: Sequence[ToolSpec], form: MessageForm) -> str:
    """What a system turn says about tools where the template has no words of its own for them."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tool_dicts(tools) or ()]
    lines = ["These tools can be called:", "<tools>", *lines, "</tools>"]
    if form.calls_in_text:
        lines.append(
            'To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one block for each call.'
        )
    lines.append("If none of them fits the request, answer in words and call none.")
    return "\n".join(lines)


def _message_dicts(message: Message, form: MessageForm, index: int) -> list[dict[str, Any]]:
    _check_parts(message, index)
    if message.role is Role.ASSISTANT:
        return [_assistant_dict(message, form)]
    if message.role is Role.TOOL:
        return _tool_dicts(message, form)
    return [{"role": message.role.value, "content": message.text}]


def _check_parts(message: Message, index: int) -> None:
    for part in message.parts:
        if isinstance(part, ImagePart):
            raise DataError(
                f"an image ({part.sha256[:12]}) cannot be rendered to tokens yet",
                where=f"message {index} ({message.role})",
                fix="leave images out of the conversation",
            )
        if not isinstance(part, _ALLOWED[message.role]):
            raise DataError(
                f"a {part.kind} part has no place in a {message.role} message",
                where=f"message {index}",
                fix="move the part to the message it belongs to",
            )


def _assistant_dict(message: Message, form: MessageForm) -> dict[str, Any]:
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    content = message.text
    calls = message.tool_calls
    result: dict[str, Any] = {"role": "assistant"}
    if calls and form.calls_in_text:
        blocks = "\n".join(_call_text(call) for call in calls)
        content = f"{content}\n{blocks}" if content else blocks
    if reasoning and form.reasoning_field is None:
        content = f"<think>\n{reasoning}\n</think>\n\n{content}"
    elif reasoning and form.reasoning_field is not None:
        result[form.reasoning_field] = reasoning
    if content or not calls or form.calls_in_text or form.empty_content is EmptyContent.EMPTY:
        result["content"] = content
    elif form.empty_content is EmptyContent.NONE:
        result["content"] = None
    if calls and not form.calls_in_text:
        result["tool_calls"] = [_call_dict(call, form) for call in calls]
    return result


def _call_text(call: ToolCallPart) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _call_dict(call: ToolCallPart, form: MessageForm) -> dict[str, Any]:
    arguments: Any = call.arguments
    if form.arguments_as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    result: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    if call.call_id:
        result["id"] = call.call_id
    return result


def _tool_dicts(message: Message, form: MessageForm) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    if not results:
        results = [ToolResultPart(message.text)]
    elif message.text:
        raise DataError("a tool message mixes plain text and results", fix="put the text into the result it belongs to")
    if form.calls_in_text:
        text = "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)
        return [{"role": "user", "content": text}]
    dicts: list[dict[str, Any]] = []
    for result in results:
        entry: dict[str, Any] = {"role": "tool", "content": result.text}
        if result.call_id:
            entry["tool_call_id"] = result.call_id
        if result.name:
            entry["name"] = result.name
        dicts.append(entry)
    return dicts
