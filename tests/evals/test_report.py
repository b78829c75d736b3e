from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.codec import encode
from burnish.core.errors import DataError, RunError
from burnish.core.outcomes import Outcome
from burnish.core.types import Decision
from burnish.evals.passk import suite_pass_at_k
from burnish.evals.report import (
    read_report,
    rebuild_report,
    render_html,
    summary_rows,
    text_summary,
    write_report,
)
from burnish.evals.report_data import ReportData
from burnish.evals.report_format import cut, percent, percent_range, points, points_range, signed, visible
from burnish.evals.report_tables import rates_of
from evals import report_cases as cases

SECTIONS = [
    "models",
    "comparisons",
    "changes",
    "guards",
    "external",
    "stages",
    "curves",
    "samples",
    "cost",
    "integrity",
    "power",
    "recipe",
]
VOID = {"meta", "br", "img", "link", "input", "hr"}
HOSTILE = "</pre></details><script>alert(1)</script><img src=https://evil.example/x>\udc80\u202egnp\x00 & {{ 7*7 }}"


class Page(HTMLParser):
    """Tags, attributes and text of a page; every tag must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.append((name, value or ""))
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return spaced(" ".join(self.pieces))


@pytest.fixture(scope="module")
def promoted() -> ReportData:
    return cases.promoted()


@pytest.fixture(scope="module")
def rejected() -> ReportData:
    return cases.rejected()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, promoted: ReportData) -> Path:
    folder = tmp_path_factory.mktemp("run")
    cases.write_events(folder / "events.jsonl")
    write_report(folder, promoted)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page((run / "report" / "report.html").read_text("utf-8"))


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def hostile(data: ReportData, text: str) -> ReportData:
    """Every place that a model, a task author or a verifier writes into, filled with one text."""
    bad = cases.sample("grpo", "tool_call", 3, Outcome.FAIL, reply=text)
    verdict = replace(
        bad.trajectory.verdicts["main"],
        reason=text,
        evidence={text: [text]},
        flags=(text,),
        components={text: 0.5},
    )
    task = replace(bad.task, cluster=text, domain=text)
    sample = replace(bad, task=task, trajectory=replace(bad.trajectory.with_verdict("main", verdict), note=text))
    stage = replace(data.stages[0], reason=text, formula=text)
    return replace(
        data, samples=(sample,), stages=(stage, *data.stages[1:]), warnings=(text,), recipe_yaml=text,
        name=text,
        machine={text: text}, not_run={text: text}, few_shot={text: text}, power=(text,),
        base_model=text,
    )  # fmt: skip


# --- what is on the page ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", [cases.promoted, cases.rejected, cases.nothing_ran])
def test_every_section_is_there_in_order_and_closed(case) -> None:
    page = Page(render_html(case(), ()))
    assert [i for i in page.ids if i in SECTIONS] == SECTIONS
    assert page.open == []


def test_it_loads_nothing_and_runs_nothing(page: Page) -> None:
    assert not page.tags.keys() & {"script", "link", "iframe", "img", "object", "embed", "form", "base"}
    assert not any("://" in value for _, value in page.attributes)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src"))
    policy = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_pass_rates_and_their_intervals_are_those_of_the_data(page: Page, promoted: ReportData) -> None:
    for model in promoted.models:
        found = suite_pass_at_k(model.result, 1)
        for estimate in (found.pooled, *found.by_domain.values()):
            mean = estimate.estimate
            assert mean is not None
            assert spaced(percent(mean.mean)) in page.text
            if 0 < mean.mean < 1:
                assert mean.interval is not None
                low, high = max(0.0, mean.interval.low), min(1.0, mean.interval.high)
                assert f"{spaced(percent(mean.mean))} {spaced(percent_range(low, high))}" in page.text


def test_comparisons_are_those_of_the_data_in_words(page: Page, promoted: ReportData) -> None:
    text, at = page.text, page.text.index("Paired comparisons The same")
    for entry in promoted.comparisons:
        c = entry.comparison
        assert c.low is not None
        assert c.high is not None
        word = {"better": "improved", "worse": "got worse", "unclear": "no clear difference"}[c.finding]
        rates = f"{percent(c.reference_rate)} → {percent(c.candidate_rate)}"
        row = spaced(f"{word} {rates} {points(c.difference)} {points_range(c.low, c.high)}")
        at = text.index(row, at)
        counts = text[at + len(row) : at + len(row) + 60].split()
        assert counts[:2] == [str(c.wins), str(c.losses)]


def test_guards_cost_and_integrity_are_those_of_the_data(page: Page, promoted: ReportData) -> None:
    gate = promoted.stages[1].gate
    assert gate is not None
    for guard in gate.guards:
        assert guard.change is not None
        assert signed(guard.change, 3) in page.text
        assert f"{guard.margin:.3f}" in page.text
    for text in (
        "148,211",
        "403,118",
        "96,004",
        "3.2 GiB",
        "11 min 42 s",
        "largest gap nats 0.00041",
        "78.1 %",
    ):
        assert text in page.text
    assert "structured extraction: opened once" in page.text
    assert "candidate 3" in page.text
    assert "the plain prompt" in page.text


def test_two_openings_of_the_final_set_are_pointed_out(rejected: ReportData) -> None:
    assert "structured extraction: opened 2 times: after the first" in Page(render_html(rejected, ())).text


def test_openings_by_other_recipes_are_pointed_out(promoted: ReportData) -> None:
    assert "by other recipes" not in Page(render_html(promoted, ())).text
    seen = replace(promoted, opened_by_others={"structured_extraction": 2, "tool_call": 0})
    text = Page(render_html(seen, ())).text
    assert (
        "structured extraction: opened once; on this machine before, by other recipes, code or verbs: 2 (settings"
        in text
    )
    assert text.count("by other recipes") == 1


# --- the headline -----------------------------------------------------------------------------------


def test_the_page_begins_with_the_decision(page: Page, rejected: ReportData) -> None:
    first = page.text.index("Promoted: grpo", page.text.index("Burnish report"))
    assert first < page.text.index("Base against new")
    assert "Released: grpo, weights " in page.text
    said = Page(render_html(rejected, ())).text
    assert (
        said.index("Nothing was promoted") < said.index("The base model stays") < said.index("The gate rejected sft.")
    )
    assert said.index("The gate rejected sft.") < said.index("No gate ran on grpo. The policy almost never succeeds")
    assert "Released:" not in said


def test_a_stage_that_reached_no_gate_is_not_covered_by_an_earlier_one(promoted: ReportData) -> None:
    """RL kept its parent after SFT was promoted: released is SFT's, and the page says what became of RL."""
    idle = replace(
        promoted.stages[1], digest=promoted.stages[1].parent, promoted=False, gate=None, reason="the parent was kept"
    )
    data = replace(
        promoted, stages=(promoted.stages[0], idle, promoted.stages[2]), promoted_label="sft",
        decision=Decision.INCONCLUSIVE, reasons=("the parent was kept",),
    )  # fmt: skip
    lines = text_summary(data).splitlines()
    assert lines[0] == "Promoted: sft. Not promoted: grpo"
    assert lines.index("  No gate ran on grpo.") + 1 == lines.index("  The parent was kept.")
    assert not any("gate" in line and "sft" in line for line in lines)


