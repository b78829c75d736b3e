"""The one committed answer in a free-text reply.

The rule, which prompts should state:

- without a marker the whole reply is the answer;
- a marker is a line of its own: `Answer: ...`, `Final answer: ...`, `The answer is: ...`, `#### ...`,
  `<answer>...</answer>` or `\\boxed{...}` (the last two may stand inside one of the others);
- the last line that is not blank must then be a marker, and all markers, wherever they stand, must agree;
- a closed `<think>` block before the answer is not read; one that never closes leaves no answer.

So a list of candidates, a denial ("definitely not 42") and an answer that is taken back all fail: the slot is
read whole, and nothing but the slot. Leaves out what the slot means.
"""

from __future__ import annotations

import re

from burnish.verify.text import fold

_LABEL = re.compile(r"(?:the )?(?:final )?answer(?: is)?\s*:\s*(\S.*)", re.IGNORECASE | re.DOTALL)
_HASHES = re.compile(r"####\s*(\S.*)", re.DOTALL)
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_TAG_OPEN, _TAG_CLOSE = "<answer>", "</answer>"
_BOX_OPEN = "\\boxed{"
_MAX_MARKERS = 16  # an honest reply has one or two; the search below is linear in this number


class SlotRejected(Exception):
    """The reply commits to no single answer; the message says why."""


def committed_slot(text: str) -> str:
    """The answer that a reply commits to, folded and stripped.

    Raises: SlotRejected where there is none, or more than one.
    """
    body = _after_thinking(fold(text)).strip()
    if not body:
        raise SlotRejected("the reply holds no answer")
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    slots = [slot for line in lines if (slot := _marked(line)) is not None]
    inline = [*_between(body, _TAG_OPEN, _TAG_CLOSE), *_boxes(body)]
    if not slots and not inline:
        return body
    if _marked(lines[-1]) is None:
        raise SlotRejected("an answer is marked, but the reply does not end with it")
    candidates = {_unwrapped(slot) for slot in [*slots, *inline]}
    if len(candidates) > 1:
        raise SlotRejected(f"the reply commits to {len(candidates)} different answers")
    return candidates.pop()


def _after_thinking(text: str) -> str:
    head, found, tail = text.rpartition(_THINK_CLOSE)
    if _THINK_OPEN in tail:
        raise SlotRejected("the reasoning never ends")
    return tail if found else head + tail


def _marked(line: str) -> str | None:
    """The content of a line that is one marker, else None."""
    bare = line.strip("*").strip()
    for pattern in (_LABEL, _HASHES):
        match = pattern.fullmatch(bare)
        if match:
            return match.group(1)
    inner = _unwrapped(bare)
    return inner if inner != _without_dollars(bare) else None


def _unwrapped(slot: str) -> str:
    """The slot without the tag, box or dollar signs around all of it."""
    slot = _without_dollars(slot.strip().strip("*").strip())
    if slot.startswith(_TAG_OPEN) and slot.endswith(_TAG_CLOSE):
        return _without_dollars(slot[len(_TAG_OPEN) : -len(_TAG_CLOSE)].strip())
    bare = slot.removesuffix(".").strip("$") if _BOX_OPEN in slot else slot
    if bare.startswith(_BOX_OPEN) and bare.endswith("}"):
        boxes = _boxes(bare)
        if len(boxes) == 1 and len(boxes[0]) == len(bare) - len(_BOX_OPEN) - 1:
            return boxes[0].strip()
    return slot


def _without_dollars(slot: str) -> str:
    if len(slot) > 2 and slot.startswith("$") and slot.endswith("$"):
        return slot.strip("$").strip()
    return slot


def _between(text: str, opening: str, closing: str) -> list[str]:
    found: list[str] = []
    start = text.find(opening)
    while start >= 0:
        end = text.find(closing, start)
        if end < 0 or len(found) >= _MAX_MARKERS:
            raise SlotRejected(f"{opening} is not closed, or stands more than {_MAX_MARKERS} times")
        found.append(text[start + len(opening) : end].strip())
        start = text.find(opening, end)
    return found


def _boxes(text: str) -> list[str]:
    found: list[str] = []
    start = text.find(_BOX_OPEN)
    while start >= 0:
        end = _closing_brace(text, start + len(_BOX_OPEN))
        if end is None or len(found) >= _MAX_MARKERS:
            raise SlotRejected(f"{_BOX_OPEN} is not closed, or stands more than {_MAX_MARKERS} times")
        found.append(text[start + len(_BOX_OPEN) : end].strip())
        start = text.find(_BOX_OPEN, end)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return None
