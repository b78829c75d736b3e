"""Verifiers made of verifiers.

Every part receives the same gold, unless it is wrapped in `Keyed`. A format can gate a score and never adds
to a wrong answer; an undecided part that could change the result leaves it undecided. Leaves out voting among
judges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from burnish.core.errors import ConfigError, DataError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome
from burnish.core.protocols import Verifier, VerifierCase
from burnish.core.types import Artifacts, Task, Trajectory, Verdict
from burnish.verify.base import Finding, fault
from burnish.verify.gold import open_gold


class _Composite:
    """Name, version and cases of a composition; the version changes when any part's does."""

    def __init__(self, kind: str, parts: Sequence[Verifier], cases: Sequence[VerifierCase]) -> None:
        if not parts:
            raise ConfigError(f"{kind} of no verifiers", fix="give at least one")
        self.parts = tuple(parts)
        self.name = f"{kind}({', '.join(part.name for part in parts)})"
        signature = "\0".join(f"{part.name}@{part.version}" for part in parts)
        self.version = f"1-{hashlib.sha256(signature.encode()).hexdigest()[:8]}"
        self.cases = tuple(cases)

    def _sign(self, verdicts: Sequence[Verdict], decisive: Verdict, score: float | None, reason: str) -> Verdict:
        """One verdict from the parts': the outcome and ending of the decisive one, components under its
        name."""
        components = {f"{v.verifier}.{key}": value for v in verdicts for key, value in v.components.items()}
        components |= {v.verifier: v.score for v in verdicts if v.score is not None}
        flags = tuple(dict.fromkeys(flag for v in verdicts for flag in v.flags))
        evidence = {v.verifier: v.evidence for v in verdicts}
        found = Finding(decisive.outcome, score, reason, components, evidence, flags, decisive.ending)
        return found.signed(self.name, self.version, sum(v.duration_s for v in verdicts))


class Keyed:
    """A part that receives `gold[key]`, so that a composition's gold can hold one entry for each part."""

    def __init__(self, verifier: Verifier, key: str) -> None:
        self.verifier, self.key = verifier, key
        self.name, self.version = verifier.name, verifier.version
        self.cases: tuple[VerifierCase, ...] = ()  # the part's own cases have another gold

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        """The part's verdict on its share of the gold."""
        payload = open_gold(gold)
        if not isinstance(payload, dict) or self.key not in payload:
            error = DataError(f"gold has no entry {self.key!r} for {self.name}", where=task.id, fix="add it")
            return fault(error, trajectory.reply.text, provoked=False).signed(self.name, self.version)
        return await self.verifier.verify(task, Gold.seal(payload[self.key]), trajectory, artifacts)


class Gated(_Composite):
    """The inner verifier's verdict where the gate passes; else the gate's, with score 0.

    A reply in the right form and with a wrong answer scores what the wrong answer scores.
    """

    def __init__(self, gate: Verifier, inner: Verifier, cases: Sequence[VerifierCase] = ()) -> None:
        super().__init__("gated", (gate, inner), cases)

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        """Gate first."""
        gate, inner = self.parts
        first = await gate.verify(task, gold, trajectory, artifacts)
        if first.outcome is not Outcome.PASS:
            score = None if first.outcome is Outcome.UNDECIDED else 0.0
            return self._sign([first], first, score, f"gate: {first.reason}")
        second = await inner.verify(task, gold, trajectory, artifacts)
        return self._sign([first, second], second, second.score, second.reason)


class AllOf(_Composite):
    """PASS iff every part passes.

    The score is 1 on PASS. On FAIL it is 0, or with `weights` (one a part, summing to 1) the weight of the
    parts that pass where the first part is one of them: the first part is the answer, the others are its
    form.
    """

    def __init__(
        self,
        parts: Sequence[Verifier],
        weights: Sequence[float] | None = None,
        cases: Sequence[VerifierCase] = (),
    ) -> None:
        super().__init__("all_of", parts, cases)
        if weights is not None:
            if len(weights) != len(self.parts) or min(weights) <= 0 or abs(sum(weights) - 1.0) > 1e-9:
                raise ConfigError(
                    f"weights {list(weights)} for {len(self.parts)} verifiers",
                    fix="give one positive weight for each, summing to 1",
                )
            self.version += "-" + "-".join(f"{weight:g}" for weight in weights)
        self.weights = None if weights is None else tuple(weights)

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        """Every part, in order; with no weights a first FAIL decides."""
        verdicts: list[Verdict] = []
        for part in self.parts:
            verdicts.append(await part.verify(task, gold, trajectory, artifacts))
            answer_fails = verdicts[0].outcome is Outcome.FAIL
            if verdicts[-1].outcome is Outcome.FAIL and (self.weights is None or answer_fails):
                return self._sign(verdicts, verdicts[-1], 0.0, f"{part.name}: {verdicts[-1].reason}")
        undecided = next((v for v in verdicts if v.outcome is Outcome.UNDECIDED), None)
        if undecided is not None:
            return self._sign(verdicts, undecided, None, f"{undecided.verifier}: {undecided.reason}")
        failing = next((v for v in verdicts if v.outcome is Outcome.FAIL), None)
        if failing is None:
            return self._sign(verdicts, verdicts[-1], 1.0, "every part passes")
        assert self.weights is not None, "without weights a FAIL returned above"
        shares = zip(self.weights, verdicts, strict=True)
        score = sum(weight for weight, v in shares if v.outcome is Outcome.PASS)
        return self._sign(verdicts, failing, score, f"{failing.verifier}: {failing.reason}")


class FirstDecided(_Composite):
    """The first decided verdict, in order; UNDECIDED only where every part is.

    Put the strictest rule first and a judge last. A provoked fault stops the search: a text must not be able
    to choose its grader.
    """

    def __init__(self, parts: Sequence[Verifier], cases: Sequence[VerifierCase] = ()) -> None:
        super().__init__("first_decided", parts, cases)

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        """Part after part, until one decides."""
        verdicts: list[Verdict] = []
        for part in self.parts:
            verdicts.append(await part.verify(task, gold, trajectory, artifacts))
            if verdicts[-1].outcome is not Outcome.UNDECIDED or verdicts[-1].flags:
                break
        last = verdicts[-1]
        return self._sign(verdicts, last, last.score, f"{last.verifier}: {last.reason}")
