"""Checks of data and template before anything is trained, each finding with the row that shows it.

Leaves out what a model does with the rows (`train`) and whether gold passes its verifier (`domains`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from burnish.core.codec import to_plain
from burnish.core.errors import DataError, InputError, TemplateError
from burnish.core.types import Message, TokenUse
from burnish.data.dedup import find_contradictions, find_duplicates
from burnish.data.row_checks import Problem, check_messages, check_rendered, check_text
from burnish.data.sources import Conversation
from burnish.render.renderer import Renderer
from burnish.render.show import picture
from burnish.render.spans import Rendered
from burnish.render.truncation import truncate

EXCERPT_CHARACTERS = 400
"""How much of a row a finding shows: about five lines of a terminal."""

WHERES_SHOWN = 5
"""How many places a finding names; its `count` says how many there are."""


class Severity(StrEnum):
    """ERROR: training on this would be wrong, so it does not start. WARNING: look. INFO: know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of finding, with the first row that shows it.

    `where`: file:line or task id of that row; `row`: its beginning; `mask`: its tokens and their use, where
    the finding is about the mask; `count` rows in all, `also` names the next few.
    """

    severity: Severity
    code: str
    message: str
    where: str = ""
    row: str = ""
    mask: str = ""
    count: int = 1
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What preflight found. Units: tokens, over all renderings; `rendering` is `Renderer.describe()`."""

    findings: tuple[Finding, ...]
    num_rows: int
    num_renderings: int
    num_tokens: int
    num_trained: int
    longest_tokens: int
    rendering: dict[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that forbid training."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """Whether training may start."""
        return not self.errors

    @property
    def masked_frac(self) -> float:
        """Share of tokens that are not trained."""
        return 1.0 - self.num_trained / self.num_tokens if self.num_tokens else 1.0

    def raise_if_failed(self) -> None:
        """Raises: DataError for the first error, with its row."""
        if self.errors:
            first = self.errors[0]
            raise DataError(
                f"preflight: {first.message} ({first.count} rows; {len(self.errors)} kinds of error in all)",
                where=first.where,
                fix="run `burnish preflight` to see the rows, and mend them",
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        data: dict[str, Any] = to_plain(self)
        return {"ok": self.ok, "masked_frac": self.masked_frac, **data}

    def to_text(self) -> str:
        """For a person: the findings, worst first, each with its row, then the totals."""
        return "\n".join([*_finding_lines(self.findings), self._totals()]) + "\n"

    def _totals(self) -> str:
        verdict = "preflight passed" if self.ok else f"preflight FAILED: {len(self.errors)} kinds of error"
        return (
            f"{verdict}; {self.num_rows} rows, {self.num_renderings} renderings, {self.num_tokens} tokens, "
            f"{self.num_trained} trained ({self.masked_frac:.1%} masked); longest {self.longest_tokens}"
        )


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        times = f" ({finding.count} rows)" if finding.count > 1 else ""
        yield f"{finding.severity.upper():7} {finding.code}: {finding.message}{times}"
        if finding.where:
            also = f" (also {', '.join(finding.also)})" if finding.also else ""
            yield f"        where: {finding.where}{also}"
        for name, text in (("row", finding.row), ("mask", finding.mask)):
            if text:
                yield f"        {name}:"
                yield from (f"          {line}" for line in text.rstrip("\n").split("\n"))


def preflight(
    conversations: Sequence[Conversation | Sequence[Message]],
    renderer: Renderer,
    *,
    max_tokens: int | None = None,
    where: Sequence[str] = (),
) -> PreflightReport:
    """Check every row against the template it will be trained with.

    `max_tokens`: the length to which rows would be cut; None where nothing is cut. `where` names the rows
    where they are plain message lists.

    Raises: TemplateError where the template refuses every row; DataError where there are no rows.
    """
    rows = _as_conversations(conversations, where)
    if not rows:
        raise DataError("there are no rows to train on", fix="give at least one conversation")
    collector = _Collector(renderer, max_tokens)
    refusals: list[InputError] = []
    for row in rows:
        problem = collector.add(row)
        if problem is not None:
            refusals.append(problem)
    template_refusals = [error for error in refusals if isinstance(error, TemplateError)]
    if len(template_refusals) == len(rows):
        raise template_refusals[0]
    for earlier, later in find_duplicates(rows):
        collector.note(Severity.WARNING, Problem("duplicate_row", f"the same row as {earlier.where}"), later)
    for earlier, later in find_contradictions(rows):
        message = f"another answer to the same prompt as {earlier.where}"
        collector.note(Severity.WARNING, Problem("contradictory_rows", message), later)
    return collector.report(len(rows))


def _as_conversations(
    conversations: Sequence[Conversation | Sequence[Message]], where: Sequence[str]
) -> list[Conversation]:
    rows: list[Conversation] = []
    for index, item in enumerate(conversations):
        if isinstance(item, Conversation):
            rows.append(item)
        else:
            rows.append(Conversation(tuple(item), where[index] if where else f"row {index}"))
    return rows


class _Collector:
    """Findings by code, and totals, over the rows added so far."""

    def __init__(self, renderer: Renderer, max_tokens: int | None) -> None:
        self.renderer = renderer
        self.max_tokens = max_tokens
        self._found: dict[tuple[Severity, str], Finding] = {}
        self._renderings = self._tokens = self._trained = self._longest = 0
        self._spans = self._ended = 0
        self._uses_tools = False

    def note(self, severity: Severity, problem: Problem, row: Conversation, rendered: Rendered | None = None) -> None:
        key = (severity, problem.code)
        known = self._found.get(key)
        if known is None:
            mask = picture(rendered, self.renderer.tokenizer, max_tokens_a_run=24) if rendered else ""
            self._found[key] = Finding(severity, problem.code, problem.message, row.where, _excerpt(row), mask)
            return
        if row.where in (known.where, *known.also):
            return
        also = (*known.also, row.where) if len(known.also) < WHERES_SHOWN - 1 else known.also
        self._found[key] = Finding(
            severity, known.code, known.message, known.where, known.row, known.mask, known.count + 1, also
        )

    def add(self, row: Conversation) -> InputError | None:
        """Check one row; the error of the template where it refuses the row."""
        self._uses_tools |= bool(row.tools)
        problems = check_messages(row.messages)
        for problem in (*problems, *check_text(row.messages, self.renderer.tokenizer)):
            self.note(Severity(problem.severity), problem, row)
        if any(problem.severity == Severity.ERROR for problem in problems):
            return None
        try:
            renderings = self.renderer.examples(row.messages, row.tools)
        except (TemplateError, DataError) as error:
            self.note(Severity.ERROR, Problem("template_refuses", error.what), row)
            return error
        for rendered in renderings:
            self._add_rendered(row, rendered)
        return None

    def _add_rendered(self, row: Conversation, rendered: Rendered) -> None:
        for problem in check_rendered(rendered, self.renderer.tokenizer):
            self.note(Severity(problem.severity), problem, row, rendered)
        trained = rendered.use == TokenUse.TRAINED
        self._renderings += 1
        self._tokens += len(rendered.ids)
        self._trained += int(trained.sum())
        self._longest = max(self._longest, len(rendered.ids))
        for turn in rendered.turns:
            if turn.sampled and trained[turn.end - 1]:
                self._spans += 1
                self._ended += int(rendered.ids[turn.end - 1]) in self.renderer.tokenizer.stop_token_ids
        if self.max_tokens is not None:
            self._check_length(row, rendered, self.max_tokens)

    def _check_length(self, row: Conversation, rendered: Rendered, max_tokens: int) -> None:
        try:
            cut = truncate(rendered, max_tokens, where=row.where)
        except DataError as error:
            self.note(Severity.ERROR, Problem("nothing_left_to_train", error.what), row)
            return
        if cut.lost_tokens:
            message = f"cut to {max_tokens} of {len(rendered.ids)} tokens, it loses {cut.lost_tokens} trained ones"
            message += f" and the end of {cut.lost_ends} turns" if cut.lost_ends else ""
            self.note(Severity.WARNING, Problem("truncated", message), row)

    def report(self, num_rows: int) -> PreflightReport:
        order = list(Severity)
        findings = [*self._found.values(), *self._facts()]
        return PreflightReport(
            tuple(sorted(findings, key=lambda finding: order.index(finding.severity))),
            num_rows,
            self._renderings,
            self._tokens,
            self._trained,
            self._longest,
            self.renderer.describe(),
        )

    def _facts(self) -> Iterator[Finding]:
        tokenizer, renderer = self.renderer.tokenizer, self.renderer
        ends = ", ".join(f"{tokenizer.token_text(i)} ({i})" for i in tokenizer.eos_token_ids)
        if tokenizer.pad_token_id in tokenizer.stop_token_ids:
            yield Finding(
                Severity.INFO,
                "pad_is_end_token",
                f"the pad token is an end token: {tokenizer.token_text(tokenizer.pad_token_id)}; masks go "
                f"by span, not by id, and {self._ended} of {self._spans} trained turns train their end token",
            )
        if len(tokenizer.eos_token_ids) > 1:
            yield Finding(Severity.INFO, "several_end_tokens", f"sampling stops at each of them: {ends}")
        if renderer.template.uses_date:
            yield Finding(
                Severity.INFO,
                "dated_template",
                f"the template writes the date; it is told {renderer.date.isoformat()}",
            )
        if self._uses_tools and (renderer.form.tools_in_text or renderer.form.calls_in_text):
            yield Finding(
                Severity.INFO,
                "tools_in_text",
                "the template has no words for tools; they stand in the system turn",
            )


def _excerpt(row: Conversation) -> str:
    lines = [f"{message.role}: {_shown(message)}" for message in row.messages]
    text = "\n".join(lines) or "(no messages)"
    return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 4] + " ..."


def _shown(message: Message) -> str:
    pieces = []
    for part in message.parts:
        plain = to_plain(part)
        pieces.append(plain["text"] if plain["kind"] == "text" else str(plain))
    return " ".join(pieces) or "(nothing)"
