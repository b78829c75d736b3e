"""Where the marks of a chart go: geometry in the units of an SVG view box, drawn by `templates/charts.jinja`.

Leaves out colours (the style sheet's) and which series make a chart (`report_curves`, `report_tables`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

INTERVAL_WIDTH, INTERVAL_HEIGHT = 160, 18
_PAD = 4.0  # room for a mark at either end

PANEL_WIDTH, PANEL_HEIGHT = 300, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 10.0, 8.0, 20.0
_HEADROOM = 0.03  # of the span, so that the highest point does not lie on the edge
_MAX_MARKED_POINTS = 40  # more than that, and dots hide the line

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map of [low, high] to [start, end] of the view box."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value, to a tenth; outside the scale for a value outside it."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def held(self, value: float) -> float:
        """The position of a value, kept on the scale."""
        return self.at(min(max(value, self.low), self.high))


@dataclass(frozen=True, slots=True)
class IntervalMark:
    """An estimate with its interval on a scale, and the reference lines and bad zones behind it.

    `beyond_low`, `beyond_high`: the interval leaves the scale there, and an arrow says so; `mid` is None
    where the estimate itself is outside. `zones` are
    (x, width). `tone` names the colour.
    """

    low: float
    mid: float | None
    high: float
    beyond_low: bool
    beyond_high: bool
    lines: tuple[float, ...]
    zones: tuple[tuple[float, float], ...]
    tone: str


def interval_scale(low: float, high: float) -> Scale:
    """The scale of a column of interval plots."""
    return Scale(low, high, _PAD, INTERVAL_WIDTH - _PAD)


def interval_mark(
    scale: Scale,
    estimate: float,
    low: float,
    high: float,
    *,
    lines: Sequence[float] = (),
    zones: Sequence[tuple[float, float]] = (),
    tone: str = "plain",
) -> IntervalMark:
    """Marks of one interval plot; zones are given in the units of the scale."""
    placed = [(scale.held(a), scale.held(b)) for a, b in zones]
    return IntervalMark(
        low=scale.held(low),
        mid=scale.at(estimate) if scale.low <= estimate <= scale.high else None,
        high=scale.held(high),
        beyond_low=low < scale.low,
        beyond_high=high > scale.high,
        lines=tuple(scale.at(line) for line in lines),
        zones=tuple((a, round(b - a, 1)) for a, b in placed),
        tone=tone,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: SVG points, dots, dots outside the healthy range, and its last value."""

    label: str
    tone: str
    path: str
    dots: tuple[tuple[float, float], ...]
    alarms: tuple[tuple[float, float], ...]
    last: float


