"""Users' own rows as conversations (to imitate) and as tasks (to be judged).

A row is one of
    {"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}     a conversation in the OpenAI shape
    {"prompt": text or messages, "answer": text}                           a question and its answer
    {"prompt": text or messages, "gold": anything, "reply": text}          a task; `reply` is a demonstration
Further keys that describe a row (`id`, `source`, `cluster`, ...) are read where they mean something; the rest
is left to the user. Keys inside a message are strict, since each of them would change what is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.types import (
    Message,
    Part,
    ReasoningPart,
    Role,
    Split,
    Task,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from burnish.data.jsonl import Row, read_rows

T = TypeVar("T")

_MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to imitate, and where they stand (`file:line` or a task id)."""

    messages: tuple[Message, ...]
    where: str
    tools: tuple[ToolSpec, ...] = ()

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages before the last assistant turn."""
        return self.messages[: self._last_assistant()]

    @property
    def answer(self) -> Message | None:
        """The last assistant message, or None where there is none."""
        index = self._last_assistant()
        return self.messages[index] if index < len(self.messages) else None

    def _last_assistant(self) -> int:
        indices = [i for i, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        return indices[-1] if indices else len(self.messages)


class LoadedTask(NamedTuple):
    """A user's task, its sealed gold, and a demonstration where the row has one."""

    task: Task
    gold: Gold
    demonstration: Message | None


def load_conversations(path: Path) -> list[Conversation]:
    """Conversations of a JSON Lines file, for SFT.

    Raises: DataError with file:line where a row has no answer, a wrong type or an unknown message key.
    """
    return [_conversation(row) for row in read_rows(path)]


def load_tasks(
    path: Path,
    *,
    verifier: str,
    env: str = "single_turn",
    domain: str = "own_data",
    split: Split = Split.TRAIN,
) -> list[LoadedTask]:
    """Tasks of a JSON Lines file: `prompt` with `gold` (or an `answer`, which is then the gold and the
    demonstration).

    A row may name its `cluster` (the unit of resampling; by default each row is its own), `source`,
    `licence`, `difficulty`, `tools` and `tags`.

    Raises: DataError with file:line where a row has no gold, a wrong type, or the same task as another row
    with another gold.
    """
    loaded: dict[str, tuple[LoadedTask, str]] = {}
    result: list[LoadedTask] = []
    for row in read_rows(path):
        item = _task(row, verifier=verifier, env=env, domain=domain, split=split)
        if item.task.id in loaded and loaded[item.task.id][0].gold != item.gold:
            raise DataError(
                f"the task {item.task.id} has another gold than the same task before",
                where=f"{row.where} and {loaded[item.task.id][1]}",
                fix="keep the row whose gold is right",
            )
        loaded.setdefault(item.task.id, (item, row.where))
        result.append(item)
    return result


# --- rows -------------------------------------------------------------------------------------------


def _conversation(row: Row) -> Conversation:
    tools = _tools(row)
    if "messages" in row.data:
        messages = _messages(row.data["messages"], row.where, "messages")
        if not any(message.role is Role.ASSISTANT for message in messages):
            raise _no_answer(row, "its messages have no assistant turn")
        return Conversation(messages, row.where, tools)
    prompt = _prompt(row)
    answer = _answer(row)
    if answer is None:
        raise _no_answer(row, "it has neither `answer` nor `reply`")
    return Conversation((*prompt, answer), row.where, tools)


def _task(row: Row, *, verifier: str, env: str, domain: str, split: Split) -> LoadedTask:
    if "gold" not in row.data and "answer" not in row.data:
        raise _no_answer(row, "it has neither `gold` nor `answer`, so no reply could be judged")
    demonstration = _answer(row)
    gold = row.data["gold"] if "gold" in row.data else row.data["answer"]
    if gold is None or gold == "":
        raise _no_answer(row, "its gold is empty")
    task = Task.create(
        _prompt(row),
        env=env,
        verifier=verifier,
        domain=domain,
        split=split,
        cluster="",
        source=_optional(row, "source", str, row.where),
        licence=_optional(row, "licence", str, "not stated"),
        difficulty=_difficulty(row),
        tools=_tools(row),
        tags=tuple(_strings(row, "tags")),
    )
    cluster = _optional(row, "cluster", str, task.id)
    return LoadedTask(replace(task, cluster=cluster), Gold.seal(gold), demonstration)


def _prompt(row: Row) -> tuple[Message, ...]:
    value = _required(row, "prompt")
    if isinstance(value, str):
        if not value.strip():
            raise DataError("the prompt is empty", where=row.where, fix="write the question into `prompt`")
        return (Message.of(Role.USER, value),)
    return _messages(value, row.where, "prompt")


def _answer(row: Row) -> Message | None:
    for key in ("reply", "answer"):
        value = row.data.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise _wrong_type(f"`{key}`", "text", value, row.where)
        if not value.strip():
            raise _no_answer(row, f"`{key}` is empty")
        return Message.of(Role.ASSISTANT, value)
    return None


def _difficulty(row: Row) -> float | None:
    value = row.data.get("difficulty")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise _wrong_type("`difficulty`", "a number from 0 to 1", value, row.where)
    return float(value)