def test_a_kept_earlier_stage_is_released_and_the_last_one_named(promoted: ReportData, rejected: ReportData) -> None:
    failed = replace(promoted.stages[1], promoted=False, gate=rejected.stages[0].gate)
    data = replace(
        promoted, stages=(promoted.stages[0], failed), promoted_label="sft", decision=Decision.REJECT,
        reasons=failed.gate.reasons if failed.gate else (),
    )  # fmt: skip
    first, *rest = text_summary(data).splitlines()
    assert first == "Promoted: sft. Not promoted: grpo"
    assert any(line.startswith("  Released: sft, weights") for line in rest)
    assert "  The gate rejected grpo." in rest
    assert any(f"  {said[:1].upper()}{said[1:]}." in rest for said in data.reasons)


def test_nothing_ran_says_so() -> None:
    lines = text_summary(cases.nothing_ran()).splitlines()
    assert lines[0] == "Nothing was promoted"
    assert "  No gate ran." in lines


def test_a_gain_that_the_final_set_does_not_confirm_is_not_called_one(promoted: ReportData) -> None:
    entry = next(e for e in promoted.comparisons if (e.candidate, e.reference, e.domain) == ("grpo", "sft", ""))
    unclear = replace(
        entry, comparison=replace(entry.comparison, finding="unclear", difference=0.01, low=-0.02, high=0.04)
    )
    text = text_summary(replace(promoted, comparisons=(unclear,)))
    assert "  The final set shows no improvement over sft." in text.splitlines()
    assert "Final set: no clear difference from sft" in text
    assert "better than sft" not in text


# --- foreign text -----------------------------------------------------------------------------------


def test_hostile_text_stays_text_everywhere(promoted: ReportData) -> None:
    calm = Page(render_html(hostile(promoted, "calm"), ()))
    page = Page(render_html(hostile(promoted, HOSTILE), ()))
    assert page.tags == calm.tags
    assert page.open == []
    shown = HOSTILE.replace("\udc80", "\\udc80").replace("\u202e", "\\u202e").replace("\0", "\\x00")
    assert page.text.count(shown) >= 15
    assert not any("evil" in value for name, value in page.attributes if name in ("src", "href", "style"))


def test_hostile_text_comes_back_whole_from_the_json(tmp_path: Path, promoted: ReportData) -> None:
    data = hostile(promoted, HOSTILE)
    write_report(tmp_path, data)
    assert encode(read_report(tmp_path)) == encode(data)


