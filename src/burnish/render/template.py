"""A model's own chat template, rendered as transformers' `apply_chat_template` renders it.

The same sandbox, whitespace rules, filters and globals; one departure: the clock stands still, so that a
template that writes today's date gives the same tokens tomorrow. Leaves out what a message becomes before it
gets here (`messages`) and what the text becomes after (`spans`).
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from burnish.core.errors import TemplateError

DEFAULT_DATE = dt.date(2025, 1, 1)
"""The day every template believes it is, unless a recipe says another. Arbitrary; it only must not move."""

_EVALUATION_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What running a template can raise: its own errors, and Python's where it misuses a value."""


@dataclass(frozen=True, slots=True)
class RenderedText:
    """Text of a conversation, and the characters [start, end) inside `{% generation %}` blocks, in order."""

    text: str
    generation_spans: tuple[tuple[int, int], ...] = ()


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: marks what the model itself writes.

    The block's output is wrapped in two marks that `_cut_marks` turns into offsets, which stay right inside
    macros and captured blocks. The marks are drawn for each template, so no text can hold them by design.
    """

    tags = {"generation"}  # noqa: RUF012 -- jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_mark", [], lineno=line)
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        mark: str = self.environment.generation_mark  # type: ignore[attr-defined]  # set by ChatTemplate
        return f"{mark}{caller()}{mark}"


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled chat template.

    `variables` are what it may read beside the messages (special tokens); `options` are a recipe's own
    (`enable_thinking`, `reasoning_effort`); `uses_date`: it asks for today's date and is told `date`.

    Raises: TemplateError where the source does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, str],
        options: Mapping[str, Any] | None = None,
        date: dt.date = DEFAULT_DATE,
        where: str = "",
    ) -> None:
        self.source = source
        self.date = date
        self.where = where
        self.uses_date = "strftime_now" in source
        self.has_generation_blocks = "endgeneration" in source
        self._variables = {**variables, **(options or {})}
        moment = dt.datetime.combine(date, dt.time())
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
        )
        self._mark = uuid.uuid4().hex
        environment.extend(generation_mark=self._mark)
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = moment.strftime
        try:
            self._compiled = environment.from_string(source)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise TemplateError(
                f"the chat template does not compile: {error}",
                where=f"{where}, template line {line}" if line else where,
                fix="repair chat_template.jinja, or take it again from the model's publisher",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedText:
        """Text of template messages.

        Raises: TemplateError where the template refuses them or fails on them.
        """
        try:
            marked = self._compiled.render(
                messages=list(messages),
                tools=list(tools) if tools is not None else None,
                documents=list(documents) if documents is not None else None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except _EVALUATION_ERRORS as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateError(
                f"the chat template refuses this conversation: {type(error).__name__}: {error}",
                where=f"{self.where} (roles: {roles})" if self.where else f"roles: {roles}",
                fix="give the roles and fields that this template knows, or another template",
            ) from None
        return _cut_marks(marked, self._mark) if self.has_generation_blocks else RenderedText(marked)


def _cut_marks(marked: str, mark: str) -> RenderedText:
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = start = 0
    for i, part in enumerate(marked.split(mark)):
        if i:
            if i % 2:
                start = length
            else:
                spans.append((start, length))
        pieces.append(part)
        length += len(part)
    return RenderedText("".join(pieces), tuple(spans))