def _strings(row: Row, key: str) -> list[str]:
    value = row.data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong_type(f"`{key}`", "a list of texts", value, row.where)
    return value


def _required(row: Row, key: str) -> Any:
    if key not in row.data:
        raise DataError(
            f"the row has no `{key}` (its keys: {', '.join(sorted(row.data)) or 'none'})",
            where=row.where,
            fix='give {"messages": [...]} or {"prompt": ..., "answer": ...}',
        )
    return row.data[key]


def _optional(row: Row, key: str, kind: type[T], default: T) -> T:
    value = row.data.get(key, default)
    if not isinstance(value, kind):
        raise _wrong_type(f"`{key}`", "text", value, row.where)
    return value


def _no_answer(row: Row, why: str) -> DataError:
    return DataError(
        f"a row without an answer: {why}", where=row.where, fix="add the answer to the row, or remove the row"
    )


def _wrong_type(name: str, expected: str, value: Any, where: str) -> DataError:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return DataError(f"{name} must be {expected}, found {shown}", where=where, fix=f"write {expected} there")


# --- messages ---------------------------------------------------------------------------------------


def _messages(value: Any, where: str, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong_type(f"`{name}`", "a list of messages", value, where)
    return tuple(_message(item, f"{where}, {name}[{i}]") for i, item in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise _wrong_type("a message", "an object", value, where)
    unknown = sorted(set(value) - _MESSAGE_KEYS)
    if unknown:
        raise DataError(
            f"unknown message keys {unknown}; a key without an effect would be trained without",
            where=where,
            fix=f"remove them; known are {', '.join(sorted(_MESSAGE_KEYS))}",
        )
    role = value.get("role")
    if role not in list(Role):
        raise _wrong_type("`role`", "one of " + ", ".join(Role), role, where)
    return Message(Role(role), _PARTS_OF[Role(role)](value, where))


def _text(value: dict[str, Any], where: str) -> str:
    content = value.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong_type("`content`", "text or a list of text parts", content, where)
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong_type("a content part", 'of the form {"type": "text", "text": ...}', part, where)
    return "".join(part["text"] for part in content)


def _only(value: dict[str, Any], allowed: set[str], where: str) -> None:
    extra = sorted(key for key in set(value) - allowed - {"role", "content"} if value[key] is not None)
    if extra:
        raise DataError(f"a {value['role']} message has no {extra}", where=where, fix="remove them, or mend the role")


def _plain_parts(value: dict[str, Any], where: str) -> tuple[Part, ...]:
    _only(value, set(), where)
    return (TextPart(_text(value, where)),)


def _assistant_parts(value: dict[str, Any], where: str) -> tuple[Part, ...]:
    _only(value, {"tool_calls", "reasoning_content"}, where)
    parts: list[Part] = []
    reasoning = value.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise _wrong_type("`reasoning_content`", "text", reasoning, where)
    if reasoning:
        parts.append(ReasoningPart(reasoning))
    text = _text(value, where)
    if text:
        parts.append(TextPart(text))
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _wrong_type("`tool_calls`", "a list of calls", calls, where)
    return (*parts, *(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)))


def _call(value: Any, where: str) -> ToolCallPart:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong_type("a tool call", '{"function": {"name": ..., "arguments": ...}}', value, where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise DataError(
                f"the arguments are not JSON: {error.msg} at column {error.colno}",
                where=where,
                fix="write the arguments as a JSON object",
            ) from None
    if not isinstance(arguments, dict):
        raise _wrong_type("`arguments`", "a JSON object", arguments, where)
    return ToolCallPart(function["name"], arguments, call_id=str(value.get("id") or ""))


def _tool_parts(value: dict[str, Any], where: str) -> tuple[Part, ...]:
    _only(value, {"tool_call_id", "name"}, where)
    call_id, name = value.get("tool_call_id") or "", value.get("name") or ""
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise _wrong_type("`tool_call_id` and `name`", "text", [call_id, name], where)
    return (ToolResultPart(_text(value, where), call_id=call_id, name=name),)


_PARTS_OF: dict[Role, Callable[[dict[str, Any], str], tuple[Part, ...]]] = {
    Role.SYSTEM: _plain_parts,
    Role.USER: _plain_parts,
    Role.ASSISTANT: _assistant_parts,
    Role.TOOL: _tool_parts,
}


def _tools(row: Row) -> tuple[ToolSpec, ...]:
    value = row.data.get("tools") or []
    if not isinstance(value, list):
        raise _wrong_type("`tools`", "a list of tools", value, row.where)
    return tuple(_tool(item, f"{row.where}, tools[{i}]") for i, item in enumerate(value))


def _tool(value: Any, where: str) -> ToolSpec:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong_type("a tool", '{"function": {"name": ..., "parameters": ...}}', value, where)
    description, parameters = function.get("description", ""), function.get("parameters", {})
    if not isinstance(description, str) or not isinstance(parameters, dict):
        raise _wrong_type("a tool", "described by a text and a JSON Schema object", function, where)
    return ToolSpec(function["name"], description, parameters)
