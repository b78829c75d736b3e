"""The tables of a report: what each cell says, from `ReportData`, with its interval plots placed.

Every number that the page shows of a model, a comparison or a guard is made here, once. Leaves out wording of
the headline (`report`) and drawing (`templates/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from burnish.core.outcomes import Outcome
from burnish.evals.gate import Comparison, Finding, GateConfig, compare
from burnish.evals.guards import GuardOutcome
from burnish.evals.passk import PassAtK, suite_pass_at_k
from burnish.evals.report_charts import IntervalMark, Scale, interval_mark, interval_scale, nice_ticks
from burnish.evals.report_data import LabelledComparison, ModelEntry, ReportData, StageEntry
from burnish.evals.report_format import (
    MINUS,
    NONE,
    count,
    p_value,
    percent,
    percent_range,
    points,
    points_range,
    short,
    signed,
    words,
)
from burnish.evals.results import SuiteResult, TaskRecord
from burnish.evals.stats import wilson_interval

FINDING_WORDS: dict[Finding, str] = {
    "better": "improved",
    "worse": "got worse",
    "unclear": "no clear difference",
    "unusable": "not comparable",
}
STATUS_WORDS = {
    "holds": "holds",
    "broken": "broken",
    "unclear": "not shown to hold",
    "unusable": "not usable",
}
TONES = {
    "better": "good",
    "worse": "bad",
    "unclear": "unsure",
    "unusable": "unsure",
    "holds": "good",
    "broken": "bad",
}
_NUMBER = re.compile(r"[_/.-]?\d+$")
_MOST_KINDS = 4  # more columns than that are no overview
_GUARD_REACH = 2.0  # a guard's plot reaches to twice its margin; beyond, an arrow


@dataclass(frozen=True, slots=True)
class Rate:
    """A pass rate with its 95 % interval, both fractions.

    `low` and `high` are None without enough clusters. `by_wilson`: every task had the same answer, so that
    clusters show no spread, and the interval is Wilson's, each cluster counted as one trial. The interval is
    cut at 0 and 1.
    """

    mean: float | None
    low: float | None
    high: float | None
    num_tasks: int
    num_clusters: int
    by_wilson: bool = False


@dataclass(frozen=True, slots=True)
class RateCell:
    """A pass rate as shown."""

    name: str
    value: str
    interval: str
    note: str
    mark: IntervalMark | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model with its pass rates: all domains pooled, then each. Of the promoted, one is `released`."""

    label: str
    details: tuple[str, ...]
    promoted: bool
    released: bool
    cells: tuple[RateCell, ...]
    undecided: str


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """A paired comparison as shown; `reference` and `domain` name what was compared."""

    candidate: str
    reference: str
    domain: str
    word: str
    tone: str
    rates: str
    value: str
    interval: str
    mark: IntervalMark | None
    won: str
    lost: str
    midp: str
    undecided: str
    size: str
    problem: str


@dataclass(frozen=True, slots=True)
class GuardRow:
    """A guard as shown."""

    name: str
    unit: str
    word: str
    tone: str
    values: str
    change: str
    interval: str
    margin: str
    mark: IntervalMark | None
    items: str
    problem: str


# --- pass rates -------------------------------------------------------------------------------------


def rate_of(estimate: PassAtK) -> Rate:
    """The rate behind a pass@1 estimate."""
    mean = estimate.estimate
    if mean is None:
        return Rate(None, None, None, 0, 0)
    if mean.mean in (0.0, 1.0) and mean.num_clusters:
        passes = round(mean.mean * mean.num_clusters)
        wilson = wilson_interval(passes, mean.num_clusters)
        return Rate(mean.mean, wilson.low, wilson.high, mean.num_values, mean.num_clusters, by_wilson=True)
    if mean.interval is None:
        return Rate(mean.mean, None, None, mean.num_values, mean.num_clusters)
    low, high = max(0.0, mean.interval.low), min(1.0, mean.interval.high)
    return Rate(mean.mean, low, high, mean.num_values, mean.num_clusters)


