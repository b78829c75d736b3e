from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from burnish.core.errors import ConfigError, RunError
from burnish.core.outcomes import Ending, Outcome
from burnish.core.types import Artifacts, Task, Trajectory, Verdict
from burnish.verify.base import Finding, failed, passed, undecided
from burnish.verify.compare import compare_versions, require_same_version
from burnish.verify.compose import AllOf, FirstDecided, Gated, Keyed
from burnish.verify.exact import Exact
from burnish.verify.format_checks import InstructionFormat

_FINDINGS: dict[str, Finding] = {
    "pass": passed("p"),
    "fail": failed("f"),
    "undecided": undecided("u", Ending.NETWORK_ERROR),
}


class Fixed:
    """Always the same finding."""

    version, cases = "1", ()

    def __init__(self, outcome: str, name: str = "fixed", **changes: Any) -> None:
        self.name = name
        self.finding = _FINDINGS[outcome]
        self.changes = changes
        self.calls = 0

    async def verify(self, task: Task, gold: Any, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        self.calls += 1
        found = self.finding
        if self.changes:
            found = Finding(**{k: getattr(found, k) for k in Finding.__slots__} | self.changes)
        return found.signed(self.name, self.version)


@pytest.mark.parametrize(("gate", "inner"), list(product(_FINDINGS, _FINDINGS)))
def test_a_gate_only_ever_takes_away(judge: Callable[..., Verdict], gate: str, inner: str) -> None:
    verdict = judge(Gated(Fixed(gate, "gate"), Fixed(inner, "inner")), 1, "x")
    expected = inner if gate == "pass" else gate
    assert verdict.outcome.value == expected
    assert verdict.score == {"pass": 1.0, "fail": 0.0, "undecided": None}[expected]


def test_a_gate_keeps_the_inner_score(judge: Callable[..., Verdict]) -> None:
    half = Fixed("fail", "inner", score=0.5)
    assert judge(Gated(Fixed("pass", "gate"), half), 1, "x").score == 0.5
    assert judge(Gated(Fixed("fail", "gate"), half), 1, "x").score == 0.0


@pytest.mark.parametrize(("first", "second"), list(product(_FINDINGS, _FINDINGS)))
def test_all_of(judge: Callable[..., Verdict], first: str, second: str) -> None:
    verdict = judge(AllOf([Fixed(first, "a"), Fixed(second, "b")]), 1, "x")
    both = {first, second}
    expected = "fail" if "fail" in both else "undecided" if "undecided" in both else "pass"
    assert verdict.outcome.value == expected


def test_weights_never_pay_for_a_wrong_answer(judge: Callable[..., Verdict]) -> None:
    def score(*outcomes: str) -> float | None:
        parts = [Fixed(outcome, name) for outcome, name in zip(outcomes, "abc", strict=True)]
        return judge(AllOf(parts, weights=[0.5, 0.3, 0.2]), 1, "x").score

    assert score("fail", "pass", "pass") == 0.0
    assert score("pass", "fail", "pass") == pytest.approx(0.7)
    assert score("pass", "pass", "pass") == 1.0
    assert score("pass", "fail", "undecided") is None
    for weights in ([1.0], [0.5, 0.6], [1.5, -0.5]):
        with pytest.raises(ConfigError):
            AllOf([Fixed("pass"), Fixed("pass")], weights=weights)


def test_first_decided_stops_at_a_decision_and_at_an_exploit(judge: Callable[..., Verdict]) -> None:
    last = Fixed("pass", "judge")
    assert judge(FirstDecided([Fixed("undecided"), last]), 1, "x").outcome is Outcome.PASS
    assert judge(FirstDecided([Fixed("fail"), last]), 1, "x").outcome is Outcome.FAIL
    provoked = Fixed("undecided", flags=("provoked",), ending=Ending.VERIFIER_PROVOKED)
    verdict = judge(FirstDecided([provoked, last]), 1, "x")
    assert (verdict.outcome, verdict.flags) == (Outcome.UNDECIDED, ("provoked",))
    assert last.calls == 1


def test_parts_may_take_their_own_share_of_the_gold(judge: Callable[..., Verdict]) -> None:
    verifier = Gated(Keyed(InstructionFormat(), "format"), Keyed(Exact(), "answer"))
    gold = {"format": {"kind": "all_lowercase"}, "answer": {"accept": ["paris"], "ignore_case": True}}
    assert judge(verifier, gold, "paris").outcome is Outcome.PASS
    assert judge(verifier, gold, "Paris").outcome is Outcome.FAIL
    assert judge(verifier, gold, "lyon").outcome is Outcome.FAIL
    assert judge(verifier, {"answer": "paris"}, "paris").ending is Ending.VERIFIER_ERROR


def test_the_version_of_a_composition_follows_its_parts() -> None:
    newer = Fixed("pass")
    newer.version = "2"
    versions = {AllOf([Fixed("pass"), second]).version for second in (Fixed("pass"), newer)}
    assert len(versions) == 2
    assert AllOf([Fixed("pass")]).version == AllOf([Fixed("fail")]).version
    with pytest.raises(ConfigError):
        AllOf([])


def test_versions_are_never_mixed_unsaid() -> None:
    old, new = passed("").signed("v", "1"), failed("").signed("v", "2")
    assert require_same_version([old, old]) == "v@1"
    with pytest.raises(RunError, match=r"v@1 \(2\), v@2 \(1\)") as caught:
        require_same_version([old, new, old], where="run")
    assert "one version" in caught.value.fix
    with pytest.raises(RunError, match="no verdicts"):
        require_same_version([])
    change = compare_versions(old, new)
    assert (change.old_version, change.new_version, change.score_change, change.changed) == (
        "1",
        "2",
        -1.0,
        True,
    )
    assert not compare_versions(old, old).changed
    assert compare_versions(old, undecided("", Ending.VERIFIER_ERROR).signed("v", "2")).score_change is None
    with pytest.raises(RunError, match="different verifiers"):
        compare_versions(old, passed("").signed("w", "1"))
