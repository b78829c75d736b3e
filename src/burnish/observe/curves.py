"""Curves of a run as PNG files: small multiples, one file for each stage and group of metrics.

Draws on figures of its own, so a caller's pyplot state is neither used nor touched. Leaves out interaction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.observe.disk import atomic_write
from burnish.observe.events import StepMetrics
from burnish.observe.metrics import METRICS, Metric, MetricGroup, metric_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _BAND, _ALARM = "#1f2933", "#7b8794", "#d9efe0", "#c2410c"
# Okabe and Ito's palette without its yellow, which is too pale for lines: told apart by colour-blind readers.
_LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_COLUMNS = 3
_PANEL_INCHES = (4.0, 2.6)
_DPI = 110

Series = dict[str, list[tuple[int, float]]]  # label after the slash ('' for none) -> (step, value)


def plot_curves(rows: Sequence[StepMetrics], folder: Path) -> list[Path]:
    """Draws every metric in `rows`, with units; the healthy range is a band, values outside it are marked.

    Returns: the files written, `<stage>-<group>.png`, in the order of stages and groups.
    Raises: RunError for an undeclared metric; ResourceError where the folder cannot be written.
    """
    paths = []
    for stage, stage_rows in _by_stage(rows).items():
        panels = _series(stage_rows)
        for group in MetricGroup:
            chosen = [(METRICS[name], panels[name]) for name in METRICS if name in panels]
            chosen = [(metric, series) for metric, series in chosen if metric.group is group]
            if chosen:
                path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', stage)}-{group.value}.png"
                atomic_write(path, _draw(f"{stage}: {group.value}", chosen))
                paths.append(path)
    return paths


def _by_stage(rows: Sequence[StepMetrics]) -> dict[str, list[StepMetrics]]:
    stages = dict.fromkeys(row.stage for row in rows)
    ordered = sorted(rows, key=lambda row: (list(stages).index(row.stage), row.step))
    return {stage: list(group) for stage, group in groupby(ordered, key=lambda row: row.stage)}


def _series(rows: Sequence[StepMetrics]) -> dict[str, Series]:
    panels: dict[str, Series] = {}
    for row in rows:
        for name, value in row.metrics.items():
            metric, label = metric_of(name), name.partition("/")[2]
            panels.setdefault(metric.name, {}).setdefault(label, []).append((row.step, value))
    return panels


def _draw(title: str, panels: Sequence[tuple[Metric, Series]]) -> bytes:
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(_COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    # A lone panel still needs the width of its heading.
    width = max(columns * _PANEL_INCHES[0], 1.5 * _PANEL_INCHES[0])
    height = lines * _PANEL_INCHES[1] + 0.5
    layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.05)
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, fontweight="bold", color=_INK, x=0.012, ha="left")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, *panel)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _panel(axes: Axes, metric: Metric, series: Series) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    scale, unit = _scale(metric, series)
    for colour, (label, points) in zip(_cycle(len(series)), series.items(), strict=True):
        steps, values = zip(*points, strict=True)
        drawn = [value * scale for value in values]
        marker = "o" if len(points) <= 30 else None
        axes.plot(steps, drawn, color=colour, linewidth=1.8, marker=marker, markersize=3.2, label=label or None)
        bad = [(step, value * scale) for step, value in points if not metric.healthy(value)]
        if bad:
            axes.plot(*zip(*bad, strict=True), "o", color=_ALARM, markersize=5.5, zorder=5)
    heading = metric.name + (f"  [{unit}]" if unit else "")
    axes.set_title(heading, fontsize=11, fontweight="bold", color=_INK, loc="left")
    _limits(axes, metric, series, scale)
    if metric.range_text:
        axes.text(
            0.99, 0.97, f"healthy: {metric.range_text}", transform=axes.transAxes, ha="right", va="top",
            fontsize=8, color=_QUIET, bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1.0},
        )  # fmt: skip
    if any(series):
        axes.legend(fontsize=8, frameon=False, loc="best", labelcolor=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.set_xlabel("step", fontsize=9, color=_QUIET)
    axes.tick_params(labelsize=9, colors=_QUIET, length=3)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#cbd2d9")


def _limits(axes: Axes, metric: Metric, series: Series, scale: float) -> None:
    """Fits the axis to the data, not to the band: a band far away says nothing by being in sight."""
    values = [value * scale for points in series.values() for _, value in points]
    low, high = min(values), max(values)
    margin = (high - low) * 0.15 or abs(high) * 0.1 or 0.05
    bottom, top = low - margin, high + margin * 1.6  # more above: the range is written there
    if metric.range_text:
        band_low = bottom if metric.low is None else metric.low * scale
        band_high = top if metric.high is None else metric.high * scale
        axes.axhspan(max(band_low, bottom), max(min(band_high, top), bottom), color=_BAND, linewidth=0, zorder=0)
    axes.set_ylim(bottom, top)


def _scale(metric: Metric, series: Series) -> tuple[float, str]:
    """The factor and unit in which a metric reads well."""
    if metric.unit == "bytes":
        return 2.0**-30, "GiB"
    return 1.0, metric.unit


def _cycle(count: int) -> list[str]:
    return [_LINES[index % len(_LINES)] for index in range(count)]
