"""Scoring a file of replies: one JSON verdict a row, in order.

A row is a JSON object with `reply` (text) and `gold`, or with `reply` and `task`: either a task as Burnish
writes it beside a `gold`, or an object with `gold` and optionally `prompt` (text, or messages with `role` and
`content`) and `tools` (objects with `name`, `description`, `parameters`). Other keys of a row are the user's
own and are not read. Leaves out printing and statistics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.core.codec import decode, to_plain
from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, Message, Role, Task, ToolSpec
from burnish.verify.base import TextVerifier
from burnish.verify.json_extract import JsonRejected, parse_strict_json
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.runner import DEFAULT_DEADLINE_S, verify_one

_VERDICT_KEYS = (
    "outcome",
    "score",
    "reason",
    "evidence",
    "duration_s",
    "components",
    "flags",
    "ending",
    "verifier",
    "version",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One reply to score."""

    task: Task
    gold: Gold
    reply: str


def score_file(
    verifier: Verifier, path: str | Path, *, deadline_s: float = DEFAULT_DEADLINE_S
) -> Iterator[dict[str, Any]]:
    """One verdict a row as plain JSON, in the file's order.

    The whole file is read and checked before the first row is scored, so a malformed row costs nothing and
    nothing is printed before it is found.

    Raises: DataError (file:line) at once, for a file that is missing, empty or not UTF-8, and for a row that
    is not strict JSON, lacks `reply` or `gold`, or whose gold this verifier does not read.
    """
    rows = read_rows(verifier, Path(path))
    return _scored(verifier, rows, deadline_s)


def _scored(verifier: Verifier, rows: list[Row], deadline_s: float) -> Iterator[dict[str, Any]]:
    with asyncio.Runner() as runner:
        for row in rows:
            trajectory = reply_trajectory(row.task, row.reply)
            verdict = runner.run(verify_one(verifier, row.task, row.gold, trajectory, Artifacts(), deadline_s))
            plain = to_plain(verdict)
            yield {key: plain[key] for key in _VERDICT_KEYS}


def read_rows(verifier: Verifier, path: Path) -> list[Row]:
    """The rows of a file, checked. Raises: DataError (file:line)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", where=str(path), fix="give a JSONL file") from None
    rows = []
    for number, line in enumerate(data.rstrip().split(b"\n"), start=1):
        where = f"{path}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"not UTF-8: byte {line[error.start]:#04x} at column {error.start + 1}",
                where=where,
                fix="save the file as UTF-8",
            ) from None
        if not data.strip():
            raise DataError("the file is empty", where=str(path), fix="give one JSON object a line")
        rows.append(_row(verifier, text, where))
    return rows


def _row(verifier: Verifier, text: str, where: str) -> Row:
    try:
        data = parse_strict_json(text)
    except JsonRejected as rejected:
        raise DataError(f"the row is {_as_clause(str(rejected))}", where=where, fix="mend the row") from None
    if not isinstance(data, dict):
        raise DataError(f"the row is a {type(data).__name__}, not an object", where=where, fix="mend the row")
    if not isinstance(data.get("reply"), str):
        raise DataError("the row has no `reply` text", where=where, fix='add "reply": "..."')
    described = data.get("task", {})
    if not isinstance(described, dict):
        raise DataError("`task` is not an object", where=where, fix='give {"prompt": ..., "gold": ...}')
    if "gold" in data and "gold" in described:
        raise DataError("the row has two golds, its own and its task's", where=where, fix="keep one")
    if "gold" not in data and "gold" not in described:
        raise DataError("the row has no `gold`", where=where, fix='add "gold": ... to the row or to its task')
    gold = data["gold"] if "gold" in data else described["gold"]
    if isinstance(verifier, TextVerifier):
        try:
            verifier.read_gold(gold)
        except DataError as error:
            raise DataError(error.what, where=where, fix=error.fix) from None
    rest = {key: item for key, item in described.items() if key != "gold"}
    return Row(_task(rest, verifier.name, where), Gold.seal(gold), data["reply"])


def _as_clause(reason: str) -> str:
    return reason if reason.startswith("not ") else f"not strict JSON: {reason}"


def _task(described: dict[str, Any], verifier: str, where: str) -> Task:
    if described.get("schema") == "Task":
        return decode(Task, described, where=where)
    unknown = sorted(set(described) - {"prompt", "tools"})
    if unknown:
        raise DataError(f"`task` has unknown keys {unknown}", where=where, fix="give gold, prompt and tools only")
    try:
        tools = tuple(
            ToolSpec(t["name"], t.get("description", ""), t["parameters"]) for t in described.get("tools", [])
        )
        prompt = _messages(described.get("prompt", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"`task` is malformed: {type(error).__name__} {error}",
            where=where,
            fix="prompt: text or [{role, content}]; tools: [{name, description, parameters}]",
        ) from None
    return bare_task(verifier, prompt, tools)


def _messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message.of(Role.USER, prompt),)
    if not prompt or not all(isinstance(message["content"], str) for message in prompt):
        raise TypeError("a prompt is text, or messages whose content is text")
    return tuple(Message.of(message["role"], message["content"]) for message in prompt)