def rates_of(result: SuiteResult, domains: Iterable[str]) -> list[tuple[str, Rate]]:
    """pass@1 pooled (named '') and of each domain; a domain without tasks has no mean."""
    found = suite_pass_at_k(result, 1)
    nothing = PassAtK(1, None, 0)
    by_domain = [(domain, rate_of(found.by_domain.get(domain, nothing))) for domain in domains]
    return [("", rate_of(found.pooled)), *by_domain]


def all_domains(models: Iterable[ModelEntry]) -> tuple[str, ...]:
    """Every domain of any model's result, sorted."""
    return tuple(sorted({domain for model in models for domain in model.result.domains}))


def rate_cell(name: str, rate: Rate, scale: Scale, tone: str) -> RateCell:
    """A rate, written and placed."""
    mark = None
    interval = "" if rate.mean is None else "too few templates for an interval"
    if rate.mean is not None and rate.low is not None and rate.high is not None:
        interval = percent_range(rate.low, rate.high)
        mark = interval_mark(scale, rate.mean, rate.low, rate.high, tone=tone)
    note = "†" if rate.by_wilson else ""
    return RateCell(name, percent(rate.mean), interval, note, mark)


def model_rows(data: ReportData) -> tuple[ModelRow, ...]:
    """Every model on the final set."""
    domains, scale = all_domains(data.models), interval_scale(0.0, 1.0)
    return tuple(
        ModelRow(
            label=model.label,
            details=_model_details(model),
            promoted=model.promoted,
            released=is_released(data, model),
            cells=tuple(
                rate_cell(words(name) or "all domains", rate, scale, _tone(data, model))
                for name, rate in rates_of(model.result, domains)
            ),
            undecided=num_undecided(model.result),
        )
        for model in data.models
    )


def external_rows(data: ReportData) -> tuple[ModelRow, ...]:
    """Every model checked on an external suite: its cells are the suite and each kind of its rows."""
    scale, rows = interval_scale(0.0, 1.0), []
    for model in data.models:
        for suite, result in model.external.items():
            tone, released = _tone(data, model), is_released(data, model)
            cells = [rate_cell(suite, rate_of(suite_pass_at_k(result, 1).pooled), scale, tone)]
            for kind, part in row_kinds(result).items():
                cells.append(rate_cell(words(kind), rate_of(suite_pass_at_k(part, 1).pooled), scale, tone))
            details = _model_details(model)
            undecided = num_undecided(result)
            rows.append(ModelRow(model.label, details, model.promoted, released, tuple(cells), undecided))
    return tuple(rows)


def row_kinds(result: SuiteResult) -> dict[str, SuiteResult]:
    """A suite by the names of its clusters without their numbers; empty unless that gives a few kinds."""
    parts: dict[str, list[TaskRecord]] = {}
    for record in result.records:
        parts.setdefault(_NUMBER.sub("", record.cluster), []).append(record)
    if not 2 <= len(parts) <= _MOST_KINDS:
        return {}
    return {name: replace(result, records=tuple(parts[name])) for name in sorted(parts)}


def external_comparisons(data: ReportData) -> tuple[LabelledComparison, ...]:
    """Each checked model against the untouched base, paired, suite by suite."""
    base = next((m for m in data.models if not m.stage and m.external), None)
    if base is None:
        return ()
    return tuple(
        LabelledComparison(
            model.label, base.label, suite,
            compare(result, base.external[suite], base.label, GateConfig(), data.seed),
        )
        for model in data.models
        for suite, result in model.external.items()
        if model is not base and suite in base.external
    )  # fmt: skip


def num_undecided(result: SuiteResult) -> str:
    """How many samples are undecided, as shown."""
    undecided = sum(o is Outcome.UNDECIDED for record in result.records for o in record.outcomes)
    return count(undecided)


def is_released(data: ReportData, model: ModelEntry) -> bool:
    """Whether this is the model that the run hands on."""
    return model.promoted and model.label == data.promoted_label


def _tone(data: ReportData, model: ModelEntry) -> str:
    return "good" if is_released(data, model) else "plain"


