"""Short forms for writing verifier cases. Leaves out running them (`cases`)."""

from __future__ import annotations

from typing import Any

from burnish.core.protocols import VerifierCase
from burnish.core.types import ToolSpec


def must_pass(gold: Any, reply: str, why: str, *, tools: tuple[ToolSpec, ...] = ()) -> VerifierCase:
    """A right answer in the declared form."""
    return VerifierCase(gold, reply, "pass", "must_pass", why, tools=tools)


def must_fail(gold: Any, reply: str, why: str, *, prompt: str = "", tools: tuple[ToolSpec, ...] = ()) -> VerifierCase:
    """A wrong answer, or a right one outside the declared form."""
    return VerifierCase(gold, reply, "fail", "must_fail", why, prompt, tools)


def fooled_others(
    gold: Any, reply: str, why: str, *, prompt: str = "", tools: tuple[ToolSpec, ...] = ()
) -> VerifierCase:
    """An attack that public verifiers are known to have passed."""
    return VerifierCase(gold, reply, "fail", "has_fooled_others", why, prompt, tools)


def null_replies(gold: Any, tools: tuple[ToolSpec, ...] = ()) -> tuple[VerifierCase, ...]:
    """Replies that say nothing."""
    texts = (
        "",
        " ",
        "\n\t",
        ":",
        "Thought process:",
        "**Answer:**",
        "<answer></answer>",
        "```json\n```",
        "\u200b",
    )
    return tuple(fooled_others(gold, text, "null reply", tools=tools) for text in texts)
