"""Sampled replies as a report shows them: which ones, in which order, and how much of each.

Failures come first and take turns with passes, so that neither hides the other. Everything a model or a
verifier wrote is cut to a bound, with a note. Leaves out escaping (the template engine's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.core.outcomes import Outcome
from burnish.core.types import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    TokenSource,
    ToolCallPart,
    ToolResultPart,
    Trajectory,
    Verdict,
)
from burnish.evals.report_changes import base_of, newest_of
from burnish.evals.report_data import ReportData, Sample
from burnish.evals.report_format import NONE, count, cut, duration, fact, plain, words

SAMPLES_SHOWN = 10
"""Replies of one model in one domain on the page; report.json holds all."""

# Per reply, in characters: 40 replies of the worst text (each character escaped to five) stay below 3 MB.
_REPLY_LIMIT, _PROMPT_LIMIT, _EVIDENCE_LIMIT, _LINE_LIMIT = 4_000, 3_000, 2_000, 300


@dataclass(frozen=True, slots=True)
class Block:
    """A titled piece of foreign text, with a note of what was cut."""

    title: str
    text: str
    note: str


@dataclass(frozen=True, slots=True)
class VerdictBlock:
    """A verdict: facts as (name, value), and its evidence."""

    role: str
    word: str
    tone: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    evidence: Block | None


@dataclass(frozen=True, slots=True)
class SampleCard:
    """One reply to one task."""

    word: str
    tone: str
    cluster: str
    reason: str
    prompt: tuple[Block, ...]
    reply: Block
    verdicts: tuple[VerdictBlock, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The replies of one model in one domain; `total` are in report.json, `passed` of them pass."""

    domain: str
    label: str
    cards: tuple[SampleCard, ...]
    total: int
    passed: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything shown, and how many replies of which other models are in report.json alone."""

    groups: tuple[SampleGroup, ...]
    elsewhere: tuple[tuple[str, int], ...]


def samples_of(data: ReportData) -> Samples:
    """Replies of the released (or last) model and of the base, by domain.

    Without such a model among the samples, every model's are shown.
    """
    labels = list(dict.fromkeys(sample.label for sample in data.samples))
    wanted = [model.label for model in (newest_of(data), base_of(data)) if model is not None]
    shown = [label for label in wanted if label in labels] or labels
    domains = sorted({sample.task.domain for sample in data.samples})
    groups = []
    for domain in domains:
        for label in shown:
            found = [s for s in data.samples if s.task.domain == domain and s.label == label]
            if found:
                groups.append(_group(domain, label, found))
    elsewhere = [(label, sum(s.label == label for s in data.samples)) for label in labels if label not in shown]
    return Samples(tuple(groups), tuple(elsewhere))


def in_turns(samples: Sequence[Sample]) -> list[Sample]:
    """Not passed, passed, not passed, ... and the rest of the longer side; each side keeps its order."""
    passed = [s for s in samples if _outcome(s.trajectory) is Outcome.PASS]
    others = [s for s in samples if _outcome(s.trajectory) is not Outcome.PASS]
    ordered = []
    for index in range(max(len(passed), len(others))):
        ordered += others[index : index + 1] + passed[index : index + 1]
    return ordered


def _group(domain: str, label: str, samples: Sequence[Sample]) -> SampleGroup:
    cards = tuple(_card(sample) for sample in in_turns(samples)[:SAMPLES_SHOWN])
    passed = sum(_outcome(s.trajectory) is Outcome.PASS for s in samples)
    return SampleGroup(words(domain), label, cards, len(samples), passed)


def _outcome(trajectory: Trajectory) -> Outcome | None:
    return trajectory.main.outcome if trajectory.main else None


def _card(sample: Sample) -> SampleCard:
    trajectory, task = sample.trajectory, sample.task
    main = trajectory.main
    word, tone = _outcome_words(main)
    budget, prompt = _PROMPT_LIMIT, []
    pieces = [(words(message.role.value), message_text(message)) for message in task.prompt]
    if task.tools:
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in task.tools]
        pieces.append(("tools", fact(tools)))
    for title, whole in pieces:
        text, note = cut(whole, budget)
        budget -= len(text)
        prompt.append(Block(title, text, note))
    return SampleCard(
        word=word,
        tone=tone,
        cluster=task.cluster,
        reason=cut(main.reason, _LINE_LIMIT)[0] if main else "not verified",
        prompt=tuple(prompt),
        reply=Block("reply", *cut(trajectory.reply_text, _REPLY_LIMIT)),
        verdicts=tuple(_verdict(role, verdict) for role, verdict in trajectory.verdicts.items()),
        facts=_trajectory_facts(trajectory),
    )


def _outcome_words(verdict: Verdict | None) -> tuple[str, str]:
    if verdict is None:
        return "unverified", "unsure"
    return {
        Outcome.PASS: ("pass", "good"),
        Outcome.FAIL: ("fail", "bad"),
        Outcome.UNDECIDED: ("undecided", "unsure"),
    }[verdict.outcome]


def _verdict(role: str, verdict: Verdict) -> VerdictBlock:
    word, tone = _outcome_words(verdict)
    facts = [("score", NONE if verdict.score is None else plain(verdict.score))]
    facts += [(f"component {words(name)}", plain(value)) for name, value in verdict.components.items()]
    if verdict.step_scores:
        facts.append(("step scores", ", ".join(plain(score) for score in verdict.step_scores)))
    if verdict.flags:
        facts.append(("flags", ", ".join(verdict.flags)))
    facts.append(("ending", words(verdict.ending.value)))
    facts.append(("verifier", f"{verdict.verifier} {verdict.version}, {duration(verdict.duration_s)}"))
    evidence = Block("evidence", *cut(fact(verdict.evidence), _EVIDENCE_LIMIT)) if verdict.evidence else None
    cut_facts = tuple((name, cut(value, _LINE_LIMIT)[0]) for name, value in facts)
    return VerdictBlock(role, word, tone, cut(verdict.reason, _LINE_LIMIT)[0], cut_facts, evidence)


def _trajectory_facts(trajectory: Trajectory) -> tuple[tuple[str, str], ...]:
    sampled = trajectory.source == TokenSource.SAMPLED
    prompt = int((trajectory.source == TokenSource.PROMPT).sum())
    facts = [
        ("task", trajectory.task_id),
        ("prompt tokens", count(prompt)),
        ("sampled tokens", count(trajectory.num_sampled)),
    ]
    if trajectory.num_sampled:
        logp = float(np.mean(trajectory.logp_unfiltered[sampled]))
        facts.append(("mean log-probability", f"{plain(logp)} nats a token"))
    facts.append(("stopped by", words(trajectory.stop_reason.value)))
    facts.append(("seed", str(trajectory.seed)))
    if trajectory.note:
        facts.append(("note", cut(trajectory.note, _LINE_LIMIT)[0]))
    return tuple(facts)


def message_text(message: Message) -> str:
    """Every part of a message as text; parts that are no text say what they are."""
    return "\n".join(_part_text(part) for part in message.parts)


def _part_text(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, ImagePart):
        return f"[image {part.media_type}, sha256 {part.sha256}]"
    if isinstance(part, ReasoningPart):
        return f"[reasoning] {part.text}"
    if isinstance(part, ToolCallPart):
        return f"[tool call {part.call_id}] {part.name}({fact(part.arguments)})"
    assert isinstance(part, ToolResultPart)
    kind = "error" if part.is_error else "result"
    return f"[tool {kind} {part.call_id}] {part.text}"
