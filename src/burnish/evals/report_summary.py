"""The report in words: what was decided, what is released, and what became of each stage.

Leaves out tables of numbers (`report_tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.core.types import Decision
from burnish.evals.report_changes import newest_of
from burnish.evals.report_data import CONTROL, LabelledComparison, ModelEntry, ReportData, StageEntry
from burnish.evals.report_format import (
    NONE,
    count,
    duration,
    fact,
    percent,
    points,
    points_range,
    short,
    words,
)
from burnish.evals.report_tables import (
    TONES,
    DifferenceRow,
    GuardRow,
    gate_rows,
    guard_row,
    rates_of,
)

_GATE_WORDS = {
    Decision.PROMOTE: "promoted",
    Decision.REJECT: "rejected",
    Decision.INCONCLUSIVE: "inconclusive",
}
_GATE_TONES = {Decision.PROMOTE: "good", Decision.REJECT: "bad", Decision.INCONCLUSIVE: "unsure"}


@dataclass(frozen=True, slots=True)
class Headline:
    """What a reader must know first. `release` says what is released, `reasons` why the last stage ended as
    it did, `findings` what the final set says about the released (or last) model."""

    title: str
    tone: str
    release: tuple[str, ...]
    reasons: tuple[str, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at the top of the page."""

    name: str
    value: str
    detail: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class StageCard:
    """A stage as shown; `gate` and `guards` are empty where no gate ran."""

    stage: StageEntry
    word: str
    tone: str
    parent: str
    reasons: tuple[str, ...]
    gate: tuple[DifferenceRow, ...]
    guards: tuple[GuardRow, ...]
    gate_notes: tuple[str, ...]


def promoted_stage(data: ReportData) -> StageEntry | None:
    """The stage whose checkpoint is released, or None where nothing was promoted."""
    promoted = [stage for stage in data.stages if stage.promoted]
    named = [stage for stage in promoted if stage.name == data.promoted_label]
    return (named or promoted)[-1] if promoted else None


def headline(data: ReportData) -> Headline:
    """The decision in plain words; a report in which nothing was promoted says so first."""
    released = promoted_stage(data)
    stages = [stage for stage in data.stages if stage.kind != CONTROL]
    kept_out = stages[stages.index(released) + 1 :] if released in stages else stages
    findings = _findings(data)
    if released is None:
        rejected = any(stage.gate is not None and stage.gate.decision is Decision.REJECT for stage in kept_out)
        return Headline(
            title="Nothing was promoted",
            tone="bad" if rejected else "unsure",
            release=(f"The base model stays: {data.base_model}, weights {short(data.base_digest)}.",),
            reasons=_why_not(kept_out) or ("No gate ran.", *_sentences(data.reasons)),
            findings=findings,
        )
    release = (f"Released: {released.name}, weights {short(released.digest)}, in {data.promoted_path}",)
    tone, unconfirmed = "good", _unconfirmed(data, released)
    if unconfirmed:
        tone = "unsure"
        findings = (f"The final set shows no improvement over {' and '.join(unconfirmed)}.", *findings)
    if not kept_out:
        return Headline(f"Promoted: {released.name}", tone, release, _sentences(data.reasons), findings)
    return Headline(
        title=f"Promoted: {released.name}. Not promoted: {', '.join(stage.name for stage in kept_out)}",
        tone=tone,
        release=release,
        reasons=_why_not(kept_out),
        findings=findings,
    )


def _why_not(stages: Sequence[StageEntry]) -> tuple[str, ...]:
    """What became of each stage that was not promoted, and why."""
    lines: list[str] = []
    for stage in stages:
        if stage.gate is None:
            lines += [f"No gate ran on {stage.name}.", *_sentences((stage.reason,))]
            continue
        said = {
            Decision.REJECT: f"The gate rejected {stage.name}.",
            Decision.INCONCLUSIVE: f"The gate on {stage.name} was inconclusive: it is not shown to be better.",
            Decision.PROMOTE: f"The gate passed {stage.name}, and its checkpoint was not promoted.",
        }[stage.gate.decision]
        lines += [said, *_sentences(stage.gate.reasons)]
    return tuple(lines)


def _unconfirmed(data: ReportData, released: StageEntry) -> list[str]:
    """What the gate held the released model against, where the final set does not show it to be better."""
    gated = {model.label for model in data.models if not model.stage or model.digest == released.parent}
    pooled = pooled_comparisons(data, released.name)
    return [e.reference for e in pooled if e.reference in gated and e.comparison.finding != "better"]


def _sentences(reasons: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        f"{reason[:1].upper()}{reason[1:]}{'' if reason.endswith('.') else '.'}" for reason in reasons if reason
    )


def _findings(data: ReportData) -> tuple[str, ...]:
    """What the final set says about the released (or last) model, all domains pooled."""
    model = newest_of(data)
    if model is None:
        return ()
    return tuple(_finding(entry) for entry in pooled_comparisons(data, model.label))


