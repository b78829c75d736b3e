from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.outcomes import Outcome
from burnish.evals.report import render_html
from burnish.evals.report_changes import changes
from burnish.evals.report_charts import interval_mark, interval_scale, nice_ticks
from burnish.evals.report_curves import read_curves, stage_curves
from burnish.evals.report_data import ReportData
from burnish.evals.report_format import duration
from burnish.evals.report_samples import SAMPLES_SHOWN, in_turns, samples_of
from burnish.observe.events import read_events
from burnish.observe.metrics import METRICS
from evals import report_cases as cases


@pytest.fixture(scope="module")
def promoted() -> ReportData:
    return cases.promoted()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    cases.write_events(folder / "events.jsonl")
    return folder


# --- samples ----------------------------------------------------------------------------------------


def test_failures_come_first_and_take_turns(promoted: ReportData) -> None:
    made = [cases.sample("grpo", "tool_call", i, o) for i, o in enumerate([Outcome.PASS] * 4 + [Outcome.FAIL] * 2)]
    order = [s.trajectory.main.outcome.value[0] for s in in_turns(made) if s.trajectory.main]
    assert "".join(order) == "fpfppp"
    assert Counter(s.trajectory.id for s in in_turns(made)) == Counter(s.trajectory.id for s in made)


def test_ten_a_domain_of_the_released_model_and_the_base(promoted: ReportData) -> None:
    more = [cases.sample("grpo", "tool_call", i, Outcome.PASS) for i in range(10, 15)]
    others = [cases.sample("sft", "tool_call", 1, Outcome.PASS)]
    shown = samples_of(replace(promoted, samples=(*promoted.samples, *more, *others)))
    assert {(g.domain, g.label): (len(g.cards), g.total) for g in shown.groups} == {
        ("structured extraction", "grpo"): (10, 10),
        ("structured extraction", "base"): (10, 10),
        ("tool call", "grpo"): (SAMPLES_SHOWN, 15),
        ("tool call", "base"): (10, 10),
    }
    assert shown.elsewhere == (("sft", 1),)


# --- what changed -----------------------------------------------------------------------------------


def test_families_add_up_to_the_pooled_comparison(promoted: ReportData) -> None:
    found = changes(promoted)
    assert found is not None
    whole = next(
        e.comparison for e in promoted.comparisons if (e.candidate, e.reference, e.domain) == ("grpo", "base", "")
    )
    assert whole.difference is not None
    assert sum(row.tasks for row in found.families) == whole.num_pairs
    assert sum(row.won for row in found.families) == whole.wins
    assert sum(row.lost for row in found.families) == whole.losses
    assert sum(row.change for row in found.families) == pytest.approx(whole.difference * whole.num_pairs)
    assert [row.change for row in found.gains] == sorted((row.change for row in found.gains), reverse=True)


def test_models_judged_by_different_verifiers_are_not_set_against_each_other(promoted: ReportData) -> None:
    last = promoted.models[3]
    records = tuple(replace(record, version="2") for record in last.result.records)
    other = replace(last, result=replace(last.result, records=records))
    data = replace(promoted, models=(*promoted.models[:3], other))
    found = changes(data)
    assert found is not None
    assert "was judged by" in found.problem
    assert "cannot be compared" in render_html(data, ())


# --- curves -----------------------------------------------------------------------------------------


def test_curves_are_those_of_the_events_after_a_resume(run: Path) -> None:
    curves = read_curves(read_events(run / "events.jsonl").records)
    assert list(curves) == ["sft", "grpo"]
    assert curves["grpo"]["reward_mean"] == [(float(s), cases.grpo_metrics(s)["reward_mean"]) for s in range(1, 17)]
    assert [step for step, _ in curves["grpo"]["dev_pass_rate"]] == [4, 8, 12, 16]


def test_a_value_outside_its_healthy_range_is_marked(run: Path) -> None:
    panels = {p.title: p for p in stage_curves(read_events(run / "events.jsonl").records)[1].panels}
    high = METRICS["zero_variance_group_frac"].high
    outside = sum(cases.grpo_metrics(s)["zero_variance_group_frac"] > (high or 1) for s in range(1, 17))
    assert panels["Groups without variance"].num_alarms == outside > 0
    assert panels["Groups without variance"].healthy == "0 to 80"
    titles = "Reward, mean|Entropy|KL to reference|Reply length|Truncated replies|Clipped tokens|Gradient norm"
    assert {*titles.split("|"), "Undecided verdicts", "Seconds a step"} <= panels.keys()


@settings(max_examples=60)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert ticks[0] <= low + 1e-6 * span + 1e-9
    assert ticks[-1] >= low + span - 1e-6 * span - 1e-9
    assert 2 <= len(ticks) <= 8


def test_an_interval_beyond_the_scale_is_an_arrow_not_a_point() -> None:
    mark = interval_mark(interval_scale(-1, 1), -3.0, -4.0, -2.0)
    assert (mark.beyond_low, mark.beyond_high, mark.mid) == (True, False, None)
    inside = interval_mark(interval_scale(-1, 1), 0.0, -0.5, 0.5)
    assert (inside.low, inside.mid, inside.high) == (42.0, 80.0, 118.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0004, "0.4 ms"),
        (4.24, "4.2 s"),
        (59.96, "1 min 00 s"),
        (702, "11 min 42 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
