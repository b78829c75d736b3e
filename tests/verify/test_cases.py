from __future__ import annotations

import pytest

from burnish.core.errors import VerifierError
from burnish.core.protocols import Verifier, VerifierCase
from burnish.verify.base import Finding, Reply, TextVerifier, passed
from burnish.verify.case_builders import must_fail, must_pass
from burnish.verify.cases import run_cases
from burnish.verify.conformance import check_verifier_conformance
from burnish.verify.registry import VERIFIERS, get_verifier

BUILT_IN = [get_verifier(name) for name in sorted(VERIFIERS)]


def _case_id(value: object) -> str:
    return value.name if isinstance(value, Verifier) else ""


@pytest.mark.parametrize("verifier", BUILT_IN, ids=_case_id)
def test_built_in_verifiers_pass_their_own_cases(verifier: Verifier) -> None:
    report = run_cases(verifier)
    wrong = [(r.case.reply, r.case.why, r.verdict.reason) for r in report.results if not r.ok]
    assert not wrong
    assert report.ok
    assert {result.case.kind for result in report.results} == {"must_pass", "must_fail", "has_fooled_others"}


@pytest.mark.parametrize("verifier", BUILT_IN, ids=_case_id)
def test_built_in_verifiers_conform(verifier: Verifier) -> None:
    check_verifier_conformance(verifier)


class YesMan(TextVerifier):
    name = "yes_man"
    version = "1"

    def __init__(self, cases: tuple[VerifierCase, ...] = ()) -> None:
        self.cases = cases

    def check(self, reply: Reply, gold: object, task: object) -> Finding:
        return passed("whatever you say")


@pytest.mark.parametrize(
    ("cases", "finding"),
    [
        ((), "no cases"),
        ((must_pass(1, "1", "right"),), "no case must fail"),
        ((must_fail(1, "2", "wrong"),), "no case must pass"),
        ((must_pass(1, "1", "right"), must_fail(1, "2", "off by one")), "off by one) wants fail, got pass"),
        ((VerifierCase(1, "1", "maybe"), must_pass(1, "1", "right")), "wants 'maybe'"),
        (
            (VerifierCase(1, "1", "pass", "must_fail"), must_pass(1, "1", "right")),
            "kind must_fail and wants pass",
        ),
    ],
)
def test_cases_that_prove_nothing_are_findings(cases: tuple[VerifierCase, ...], finding: str) -> None:
    report = run_cases(YesMan(cases))
    assert not report.ok
    with pytest.raises(VerifierError) as caught:
        report.require()
    assert finding in caught.value.what
    assert caught.value.where == "yes_man"
    assert caught.value.fix


class Unsteady(YesMan):
    calls = 0

    def check(self, reply: Reply, gold: object, task: object) -> Finding:
        self.calls += 1
        return Finding(passed("").outcome, float(self.calls), "counts its calls")


class Raises(YesMan):
    def check(self, reply: Reply, gold: object, task: object) -> Finding:
        return passed(str(int(reply.text)))


class Unstorable(YesMan):
    def check(self, reply: Reply, gold: object, task: object) -> Finding:
        return passed("quoted raw", quoted=reply.text)


@pytest.mark.parametrize(
    ("verifier", "broken"),
    [
        (Unsteady(), "two different verdicts"),
        (Raises(), "leaves it undecided"),
        (Unstorable(), "cannot be stored"),
    ],
)
def test_conformance_finds_a_broken_promise(verifier: Verifier, broken: str) -> None:
    with pytest.raises(VerifierError, match=broken):
        check_verifier_conformance(verifier, demonstrations=[(1, "1")])


def test_conformance_finds_gold_that_fails_and_needs_something_to_pass() -> None:
    with pytest.raises(VerifierError, match="must pass, got fail"):
        check_verifier_conformance(get_verifier("numeric"), demonstrations=[(1, "2")])
    with pytest.raises(VerifierError, match="nothing is known to pass"):
        check_verifier_conformance(YesMan())
