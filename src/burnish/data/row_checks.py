"""What can be wrong with one row: its roles, its text, its mask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from burnish.core.types import ImagePart, Message, Role, TokenUse, ToolCallPart
from burnish.render.spans import ForkKind, Rendered
from burnish.render.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem and how it shows here; `severity` is the value of a `preflight.Severity`."""

    code: str
    message: str
    severity: str = "error"


def check_messages(messages: Sequence[Message]) -> list[Problem]:
    """Roles in an order that a chat can have, and no turn without content."""
    return [*_check_roles(messages), *_check_empty(messages)]


def _check_roles(messages: Sequence[Message]) -> Iterator[Problem]:
    if not messages:
        yield Problem("empty_row", "the row has no messages")
        return
    before: Message | None = None
    for index, message in enumerate(messages):
        wrong = _wrong_role(before, message, index)
        if wrong:
            yield Problem("wrong_roles", f"message {index}: {wrong}")
        if message.role is not Role.SYSTEM:
            before = message
    if messages[-1].role is not Role.ASSISTANT:
        yield Problem("wrong_roles", f"the row ends with a {messages[-1].role} message: there is no answer to train")


def _wrong_role(before: Message | None, message: Message, index: int) -> str:
    if message.role is Role.SYSTEM:
        return "a system message after the first place" if index else ""
    if before is None:
        return "" if message.role is Role.USER else f"the first turn is the {message.role}'s"
    if message.role is Role.TOOL:
        answered = before.role is Role.TOOL or bool(before.tool_calls)
        return "" if answered else "a tool result without a call before it"
    if message.role is before.role:
        return f"two {message.role} messages in a row"
    return ""


def _check_empty(messages: Sequence[Message]) -> Iterator[Problem]:
    for index, message in enumerate(messages):
        has_text = any(
            isinstance(part, (ToolCallPart, ImagePart)) or (part.kind != "reasoning" and part.text.strip())
            for part in message.parts
        )
        if not has_text and message.role is not Role.TOOL:
            yield Problem("empty_row", f"message {index} ({message.role}) is empty")


@lru_cache(maxsize=8)
def _control_pattern(tokenizer: TextTokenizer) -> re.Pattern[str] | None:
    texts = sorted(tokenizer.special_tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def check_text(messages: Sequence[Message], tokenizer: TextTokenizer) -> Iterator[Problem]:
    """Text that would become a control token: an end token inside a message cuts the turn in two."""
    pattern = _control_pattern(tokenizer)
    if pattern is None:
        return
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, (ToolCallPart, ImagePart)):
                continue
            found = pattern.search(part.text)
            if found:
                ends = tokenizer.special_tokens[found[0]] in tokenizer.stop_token_ids
                yield Problem(
                    "control_token_in_text",
                    f"message {index} holds the text {found[0]!r}, which becomes a control token",
                    "error" if ends else "warning",
                )


_FORKS = {
    ForkKind.REWRITTEN_TURN: (
        "template_rewrites_turns",
        "warning",
        "the template rewrites an earlier turn, which is trained in a rendering of its own",
    ),
    ForkKind.GENERATION_PROMPT: (
        "prompt_not_trained",
        "error",
        "a sampler starts from a prompt with which no trained turn begins",
    ),
    ForkKind.DROPPED_TEXT: ("text_dropped", "error", "the template leaves out part of a trained turn"),
    ForkKind.TOKEN_MERGE: (
        "token_merge",
        "warning",
        "a token would reach across the border of a turn; both sides are encoded apart, as in sampling",
    ),
}


def check_rendered(rendered: Rendered, tokenizer: TextTokenizer) -> Iterator[Problem]:
    """A mask that trains what the model will say, its end token included."""
    trained = rendered.use == TokenUse.TRAINED
    if not trained.any():
        yield Problem("nothing_to_train", "no token of the row would be trained")
    for fork in rendered.forks:
        code, severity, meaning = _FORKS[fork.kind]
        yield Problem(code, f"{meaning}: message {fork.message_index}, {fork.reason}", severity)
    for turn in rendered.turns:
        if not turn.sampled or not trained[turn.start : turn.end].any():
            continue
        last = int(rendered.ids[turn.end - 1])
        if last not in tokenizer.stop_token_ids or not trained[turn.end - 1]:
            ends = ", ".join(tokenizer.token_text(i) for i in tokenizer.eos_token_ids)
            yield Problem(
                "end_token_not_trained",
                f"an assistant turn ends in {tokenizer.token_text(last)!r}, which is no end token ({ends}): "
                "the model would not learn to stop",
            )
    if rendered.marked is not None and (trained & ~rendered.marked).any():
        yield Problem(
            "markers_disagree",
            "the template's own generation markers leave out tokens of a trained turn",
            "warning",
        )
