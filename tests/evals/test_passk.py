from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.errors import DataError
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.types import Split
from burnish.evals.passk import pass_at_k, suite_pass_at_k
from burnish.evals.results import SuiteResult, TaskRecord

P, F, U = Outcome.PASS, Outcome.FAIL, Outcome.UNDECIDED


def suite(rows: list[tuple[str, tuple[Outcome, ...]]]) -> SuiteResult:
    records = tuple(
        TaskRecord(
            str(i),
            domain,
            str(i),
            outcomes,
            tuple(None if o is U else float(o is P) for o in outcomes),
            (1,) * len(outcomes),
            (StopReason.STOP_TOKEN,) * len(outcomes),
            "v",
            "1",
        )
        for i, (domain, outcomes) in enumerate(rows)
    )
    return SuiteResult("s", Split.DEVELOPMENT, "m", "plain", "t=1", records, 0, 0.0)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_known_values() -> None:
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(5, 1, 2) == pytest.approx(0.4)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    assert pass_at_k(4, 0, 4) == 0.0
    with pytest.raises(ValueError, match="k <= n"):
        pass_at_k(3, 1, 4)


def test_pass_at_one_pools_domains_by_tasks() -> None:
    found = suite_pass_at_k(suite([("a", (P, F)), ("a", (P, P)), ("b", (F, F))]), 1)
    assert found.pooled.estimate is not None
    assert found.pooled.estimate.mean == pytest.approx(0.5)
    assert {name: part.estimate.mean for name, part in found.by_domain.items() if part.estimate} == {
        "a": 0.75,
        "b": 0.0,
    }


def test_undecided_samples_leave_n_and_tasks_short_of_k_are_counted() -> None:
    result = suite([("a", (P, F, U)), ("a", (P, U, U)), ("a", (U, U, U))])
    one, two = suite_pass_at_k(result, 1).pooled, suite_pass_at_k(result, 2).pooled
    assert (one.estimate and one.estimate.mean, one.left_out) == (0.75, 1)
    assert (two.estimate and two.estimate.mean, two.left_out) == (1.0, 2)
    assert suite_pass_at_k(suite([("a", (U, U))]), 1).pooled.estimate is None


def test_more_than_was_sampled_is_refused() -> None:
    with pytest.raises(DataError, match="needs 8 samples"):
        suite_pass_at_k(suite([("a", (P, F))]), 8)