def _model_details(model: ModelEntry) -> tuple[str, ...]:
    prompt = "plain prompt" if model.result.prompt == "plain" else model.prompt or model.result.prompt
    details = [prompt, f"weights {short(model.digest)}"]
    return (*details, "from cache") if model.from_cache else tuple(details)


# --- paired comparisons -----------------------------------------------------------------------------


def difference_axis(comparisons: Iterable[Comparison]) -> Scale:
    """One scale for a table of differences: zero and every interval are on it."""
    bounds = [b for c in comparisons for b in (c.low, c.high) if b is not None]
    low, high = min([*bounds, -0.02]), max([*bounds, 0.02])
    ticks = nice_ticks(low, high, most=12)
    return interval_scale(ticks[0], ticks[-1])


def difference_row(entry: LabelledComparison, scale: Scale) -> DifferenceRow:
    """A comparison, written and placed."""
    c = entry.comparison
    mark, interval, rates = None, "", NONE
    if c.difference is not None and c.low is not None and c.high is not None:
        mark = interval_mark(scale, c.difference, c.low, c.high, lines=(0.0,), tone=TONES[c.finding])
        interval = points_range(c.low, c.high)
        rates = f"{percent(c.reference_rate)} → {percent(c.candidate_rate)}"
    return DifferenceRow(
        candidate=entry.candidate,
        reference=entry.reference,
        domain=words(entry.domain) or "all domains",
        word=FINDING_WORDS[c.finding],
        tone=TONES[c.finding],
        rates=rates,
        value=points(c.difference),
        interval=interval,
        mark=mark,
        won=count(c.wins),
        lost=count(c.losses),
        midp=p_value(c.mcnemar_p),
        undecided=count(c.undecided),
        size=f"{count(c.num_pairs)} / {count(c.num_clusters)}",
        problem=c.problem,
    )


def difference_rows(comparisons: Sequence[LabelledComparison]) -> tuple[DifferenceRow, ...]:
    """A table of comparisons on one scale."""
    scale = difference_axis(entry.comparison for entry in comparisons)
    return tuple(difference_row(entry, scale) for entry in comparisons)


def gate_rows(stage: StageEntry) -> tuple[DifferenceRow, ...]:
    """The comparisons of a stage's gate, on its gate set."""
    if stage.gate is None:
        return ()
    return difference_rows([LabelledComparison(stage.name, c.reference, "", c) for c in stage.gate.comparisons])


# --- guards -----------------------------------------------------------------------------------------


def guard_row(guard: GuardOutcome) -> GuardRow:
    """A guard, written and placed on a scale of its own margin."""
    digits = 3
    mark, interval, change = None, "", NONE
    if guard.change is not None and guard.low is not None and guard.high is not None:
        reach = _GUARD_REACH * guard.margin
        zones = [(-reach, -guard.margin)] + ([(guard.margin, reach)] if guard.two_sided else [])
        mark = interval_mark(
            interval_scale(-reach, reach), guard.change, guard.low, guard.high,
            lines=(0.0,), zones=zones, tone=TONES[guard.status],
        )  # fmt: skip
        change = signed(guard.change, digits)
        interval = f"[{signed(guard.low, digits)}, {signed(guard.high, digits)}]"
    values = NONE
    if guard.base_mean is not None and guard.new_mean is not None:
        values = f"{guard.base_mean:.{digits}f} → {guard.new_mean:.{digits}f}".replace("-", MINUS)
    limit = signed(-guard.margin, digits)
    undecided = f", {count(guard.undecided)} undecided" if guard.undecided else ""
    return GuardRow(
        name=words(guard.name),
        unit=guard.unit,
        word=STATUS_WORDS[guard.status],
        tone=TONES[guard.status],
        values=values,
        change=change,
        interval=interval,
        margin=f"within ±{guard.margin:.{digits}f}" if guard.two_sided else f"above {limit}",
        mark=mark,
        items=f"{count(guard.num_items)}{undecided}",
        problem=guard.problem,
    )
