from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.codec import dumps, loads
from burnish.core.errors import DataError, RunError
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.types import Split
from burnish.evals.results import SuiteResult, TaskRecord, paired

SCORE = {Outcome.PASS: 1.0, Outcome.FAIL: 0.0, Outcome.UNDECIDED: None}


def record(i: int, *outcomes: Outcome, version: str = "1", domain: str = "d") -> TaskRecord:
    n = len(outcomes)
    return TaskRecord(
        f"{i:04d}",
        domain,
        f"c{i % 7}",
        outcomes,
        tuple(SCORE[o] for o in outcomes),
        (3,) * n,
        (StopReason.STOP_TOKEN,) * n,
        "exact",
        version,
    )


def suite(records: list[TaskRecord], **changes: object) -> SuiteResult:
    tokens = sum(sum(r.reply_tokens) for r in records)
    result = SuiteResult("s", Split.GATE, "d1", "plain", "greedy", tuple(records), tokens, 2.0)
    return replace(result, **changes)  # type: ignore[arg-type]


OUTCOMES = st.sampled_from(list(Outcome))


@given(st.lists(st.lists(OUTCOMES, min_size=1, max_size=4), max_size=6))
@settings(max_examples=40, deadline=None)
def test_round_trip(rows: list[list[Outcome]]) -> None:
    result = suite([record(i, *row) for i, row in enumerate(rows)])
    assert loads(SuiteResult, dumps(result)) == result


def test_a_stored_result_that_breaks_its_own_rules_is_refused() -> None:
    text = dumps(suite([record(0, Outcome.PASS)])).replace('"scores":[1.0]', '"scores":[null]')
    with pytest.raises(DataError, match="iff it is decided"):
        loads(SuiteResult, text)


def test_records_refuse_uneven_samples_and_suites_refuse_duplicates() -> None:
    with pytest.raises(ValueError, match="one entry a sample"):
        replace(record(0, Outcome.PASS), scores=(1.0, 0.0))
    with pytest.raises(ValueError, match="one entry a sample"):
        record(0)
    with pytest.raises(ValueError, match="occurs twice"):
        suite([record(0, Outcome.PASS), record(0, Outcome.FAIL)])
    with pytest.raises(ValueError, match="few_shot:ID"):
        suite([], prompt="fewshot")


def test_pass_rate_leaves_undecided_samples_out_of_the_denominator() -> None:
    assert record(0, Outcome.PASS, Outcome.UNDECIDED, Outcome.FAIL, Outcome.UNDECIDED).pass_rate == 0.5
    assert record(0, Outcome.UNDECIDED).pass_rate is None
    result = suite([record(0, Outcome.PASS, Outcome.UNDECIDED), record(1, Outcome.FAIL, Outcome.FAIL)])
    assert result.undecided_frac == 0.25


def test_domains_partition_a_suite() -> None:
    result = suite([record(i, Outcome.PASS, domain="ab"[i % 2]) for i in range(5)])
    parts = [result.of_domain(domain) for domain in result.domains]
    assert sum(len(part.records) for part in parts) == 5
    assert sum(part.num_tokens for part in parts) == result.num_tokens
    assert sum(part.duration_s for part in parts) == pytest.approx(result.duration_s)


@given(st.lists(st.tuples(OUTCOMES, OUTCOMES), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_pairs_are_the_tasks_decided_on_both_sides(rows: list[tuple[Outcome, Outcome]], random: object) -> None:
    a = [record(i, x) for i, (x, _) in enumerate(rows)]
    b = [record(i, y) for i, (_, y) in enumerate(rows)]
    random.shuffle(b)  # type: ignore[attr-defined]
    pairs = paired(suite(a), suite(b))
    decided = [(x, y) for x, y in rows if Outcome.UNDECIDED not in (x, y)]
    assert len(pairs.task_ids) == len(decided)
    assert pairs.undecided == len(rows) - len(decided)
    assert pairs.undecided_a == sum(x is Outcome.UNDECIDED for x, _ in rows)
    assert pairs.wins == decided.count((Outcome.PASS, Outcome.FAIL))
    assert pairs.losses == decided.count((Outcome.FAIL, Outcome.PASS))
    assert pairs.difference.sum() == pairs.wins - pairs.losses


def test_clusters_of_one_name_in_two_domains_stay_apart() -> None:
    rows = [replace(record(i, Outcome.PASS, domain="ab"[i % 2]), cluster="same") for i in range(4)]
    assert set(paired(suite(rows), suite(rows)).clusters) == {"a/same", "b/same"}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"records": (record(0, Outcome.PASS, version="2"),)}, "exact 1 on one side and exact 2"),
        ({"records": (record(1, Outcome.PASS),)}, "different tasks"),
        ({"records": (record(0, Outcome.PASS, domain="e"),)}, "in d/c0 on one side and in e/c0"),
        ({"suite": "t"}, "cannot be paired"),
        ({"split": Split.FINAL}, "cannot be paired"),
    ],
)
def test_what_cannot_be_paired_is_refused(changes: dict[str, object], what: str) -> None:
    base = suite([record(0, Outcome.PASS)])
    other = replace(base, **changes)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=what) as caught:
        paired(base, other)
    assert caught.value.fix
    if "exact" in what:
        assert "one version" in caught.value.fix