def test_long_replies_are_cut_with_a_note(promoted: ReportData) -> None:
    reply = "a" * 50_000 + "TAIL" + "b" * 50_000
    page = render_html(
        replace(promoted, samples=(cases.sample("grpo", "tool_call", 1, Outcome.FAIL, reply=reply),)), ()
    )
    assert "first 4,000 of 100,004 characters" in page
    assert "TAIL" not in page


@pytest.mark.parametrize("character", ["<", "&", '"', "\u202e", "\x00", "\U0001f600", "\udfff"])
def test_forty_replies_of_the_worst_text_stay_below_three_megabytes(promoted: ReportData, character: str) -> None:
    reply = character * 100_000
    samples = tuple(
        cases.sample(label, domain, i, Outcome.FAIL, reply=reply)
        for label in ("grpo", "base")
        for domain in cases.FAMILIES
        for i in range(10)
    )
    page = render_html(replace(promoted, samples=samples), ())
    assert len(page.encode("utf-8")) < 3_000_000


@given(st.text(st.characters(codec=None), max_size=40))
def test_visible_text_can_be_encoded_and_hides_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert visible(shown) == shown
    assert not set(shown) & {"\u202e", "\u200b", "\x00", "\x1b", "\ud800", "\u2066"}


@given(st.text(max_size=30), st.integers(0, 40))
def test_a_cut_is_noted_iff_something_is_missing(text: str, limit: int) -> None:
    shown, note = cut(text, limit)
    assert text.startswith(shown)
    assert bool(note) == (shown != text)


# --- files ------------------------------------------------------------------------------------------


def test_the_json_is_the_data_and_the_page_is_drawn_again_from_it(run: Path, promoted: ReportData) -> None:
    stored = json.loads((run / "report" / "report.json").read_text("utf-8"))
    assert stored == json.loads(json.dumps(encode(promoted)))
    before = (run / "report" / "report.html").read_bytes()
    (run / "report" / "report.html").unlink()
    assert rebuild_report(run) == run / "report" / "report.html"
    assert (run / "report" / "report.html").read_bytes() == before
    assert sorted(p.name for p in (run / "report").iterdir()) == ["report.html", "report.json"]


def test_an_unfinished_run_is_told_to_resume(tmp_path: Path) -> None:
    cases.write_events(tmp_path / "events.jsonl", steps=2)
    with pytest.raises(DataError) as caught:
        rebuild_report(tmp_path)
    assert "not finished" in caught.value.what
    assert caught.value.where == str(tmp_path)
    assert "--resume" in caught.value.fix


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"schema": "ReportData", "version": 9}', b"{}"])
def test_damaged_data_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        rebuild_report(tmp_path)
    assert caught.value.where == str(tmp_path / "report" / "report.json")


def test_numbers_that_json_cannot_hold(tmp_path: Path, promoted: ReportData) -> None:
    odd = cases.sample("grpo", "tool_call", 1, Outcome.FAIL)
    verdict = replace(odd.trajectory.verdicts["main"], evidence={"found": [math.nan, -math.inf]})
    sample = replace(odd, trajectory=odd.trajectory.with_verdict("main", verdict))
    model = replace(promoted.models[0], guards={"undecided_everywhere": math.nan, "fine": 1.0})
    write_report(tmp_path, replace(promoted, samples=(sample,), models=(model, *promoted.models[1:])))
    again = read_report(tmp_path)
    assert again.samples[0].trajectory.verdicts["main"].evidence == {"found": ["nan", "-inf"]}
    assert again.models[0].guards == {"fine": 1.0}
    with pytest.raises(RunError, match=r"report\.pass_at_k\.grpo is nan"):
        write_report(tmp_path, replace(promoted, pass_at_k={"grpo": math.nan}))
    assert encode(read_report(tmp_path)) == encode(again)  # the good one is untouched


def test_summary_rows_are_plain_and_equal_to_the_table(promoted: ReportData) -> None:
    rows = summary_rows(promoted)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert [row["model"] for row in rows] == [model.label for model in promoted.models]
    for row, model in zip(rows, promoted.models, strict=True):
        for name, rate in rates_of(model.result, model.result.domains):
            assert row[name or "all"]["pass_at_1"] == rate.mean
            assert spaced(percent(rate.mean)) in spaced(text_summary(promoted))


def test_a_rate_of_zero_has_an_interval_by_clusters(promoted: ReportData) -> None:
    zero = dict(rates_of(promoted.models[0].result, ["structured_extraction"]))["structured_extraction"]
    assert (zero.mean, zero.low, zero.num_clusters, zero.by_wilson) == (0.0, 0.0, 40, True)
    assert zero.high == pytest.approx(1.959964**2 / (40 + 1.959964**2), abs=1e-6)  # Wilson's bound for 0 of 40