@dataclass(frozen=True, slots=True)
class Area:
    """A filled band between two lines, as an SVG polygon."""

    label: str
    tone: str
    polygon: str
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart. `band` is (y, height) of the healthy range where it is in sight; ticks are (position,
    text); `mark` is an (x, text) to point out. `healthy` says the range in words."""

    title: str
    unit: str
    meaning: str
    healthy: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    band: tuple[float, float] | None = None
    lines: tuple[Line, ...] = ()
    areas: tuple[Area, ...] = ()
    mark: tuple[float, str] | None = None
    num_alarms: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """What a line shows: a label, a colour by name, and its points (step, value), in order of steps."""

    label: str
    tone: str
    points: Points


def line_panel(
    title: str,
    unit: str,
    series: Sequence[Series],
    *,
    meaning: str = "",
    healthy: tuple[float | None, float | None] = (None, None),
    from_zero: bool = False,
    mark: tuple[float, str] | None = None,
) -> Panel:
    """A panel of lines; its scale fits the data, and the healthy range is a band as far as it is in sight."""
    steps = [step for one in series for step, _ in one.points]
    values = [value for one in series for _, value in one.points]
    x, (y, ticks) = _x_scale(steps), _y_scale(min(values), max(values), from_zero)
    low, high = healthy
    lines = []
    for one in series:
        at = [(x.at(step), y.at(value)) for step, value in one.points]
        alarms = [p for p, (_, value) in zip(at, one.points, strict=True) if _outside(value, low, high)]
        dots = at if len(at) <= _MAX_MARKED_POINTS else []
        lines.append(Line(one.label, one.tone, _svg_points(at), tuple(dots), tuple(alarms), one.points[-1][1]))
    return Panel(
        title=title,
        unit=unit,
        meaning=meaning,
        healthy=_range_words(low, high),
        x_ticks=_x_ticks(x),
        y_ticks=tuple((y.at(tick), _tick_text(tick, ticks)) for tick in ticks),
        band=_band(y, low, high),
        lines=tuple(lines),
        mark=None if mark is None else (x.held(mark[0]), mark[1]),
        num_alarms=sum(len(line.alarms) for line in lines),
    )


def band_panel(
    title: str, unit: str, low: Points, middle: Points, high: Points, *, meaning: str, labels: tuple[str, str]
) -> Panel:
    """A line within a shaded band; `labels` name the band and the line."""
    steps = [step for step, _ in middle]
    values = [value for points in (low, middle, high) for _, value in points]
    x, (y, ticks) = _x_scale(steps), _y_scale(min(values), max(values), from_zero=True)
    at = [(x.at(step), y.at(value)) for step, value in middle]
    edge = [(x.at(s), y.at(v)) for s, v in low] + [(x.at(s), y.at(v)) for s, v in reversed(high)]
    dots = tuple(at) if len(at) <= _MAX_MARKED_POINTS else ()
    return Panel(
        title=title,
        unit=unit,
        meaning=meaning,
        healthy="",
        x_ticks=_x_ticks(x),
        y_ticks=tuple((y.at(tick), _tick_text(tick, ticks)) for tick in ticks),
        lines=(Line(labels[1], "c1", _svg_points(at), dots, (), middle[-1][1]),),
        areas=(Area(labels[0], "c1", _svg_points(edge)),),
    )


def stacked_panel(title: str, unit: str, series: Sequence[Series], *, meaning: str) -> Panel:
    """Series on top of each other as one column a step; all share the same steps."""
    steps = [step for step, _ in series[0].points]
    totals = [sum(values) for values in zip(*([v for _, v in one.points] for one in series), strict=True)]
    half = min((b - a for a, b in pairwise(steps)), default=1.0) / 2
    x = Scale(steps[0] - half, steps[-1] + half, _LEFT, PANEL_WIDTH - _RIGHT)
    y, ticks = _y_scale(0.0, max(totals), from_zero=True)
    below = [0.0] * len(steps)
    areas = []
    for one in series:
        above = [b + value for b, (_, value) in zip(below, one.points, strict=True)]
        edge = [(x.at(s + side), y.at(v)) for s, v in zip(steps, below, strict=True) for side in (-half, half)]
        upper = [(x.at(s + side), y.at(v)) for s, v in zip(steps, above, strict=True) for side in (-half, half)]
        total = sum(value for _, value in one.points)
        areas.append(Area(one.label, one.tone, _svg_points([*edge, *reversed(upper)]), total))
        below = above
    return Panel(
        title=title,
        unit=unit,
        meaning=meaning,
        healthy="",
        x_ticks=_x_ticks(x),
        y_ticks=tuple((y.at(tick), _tick_text(tick, ticks)) for tick in ticks),
        areas=tuple(areas),
    )


def nice_ticks(low: float, high: float, most: int = 4) -> tuple[float, ...]:
    """Round numbers at even distances that cover [low, high], about `most` of them."""
    span = high - low
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def _x_scale(steps: Sequence[float]) -> Scale:
    low, high = min(steps), max(steps)
    if low == high:
        low, high = low - 1, high + 1
    return Scale(low, high, _LEFT, PANEL_WIDTH - _RIGHT)


def _x_ticks(x: Scale) -> tuple[tuple[float, str], ...]:
    ticks = [t for t in nice_ticks(x.low, x.high, 5) if x.low <= t <= x.high and t == int(t)]
    return tuple((x.at(tick), f"{tick:,.0f}") for tick in ticks)


def _y_scale(low: float, high: float, from_zero: bool) -> tuple[Scale, tuple[float, ...]]:
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low), 1e-12):
        reach = abs(high) * 0.1 or 1.0
        low, high = (low, high + reach) if from_zero and low == 0 else (low - reach, high + reach)
    high += _HEADROOM * (high - low)
    ticks = nice_ticks(low, high)
    return Scale(ticks[0], ticks[-1], PANEL_HEIGHT - _BOTTOM, _TOP), ticks


def _tick_text(tick: float, ticks: Sequence[float]) -> str:
    largest = max(abs(t) for t in ticks)
    if largest and not 1e-3 <= largest < 1e5:
        return f"{tick:.2g}"
    step = min(b - a for a, b in pairwise(ticks))
    digits = next(d for d in range(13) if abs(round(step, d) - step) <= 1e-6 * step)
    return f"{tick:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _band(y: Scale, low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None and high is None:
        return None
    top = y.held(y.high if high is None else high)
    bottom = y.held(y.low if low is None else low)
    return (top, round(bottom - top, 1)) if bottom > top else None


def _outside(value: float, low: float | None, high: float | None) -> bool:
    return (low is not None and value < low) or (high is not None and value > high)


def _range_words(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


def _svg_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
