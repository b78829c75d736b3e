"""`tool_call`: one or two tools as JSON Schema and a request -> the right call, or none where none fits.

Held-out sets have their own tools, requests and vocabularies, each by content hash. A request without a
fitting tool is an honest request for a tool of another topic, which the prompt does not show. Leaves out
several calls in one reply, and executing anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from burnish.core.gold import Gold
from burnish.core.seeds import python_random
from burnish.core.types import Message, Role, Split, Task
from burnish.domains.base import Domain, Example, Origin, distinct_examples
from burnish.domains.surfaces import draw_date, draw_time, number_word, plain_number
from burnish.domains.templates import dealt, filled, slots_of, template_id
from burnish.domains.tool_call.catalogue import CatalogueTool, Parameter, Request, tools_of
from burnish.domains.vocabulary import words

NO_CALL = {"name": "none", "arguments": {}}
"""The reply that says: no tool fits."""

REPLY_FORM = (
    'Reply only with JSON {"name": ..., "arguments": {...}}. If no tool fits: {"name": "none", "arguments": {}}.'
)

_NO_FIT_EVERY = 9, 2  # two of nine requests find no tool that fits: 22 %
_SECOND_TOOL_FRAC = 0.15
_TOPICS = (
    ("food", "shopping", "garden", "home"),
    ("sport", "health", "animals"),
    ("media", "music", "learning"),
    ("travel", "transport", "city", "weather"),
    ("calendar", "work", "messages", "money"),
)
"""Subjects so near that a tool of one might serve a request for another: never taken as not fitting."""

_GENERAL_TOOLS = frozenset({"add_reminder", "create_event", "send_message", "create_ticket", "translate_text"})
"""Tools that could be stretched to serve almost any request: never shown where they do not fit."""

_MAX_SHOWN_CHARS = 420  # of two tools together; longer pairs would double the cost of a prompt


@dataclass(slots=True)
class _Filling:
    """Texts for the slots of a request, the argument that each stands for, and the words used."""

    texts: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


class ToolCall(Domain):
    """See the module; gold is as the verifier of the same name takes it, with one accepted value each."""

    name = "tool_call"
    verifier = "tool_call"

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """Requests are dealt round by round; every ninth block holds two without a fitting tool."""
        requests = [(tool, request) for tool in tools_of(split) for request in tool.requests]
        purpose = f"{self.name}.{split.value}"
        block, num_no_fit = _NO_FIT_EVERY

        def build(index: int, attempt: int) -> Example:
            # A request with few values runs dry in a large set: the next in the deal takes its place.
            tool, request = dealt(requests, index + attempt, seed, purpose)
            fits = dealt(range(block), index, seed, f"{purpose}.fits") >= num_no_fit
            random = python_random(seed, purpose, "draw", index, attempt)
            return self._example(tool, request, fits, split, random)

        return distinct_examples(build, count, where=f"{self.name}, split {split.value}")

    def _example(self, tool: CatalogueTool, request: Request, fits: bool, split: Split, random: Random) -> Example:
        filling = _fill(tool, request, split, random)
        shown = _shown_tools(tool, fits, split, random)
        arguments = {p.name: filling.arguments[p.name] for p in tool.parameters if p.name in filling.arguments}
        call = {"name": tool.name, "arguments": arguments} if fits else NO_CALL
        accepted = {name: [value] for name, value in arguments.items()}
        prompt = tool_prompt([t.json_schema() for t in shown], filled(request.template, filling.texts))
        task = Task.create(
            (Message.of(Role.USER, prompt),),
            env=self.env,
            verifier=self.verifier,
            domain=self.name,
            split=split,
            cluster=template_id(tool.name, request.template),
            source=self.source,
            licence=self.licence,
            tags=(tool.subject, "call" if fits else "no_call"),
        )
        gold = {"call": {"name": tool.name, "arguments": accepted} if fits else None}
        origin = Origin((request.template,), tuple(t.name for t in shown), tuple(filling.words))
        return Example(task, Gold.seal(gold), Message.of(Role.ASSISTANT, json.dumps(call, ensure_ascii=False)), origin)


def tool_prompt(tools: Sequence[dict[str, Any]], request: str) -> str:
    """The prompt of this domain: tools as compact JSON, one a line, the request, the form of the reply."""
    shown = "\n".join(json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools)
    return f"Tools:\n{shown}\nRequest: {request}\n{REPLY_FORM}"


def _shown_tools(tool: CatalogueTool, fits: bool, split: Split, random: Random) -> list[CatalogueTool]:
    """The tools that the prompt shows, in random order: with the right one, or of other topics only."""
    others = _unfit(tool, split)
    shown = [tool if fits else random.choice(others)]
    if random.random() < _SECOND_TOOL_FRAC:
        second = random.choice(others)
        size = sum(len(json.dumps(t.json_schema())) for t in (shown[0], second))
        if second is not shown[0] and size <= _MAX_SHOWN_CHARS:
            shown.append(second)
    random.shuffle(shown)
    return shown


@cache
def _unfit(tool: CatalogueTool, split: Split) -> tuple[CatalogueTool, ...]:
    """The tools of a split that plainly serve other ends than this one."""
    near = next(topic for topic in _TOPICS if tool.subject in topic)
    return tuple(t for t in tools_of(split) if t.subject not in near and t.name not in _GENERAL_TOOLS)


def _fill(tool: CatalogueTool, request: Request, split: Split, random: Random) -> _Filling:
    """A value for every slot of the request, different where two slots share a source."""
    filling = _Filling(arguments=dict(request.implied))
    parameters = {p.name: p for p in tool.parameters}
    for name in slots_of(request.template):
        while True:
            text, value, used = _draw(parameters[name], split, random)
            if value not in filling.arguments.values() or not isinstance(value, str):
                break
        filling.texts[name], filling.arguments[name] = text, value
        filling.words += used
    return filling


def _draw(parameter: Parameter, split: Split, random: Random) -> tuple[str, Any, tuple[str, ...]]:
    """The text, the value and the open-class words of one argument."""
    source = parameter.source
    if parameter.type == "enum":
        value = random.choice(source.split(","))
        return value.replace("_", " "), value, ()
    if parameter.type in ("integer", "number"):
        number = plain_number(random.choice(_range(source)))
        text = number_word(number, random) if isinstance(number, int) and number > 1 else str(number)
        return text, number, ()
    if source in ("date", "time"):
        surface = draw_date(random) if source == "date" else draw_time(random)
        return surface.text, surface.value, ()
    if source == "person":
        first, last = random.choice(words("first", split)), random.choice(words("last", split))
        return f"{first} {last}", f"{first} {last}", (first, last)
    if source in _CODES:
        code = _CODES[source](random)
        return code, code, ()
    word = random.choice(words(source, split))
    return word, word, (word,)


def _range(source: str) -> list[float]:
    """`first..last` or `first..last/step`, both ends included."""
    bounds, _, step = source.partition("/")
    first, last = map(float, bounds.split(".."))
    width = float(step or 1)
    return [first + i * width for i in range(int((last - first) / width) + 1)]


def _code(random: Random) -> str:
    letters = "".join(random.choices("ABCDEFGHKLMNPRSTVX", k=2))
    return f"{letters}{random.randint(100, 999)}"


_CODES: dict[str, Callable[[Random], str]] = {
    "code": _code,
    "phone": lambda random: f"555-{random.randint(1000, 9999)}",
    "digits": lambda random: str(random.randint(1000, 9999)),
}
