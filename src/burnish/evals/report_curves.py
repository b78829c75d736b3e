"""Training curves of a report, read from the events of the run and drawn stage by stage.

Which metrics make a panel is fixed here; unit, meaning and healthy range come from the metric table. Leaves
out every other metric: `observe.curves` draws them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from burnish.evals.report_charts import Panel, Points, Series, band_panel, line_panel, stacked_panel
from burnish.observe.events import EventRecord, metric_rows
from burnish.observe.metrics import METRICS

Curves = dict[str, list[tuple[float, float]]]  # metric name, with its label -> (step, value)

_TONES = ("c1", "c2", "c3", "c4", "c5", "c6")
_LENGTHS = ("reply_tokens_p10", "reply_tokens_p50", "reply_tokens_p90")
_SECONDS = ("rollout_s", "verify_s", "train_s", "sync_s", "eval_s")
# Panels in the order shown: title, and the metrics drawn in it, which share one unit.
_LINE_PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward, mean", ("reward_mean",)),
    ("Pass rate, training tasks", ("pass_rate",)),
    ("Pass rate, development tasks", ("dev_pass_rate",)),
    ("Loss", ("train_loss", "dev_loss")),
    ("Objective", ("loss",)),
    ("Entropy", ("entropy_mean",)),
    ("KL to reference", ("kl_to_reference",)),
    ("Truncated replies", ("truncated_frac",)),
    ("Groups without variance", ("zero_variance_group_frac",)),
    ("Clipped tokens", ("clip_frac",)),
    ("Gradient norm", ("grad_norm",)),
    ("Undecided verdicts", ("undecided_frac",)),
)
_FROM_ZERO = frozenset({"fraction", "s", "tokens"})
_FREE = frozenset({"pass_rate", "dev_pass_rate"})  # a rise from 60 to 66 % must be seen


@dataclass(frozen=True, slots=True)
class StageCurves:
    """The panels of one stage."""

    stage: str
    panels: tuple[Panel, ...]


def read_curves(records: Iterable[EventRecord]) -> dict[str, Curves]:
    """Every step metric that counts, by stage and name, in order of steps."""
    stages: dict[str, Curves] = {}
    for row in metric_rows(records):
        for name, value in row.metrics.items():
            stages.setdefault(row.stage, {}).setdefault(name, []).append((float(row.step), value))
    return stages


def stage_curves(records: Iterable[EventRecord]) -> tuple[StageCurves, ...]:
    """The panels of every stage that has step metrics, in the order of stages."""
    found = [StageCurves(stage, _panels(curves)) for stage, curves in read_curves(records).items()]
    return tuple(one for one in found if one.panels)


def development_panel(points: Sequence[tuple[int, float]], best_step: int | None) -> Panel | None:
    """The development pass rate of a stage, with its best step pointed out; None without points."""
    if not points:
        return None
    mark = None if best_step is None else (float(best_step), f"best step {best_step}")
    series = Series("", "c1", [(float(step), 100 * rate) for step, rate in points])
    return line_panel(
        "Pass rate, development tasks",
        "%",
        [series],
        meaning=METRICS["dev_pass_rate"].meaning,
        mark=mark,
    )


def _panels(curves: Curves) -> tuple[Panel, ...]:
    panels = [_line(title, names, curves) for title, names in _LINE_PANELS]
    lengths = _lengths(curves)
    seconds = _seconds(curves)
    return tuple(panel for panel in [*panels, lengths, seconds] if panel is not None)


def _line(title: str, names: tuple[str, ...], curves: Curves) -> Panel | None:
    series: list[Series] = []
    metric = METRICS[names[0]]
    factor, unit = (100.0, "%") if metric.unit == "fraction" else (1.0, metric.unit)
    for name in names:
        for key, points in curves.items():
            base, _, label = key.partition("/")
            if base == name and points:
                text = label or (name.replace("_", " ") if len(names) > 1 else "")
                drawn = [(step, factor * value) for step, value in points]
                series.append(Series(text, _TONES[len(series) % len(_TONES)], drawn))
    if not series:
        return None
    if len(series) == 1:
        series = [Series("", series[0].tone, series[0].points)]
    low, high = (None if bound is None else factor * bound for bound in (metric.low, metric.high))
    return line_panel(
        title,
        unit,
        series,
        meaning=metric.meaning,
        healthy=(low, high),
        from_zero=metric.unit in _FROM_ZERO and metric.name not in _FREE,
    )


def _lengths(curves: Curves) -> Panel | None:
    by_name = [curves.get(name, []) for name in _LENGTHS]
    low, middle, high = _on_common_steps(by_name)
    if not middle:
        return None
    return band_panel(
        "Reply length", "tokens", low, middle, high,
        meaning="length of sampled replies", labels=("10th to 90th percentile", "median"),
    )  # fmt: skip


def _seconds(curves: Curves) -> Panel | None:
    """Step seconds by part; a step without one of the parts took no time for it (no evaluation, say)."""
    names = [name for name in _SECONDS if curves.get(name)]
    whole = curves.get("step_s", [])
    if not names or not whole:
        return None
    parts = {name: dict(curves[name]) for name in names}
    series = [
        Series(name.removesuffix("_s"), tone, [(step, parts[name].get(step, 0.0)) for step, _ in whole])
        for name, tone in zip(names, _TONES, strict=False)
    ]
    known = {step: sum(parts[name].get(step, 0.0) for name in names) for step, _ in whole}
    rest = [(step, max(0.0, total - known[step])) for step, total in whole]  # clocks overlap by microseconds
    if sum(value for _, value in rest) > 0.01 * sum(total for _, total in whole):
        series.append(Series("other", "c0", rest))
    return stacked_panel("Seconds a step", "s", series, meaning="wall time of a step, by part")


def _on_common_steps(curves: Sequence[Points]) -> list[list[tuple[float, float]]]:
    common = set.intersection(*({step for step, _ in points} for points in curves))
    return [[(step, value) for step, value in points if step in common] for points in curves]
