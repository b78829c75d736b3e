"""The same row twice, the same question with two answers, and the same task in two sets.

Two rows are duplicates when their text agrees after Unicode NFKC, case folding and squeezed white space.
Leaves out near duplicates by meaning and overlap with public test sets.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.core.codec import to_plain
from burnish.core.errors import DataError
from burnish.core.types import Message, Task, ToolSpec
from burnish.data.sources import Conversation


def normalise(text: str) -> str:
    """Text as duplicates are compared: NFKC, case folded, white space squeezed."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def fingerprint(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, exact: bool = False) -> str:
    """A SHA-256 of roles and contents; `exact` leaves the text as it is."""
    plain = to_plain([list(messages), list(tools)])
    text = json.dumps(plain if exact else _normalised(plain), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _normalised(value: Any) -> Any:
    if isinstance(value, str):
        return normalise(value)
    if isinstance(value, list):
        return [_normalised(item) for item in value]
    if isinstance(value, dict):
        return {key: _normalised(item) for key, item in value.items()}
    return value


def find_duplicates(conversations: Sequence[Conversation]) -> list[tuple[Conversation, Conversation]]:
    """Each conversation that repeats an earlier one, after that earlier one."""
    first: dict[str, Conversation] = {}
    pairs = []
    for conversation in conversations:
        earlier = first.setdefault(fingerprint(conversation.messages, conversation.tools), conversation)
        if earlier is not conversation:
            pairs.append((earlier, conversation))
    return pairs


def find_contradictions(conversations: Sequence[Conversation]) -> list[tuple[Conversation, Conversation]]:
    """Each conversation whose last answer differs from an earlier one's to the same prompt, after it."""
    first: dict[str, Conversation] = {}
    pairs = []
    for conversation in conversations:
        if conversation.answer is None:
            continue
        earlier = first.setdefault(fingerprint(conversation.prompt, conversation.tools), conversation)
        assert earlier.answer is not None
        if fingerprint((earlier.answer,)) != fingerprint((conversation.answer,)):
            pairs.append((earlier, conversation))
    return pairs


def assert_disjoint(sets: Mapping[str, Sequence[Task]]) -> None:
    """No task stands in two sets, by id or by its normalised prompt and tools.

    Raises: DataError with the first such pair.
    """
    seen: dict[str, tuple[str, Task]] = {}
    for name, tasks in sets.items():
        for task in tasks:
            for key in (task.id, fingerprint(task.prompt, task.tools)):
                other_name, other = seen.setdefault(key, (name, task))
                if other_name != name:
                    shown = task.prompt[-1].text[:80] if task.prompt else ""
                    raise DataError(
                        f"the same task stands in {other_name!r} and in {name!r}: {shown!r}",
                        where=f"{other.id} ({other.source}) and {task.id} ({task.source})",
                        fix="keep one of them, or give both one cluster: what is measured on must not be trained on",
                    )
