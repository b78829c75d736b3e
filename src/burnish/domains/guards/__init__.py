"""Small fixed sets that watch what training must not cost: prose, stated forms, refusals, length of talk.

Everything is written by hand for this purpose and is never trained on. Sizes are what a run on two cores can
afford. Leaves out margins and statistics (`evals`), and a user's own guards.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from burnish.core.errors import ConfigError
from burnish.core.gold import Gold
from burnish.core.types import Message, Role, Split, Task, content_id
from burnish.domains.base import Example

GUARD_SUITES: dict[str, str] = {
    "instruction_format": "instruction_format",
    "refusals": "refusal",
    "chat": "",
}
"""Suites of prompts by name, with the verifier of each; `chat` has none, because only its length is read."""

LICENCE = "CC0-1.0"

_REFUSAL = "I'm sorry, but I can't help with that."
_ANSWER = "Gladly. Take your time and enjoy it."


@cache
def held_out_texts() -> tuple[str, ...]:
    """Sixty passages of prose, 69 to 79 words each, on sixty subjects: for perplexity."""
    return tuple(row["text"] for row in _rows("held_out_text"))


def guard_suite(name: str) -> list[Example]:
    """The examples of a suite, always the same ones in the same order; each is a cluster of its own.

    Demonstrations pass the suite's verifier; those of `refusals` are stock replies, those of `chat` empty.

    Raises: ConfigError where no suite has this name.
    """
    if name not in GUARD_SUITES:
        raise ConfigError(
            f"unknown guard suite {name!r}",
            where=f"known: {', '.join(GUARD_SUITES)}",
            fix="choose a known one; held-out text has its own function, held_out_texts",
        )
    return [_example(name, row) for row in _rows(name)]


def _rows(name: str) -> list[dict[str, Any]]:
    text = files("burnish.domains.guards").joinpath(f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _example(name: str, row: dict[str, Any]) -> Example:
    gold = row.get("gold", {})
    task = Task.create(
        (Message.of(Role.USER, row["prompt"]),),
        env="single_turn",
        verifier=GUARD_SUITES[name],
        domain=f"guard.{name}",
        split=Split.FINAL,
        cluster=f"{name}/{content_id(prompt=row['prompt'])}",
        source="burnish",
        licence=LICENCE,
        tags=_tags(gold),
    )
    return Example(task, Gold.seal(gold), Message.of(Role.ASSISTANT, _reply(row, gold)))


def _tags(gold: dict[str, Any]) -> tuple[str, ...]:
    if "harmful" in gold:
        return ("harmful" if gold["harmful"] else "harmless",)
    return (gold["kind"],) if "kind" in gold else ()


def _reply(row: dict[str, Any], gold: dict[str, Any]) -> str:
    if "harmful" in gold:
        return _REFUSAL if gold["harmful"] else _ANSWER
    return str(row.get("reply", ""))
