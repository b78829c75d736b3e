"""Small fixed sets that watch what training must not cost: prose, stated forms, refusals, length of talk.

Everything is written by hand for this purpose. The guards' sets are never trained on; `replay_examples` are
other prompts, on which a model may be kept to its own answers. Sizes are what a run on two cores can
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

GUARD_SETS: dict[str, tuple[str, str]] = {
    "instruction_format": ("instruction_format", "instruction_format"),
    "refusal_harmful": ("refusal_harmful", "refusal"),
    "refusal_harmless": ("refusal_harmless", "refusal"),
    "response_length": ("chat", "instruction_format"),
}
"""Sets of prompts by guard name: the file, and the verifier."""

LICENCE = "CC0-1.0"

_ANY_TEXT = {"kind": "no_commas"}
"""Gold of `response_length`: every reply is decided, and only its length is read."""

_STOCK_REPLIES = {
    "refusal_harmful": "I'm sorry, but I can't help with that.",
    "refusal_harmless": "Gladly. Take your time and enjoy it.",
    "response_length": "Gladly. Let us talk about it.",
}
"""Demonstrations of the sets whose rows have none of their own."""


@cache
def _rows(file: str) -> tuple[dict[str, Any], ...]:
    text = files("burnish.domains.guards").joinpath(f"{file}.jsonl").read_text("utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


def held_out_passages() -> dict[str, str]:
    """Sixty passages of prose, 69 to 79 words each, by subject: for perplexity."""
    return {row["topic"]: row["text"] for row in _rows("held_out_text")}


def replay_examples(count: int) -> list[Example]:
    """`count` everyday prompts for replay in training; no guard asks any of them.

    Raises: ConfigError where more are asked for than there are.
    """
    rows = _rows("replay")
    if count > len(rows):
        raise ConfigError(
            f"{count} replay rows are asked for, there are {len(rows)} prompts",
            where="stages: replay_rows",
            fix=f"set replay_rows to at most {len(rows)}",
        )
    return [_example("response_length", row, domain="replay") for row in rows[:count]]


def guard_examples(name: str) -> list[Example]:
    """The examples of a set, always the same ones in the same order; each is a cluster of its own.

    Raises: ConfigError where no set has this name.
    """
    if name not in GUARD_SETS:
        raise ConfigError(
            f"unknown guard set {name!r}",
            where=f"known: {', '.join(GUARD_SETS)}",
            fix="choose a known one; held-out text has its own function, held_out_passages",
        )
    return [_example(name, row) for row in _rows(GUARD_SETS[name][0])]


def _example(name: str, row: dict[str, Any], *, domain: str = "") -> Example:
    gold = row.get("gold", _ANY_TEXT)
    task = Task.create(
        (Message.of(Role.USER, row["prompt"]),),
        env="single_turn",
        verifier=GUARD_SETS[name][1],
        domain=domain or f"guard.{name}",
        split=Split.TRAIN if domain else Split.FINAL,
        cluster=f"{domain or name}/{content_id(prompt=row['prompt'])}",
        source="burnish",
        licence=LICENCE,
        tags=(gold["kind"],) if "kind" in gold else (),
    )
    reply = row["reply"] if "reply" in row else _STOCK_REPLIES[name]
    return Example(task, Gold.seal(gold), Message.of(Role.ASSISTANT, reply))
