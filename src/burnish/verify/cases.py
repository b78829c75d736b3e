"""Running a verifier's own cases: what must pass, what must fail, what has fooled others.

Leaves out attacks that no case names (`conformance` holds a fixed set of nasty texts).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from burnish.core.errors import VerifierError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome
from burnish.core.protocols import Verifier, VerifierCase
from burnish.core.types import Artifacts, Verdict
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.runner import DEFAULT_DEADLINE_S, verify_one
from burnish.verify.text import shown

KINDS = ("must_pass", "must_fail", "has_fooled_others")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case and the verdict on it."""

    case: VerifierCase
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """Whether the verdict is the one wanted."""
        return self.verdict.outcome.value == self.case.want


@dataclass(frozen=True, slots=True)
class CaseReport:
    """Every case's result, and what is wrong with the verifier (`findings`, empty where nothing is)."""

    verifier: str
    version: str
    results: tuple[CaseResult, ...]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    def require(self) -> None:
        """Raises: VerifierError where there is a finding."""
        if self.findings:
            raise VerifierError(
                f"verifier {self.verifier}@{self.version}: {'; '.join(self.findings)}",
                where=self.verifier,
                fix="mend the verifier, or give it the cases it lacks",
            )


def run_cases(verifier: Verifier, *, deadline_s: float = DEFAULT_DEADLINE_S) -> CaseReport:
    """The verifier's verdict on each of its cases, in order. Not for use inside a running event loop.

    A verifier without cases, without one that must pass or without one that must fail is a finding: it would
    pass this check if it passed, or failed, every text there is.
    """
    results = asyncio.run(_run(verifier, deadline_s))
    return CaseReport(verifier.name, verifier.version, results, tuple(_findings(verifier, results)))


async def _run(verifier: Verifier, deadline_s: float) -> tuple[CaseResult, ...]:
    results = []
    for case in verifier.cases:
        task = bare_task(verifier.name, case.prompt, case.tools)
        trajectory = reply_trajectory(task, case.reply)
        verdict = await verify_one(verifier, task, Gold.seal(case.gold), trajectory, Artifacts(), deadline_s)
        results.append(CaseResult(case, verdict))
    return tuple(results)


def _findings(verifier: Verifier, results: tuple[CaseResult, ...]) -> list[str]:
    if not results:
        return ["it has no cases"]
    findings = []
    for index, result in enumerate(results):
        case = result.case
        if case.want not in (Outcome.PASS, Outcome.FAIL) or case.kind not in KINDS:
            findings.append(f"case {index} wants {case.want!r} and is of kind {case.kind!r}")
        elif (case.kind == "must_pass") != (case.want == Outcome.PASS):
            findings.append(f"case {index} is of kind {case.kind} and wants {case.want}")
        elif not result.ok:
            found = result.verdict.outcome.value
            findings.append(f"case {index} ({shown(case.why or case.reply, 60)}) wants {case.want}, got {found}")
    if not any(result.case.want == Outcome.PASS for result in results):
        findings.append("no case must pass")
    if not any(result.case.want == Outcome.FAIL for result in results):
        findings.append("no case must fail")
    return findings
