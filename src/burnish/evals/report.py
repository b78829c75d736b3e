"""The report of a run: one self-contained page, and the JSON from which it is drawn.

    report/report.json   a `ReportData`, whole
    report/report.html   the page, with curves from `events.jsonl`; it has no script and loads nothing

A page states what the data states: it computes intervals of pass rates and nothing else that decides. Leaves
out collecting the data (`train`) and PNG curves (`observe.curves`).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from burnish.core.codec import decode, encode
from burnish.core.errors import DataError, RunError
from burnish.evals.report_changes import changes
from burnish.evals.report_curves import development_panel, stage_curves
from burnish.evals.report_data import ReportData
from burnish.evals.report_format import count as counted
from burnish.evals.report_format import (
    duration,
    fact,
    percent,
    percent_range,
    plain,
    short,
    signed,
    size,
    visible,
    words,
)
from burnish.evals.report_samples import samples_of
from burnish.evals.report_summary import few_shot_facts, headline, overview, stage_cards
from burnish.evals.report_tables import (
    all_domains,
    difference_axis,
    difference_rows,
    external_comparisons,
    external_rows,
    model_rows,
    num_undecided,
    rates_of,
)
from burnish.observe.disk import atomic_write, writing
from burnish.observe.events import EventRecord, read_events

_JSON, _HTML = "report.json", "report.html"
_FREE_FORM = frozenset({"evidence", "arguments", "few_shot", "machine"})  # keys of untyped JSON in a report


def write_report(folder: Path, data: ReportData) -> Path:
    """Writes `report/report.json` and `report/report.html` in a run's folder; returns the page's path.

    A guard's mean that is not finite (no decided item) is left out. In free-form JSON, such as a verifier's
    evidence, a non-finite number is written as a string: JSON has none.

    Raises: RunError for any other non-finite number; ResourceError where the folder cannot be written;
    IntegrityError where the event log is damaged.
    """
    folder = Path(folder)
    with writing(folder / "report"):
        (folder / "report").mkdir(parents=True, exist_ok=True)
    data = _without_empty_means(data)
    stored = _storable(encode(data), "report", free=False)
    text = json.dumps(stored, ensure_ascii=False, allow_nan=False, indent=1)
    # A lone surrogate in a model's text becomes \udXXX, which is also how JSON writes it.
    atomic_write(folder / "report" / _JSON, (text + "\n").encode("utf-8", "backslashreplace"))
    return _draw(folder, data)


def rebuild_report(folder: Path) -> Path:
    """Draws the page of a finished run again, from what is on disk; returns its path.

    Raises: DataError where the run has not finished or its data cannot be read.
    """
    folder = Path(folder)
    return _draw(folder, read_report(folder))


def read_report(folder: Path) -> ReportData:
    """The data of a finished run's report.

    Raises: DataError where the run has not finished or the file cannot be read.
    """
    path = Path(folder) / "report" / _JSON
    if not path.is_file():
        if seeds := sorted(run.parent.name for run in Path(folder).glob("seed-*/config.yaml")):
            raise DataError(
                f"this folder holds a run for each seed ({', '.join(seeds)}), and no report of its own",
                where=str(folder),
                fix=f"name one of them: {Path(folder) / seeds[0]}",
            )
        raise DataError(
            "this run has no report, because it has not finished",
            where=str(folder),
            fix=f"finish it first: burnish run --resume --out {folder}",
        )
    try:
        stored = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"the report's data is not JSON: {error}", where=str(path), fix="restore the file from a copy"
        ) from None
    if not isinstance(stored, dict):
        raise DataError("the report's data is no object", where=str(path), fix="restore the file from a copy")
    return decode(ReportData, stored, where=str(path))


def render_html(data: ReportData, records: tuple[EventRecord, ...]) -> str:
    """The page as text; the same data and events give the same page."""
    return _template().render(
        data=data,
        headline=headline(data),
        overview=overview(data),
        domains=all_domains(data.models),
        models=model_rows(data),
        comparisons=difference_rows(data.comparisons),
        difference_axis=difference_axis(entry.comparison for entry in data.comparisons),
        changes=changes(data),
        external=external_rows(data),
        external_comparisons=difference_rows(external_comparisons(data)),
        stages=stage_cards(data),
        curves=stage_curves(records),
        samples=samples_of(data),
        seconds=_seconds_bar(data.cost.seconds),
        guard_names=list(dict.fromkeys(name for model in data.models for name in model.guards)),
        identity=[(words(name), plain(value)) for name, value in data.identity.items()],
        few_shot=few_shot_facts(data.few_shot),
        pass_at_k=[(name, percent(value)) for name, value in data.pass_at_k.items()],
        machine=[(words(name), fact(value)) for name, value in data.machine.items()],
    )


def summary_rows(data: ReportData) -> list[dict[str, Any]]:
    """One row a model: pass@1 on the final set with its interval, pooled and by domain, as plain JSON."""
    domains, rows = all_domains(data.models), []
    for model in data.models:
        rates = {
            name or "all": {
                "pass_at_1": rate.mean,
                "low": rate.low,
                "high": rate.high,
                "tasks": rate.num_tasks,
            }
            for name, rate in rates_of(model.result, domains)
        }
        rows.append(
            {
                "model": model.label,
                "stage": model.stage,
                "prompt": model.result.prompt,
                "promoted": model.promoted,
                "digest": model.digest,
                "undecided": num_undecided(model.result),
                **rates,
            }
        )
    return rows


def text_summary(data: ReportData) -> str:
    """The decision and the final table, for a terminal."""
    head = headline(data)
    lines = [head.title, *(f"  {line}" for line in (*head.release, *head.reasons, *head.findings))]
    domains = all_domains(data.models)
    if data.models:
        width = max(len(model.label) for model in data.models) + 2
        columns = ["all domains", *(words(domain) for domain in domains)]
        lines += ["", " " * width + "".join(f"{name:<28}" for name in columns).rstrip()]
    for model in data.models:
        cells = []
        for _, rate in rates_of(model.result, domains):
            interval = "" if rate.low is None or rate.high is None else f" {percent_range(rate.low, rate.high)}"
            cells.append(f"{percent(rate.mean):>8}{interval}".ljust(28))
        lines.append(f"{model.label:<{width}}{''.join(cells)}".rstrip())
    return "\n".join(visible(line) for line in lines)


def _draw(folder: Path, data: ReportData) -> Path:
    path = folder / "report" / _HTML
    page = render_html(data, read_events(folder / "events.jsonl").records)
    atomic_write(path, page.encode("utf-8"))
    return path


@cache
def _template() -> Template:
    # `autoescape` everywhere: the text of a model, a task or a verifier is never markup.
    environment = Environment(
        loader=PackageLoader("burnish.evals"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "words": words, "short": short, "fact": fact, "percent": percent, "duration": duration,
        "size": size, "count": counted, "signed": signed, "ticked": _ticked,
        "development_panel": development_panel,
    }  # fmt: skip
    return environment.get_template("report.html.jinja")


def _ticked(fraction: float) -> str:
    """A bound of a scale in points, without a needless decimal."""
    points = round(100 * fraction, 6)
    return signed(points, 0 if points == int(points) else 1)


def _shown(value: Any) -> Any:
    """Plain strings with hidden characters made visible; markup from the templates' own macros as it is."""
    return visible(value) if type(value) is str else value


def _seconds_bar(seconds: dict[str, float]) -> list[tuple[str, float, float]]:
    """Parts of the wall time: name, seconds, share."""
    total = sum(seconds.values())
    return [(name, value, value / total if total else 0.0) for name, value in seconds.items()]


def _without_empty_means(data: ReportData) -> ReportData:
    return replace(
        data,
        models=tuple(
            replace(m, guards={name: value for name, value in m.guards.items() if math.isfinite(value)})
            for m in data.models
        ),
    )


def _storable(value: Any, path: str, *, free: bool) -> Any:
    """Plain JSON without non-finite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        if free:
            return str(value)
        raise RunError(
            f"{path} is {value}, which JSON cannot hold",
            where=path,
            fix="leave out what was not measured; otherwise find what made it non-finite",
        )
    if isinstance(value, dict):
        return {k: _storable(v, f"{path}.{k}", free=free or k in _FREE_FORM) for k, v in value.items()}
    if isinstance(value, list):
        return [_storable(item, f"{path}[{i}]", free=free) for i, item in enumerate(value)]
    return value