def pooled_comparisons(data: ReportData, candidate: str) -> tuple[LabelledComparison, ...]:
    """Comparisons of a model over all domains."""
    return tuple(e for e in data.comparisons if e.candidate == candidate and e.domain == "")


def _finding(entry: LabelledComparison) -> str:
    c = entry.comparison
    if c.difference is None or c.low is None or c.high is None:
        return f"Final set: {entry.candidate} cannot be compared with {entry.reference}, {c.problem}."
    said = {"better": "better than", "worse": "worse than"}.get(c.finding, "no clear difference from")
    return (
        f"Final set: {said} {entry.reference}, {percent(c.candidate_rate)} against "
        f"{percent(c.reference_rate)}, {points(c.difference)}, {100 * c.confidence:.0f} % interval "
        f"{points_range(c.low, c.high)}."
    )


def overview(data: ReportData) -> tuple[Tile, ...]:
    """The few numbers at the top of the page."""
    tiles = []
    model = newest_of(data)
    if model is not None:
        tiles.append(_rate_tile(model))
        for entry in pooled_comparisons(data, model.label)[:2]:
            c = entry.comparison
            interval = "" if c.low is None or c.high is None else f"points {points_range(c.low, c.high)}"
            value = points(c.difference).removesuffix("\N{NO-BREAK SPACE}points")
            tiles.append(Tile(f"against {entry.reference}", value, interval or c.problem, TONES[c.finding]))
    stage = promoted_stage(data) or next((s for s in reversed(data.stages) if s.gate is not None), None)
    if stage is not None and stage.gate is not None and stage.gate.guards:
        guards = stage.gate.guards
        held = sum(guard.status == "holds" for guard in guards)
        tone = "good" if held == len(guards) else "bad"
        tiles.append(Tile("guards that hold", f"{held} of {len(guards)}", f"at the gate of {stage.name}", tone))
    tiles.append(Tile("wall time", duration(sum(data.cost.seconds.values())), f"seed {data.seed}"))
    return tuple(tiles)


def _rate_tile(model: ModelEntry) -> Tile:
    (_, rate), *_ = rates_of(model.result, ())
    return Tile(
        f"pass rate of {model.label}",
        percent(rate.mean),
        f"{count(rate.num_tasks)} final tasks, {count(rate.num_clusters)} templates",
    )


def stage_cards(data: ReportData) -> tuple[StageCard, ...]:
    """Every stage, in order."""
    labels = {data.base_digest: "base"}
    for stage in data.stages:
        labels.setdefault(stage.digest, stage.name)  # a stage that kept its parent's weights has its digest
    return tuple(_stage_card(data, stage, labels) for stage in data.stages)


def _stage_card(data: ReportData, stage: StageEntry, labels: dict[str, str]) -> StageCard:
    parent = NONE
    if stage.parent:
        name = labels.get(stage.parent)
        parent = f"{name} ({short(stage.parent)})" if name else short(stage.parent)
    if stage.gate is None:
        word = "no gate" if stage.digest else "did not run"
        return StageCard(stage, word, "unsure", parent, (stage.reason,) if stage.reason else (), (), (), ())
    gate = stage.gate
    reasons = tuple(
        dict.fromkeys([*gate.reasons, *([stage.reason] if stage.reason != "; ".join(gate.reasons) else [])])
    )
    notes = []
    if gate.split is not None:
        how = f"{count(gate.resamples)} resamples, seed {gate.seed}"
        notes.append(f"suite {words(gate.suite)}, {gate.split.value} set, {how}")
    return StageCard(
        stage=stage,
        word=_GATE_WORDS[gate.decision],
        tone=_GATE_TONES[gate.decision],
        parent=parent,
        reasons=tuple(reason for reason in reasons if reason),
        gate=gate_rows(stage),
        guards=tuple(guard_row(guard) for guard in gate.guards),
        gate_notes=tuple(notes),
    )


def few_shot_facts(few_shot: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which few-shot prompt was taken in each domain and how its rivals did; other keys as they are.

    `chosen` maps a domain to the number of its prompt (-1: the plain one), `first_round` to every candidate's
    pass rate in the first round.
    """
    chosen, first_round = few_shot.get("chosen"), few_shot.get("first_round")
    facts = []
    if isinstance(chosen, Mapping):
        rates_by_domain = first_round if isinstance(first_round, Mapping) else {}
        for domain, number in chosen.items():
            rates = rates_by_domain.get(domain) or ()
            took = "the plain prompt: no candidate beat it" if number == -1 else f"candidate {fact(number)}"
            rivals = f"; first round of {len(rates)}: {', '.join(percent(rate) for rate in rates)}" if rates else ""
            facts.append((words(str(domain)), took + rivals))
    known = {"chosen", "first_round"} if isinstance(chosen, Mapping) else set()
    return facts + [(words(name), fact(value)) for name, value in few_shot.items() if name not in known]
