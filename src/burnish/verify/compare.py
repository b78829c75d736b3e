"""Scores of different verifiers, or versions of one, are never compared unsaid.

Leaves out which trajectories are scored again, and statistics (`evals`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from burnish.core.errors import RunError
from burnish.core.outcomes import Outcome
from burnish.core.types import Verdict


@dataclass(frozen=True, slots=True)
class VersionChange:
    """One trajectory's verdict before and after its verifier changed. `score_change` is None where either is
    undecided."""

    verifier: str
    old_version: str
    new_version: str
    old_outcome: Outcome
    new_outcome: Outcome
    score_change: float | None

    @property
    def changed(self) -> bool:
        """Whether the outcome or the score moved."""
        return self.old_outcome is not self.new_outcome or self.score_change not in (None, 0.0)


def signature(verdict: Verdict) -> str:
    """`name@version` of the verifier that signed a verdict."""
    return f"{verdict.verifier}@{verdict.version}"


def compare_versions(old: Verdict, new: Verdict) -> VersionChange:
    """What a changed version of the same verifier says about the same trajectory, with both versions named.

    Raises: RunError where the verdicts come from different verifiers.
    """
    if old.verifier != new.verifier:
        raise RunError(
            f"{signature(old)} and {signature(new)} are different verifiers; their verdicts do not compare",
            fix=f"rescore with {old.verifier}",
        )
    change = None if old.score is None or new.score is None else new.score - old.score
    return VersionChange(old.verifier, old.version, new.version, old.outcome, new.outcome, change)


def require_same_version(verdicts: Iterable[Verdict], *, where: str = "") -> str:
    """The one `name@version` that signed all of the verdicts.

    Call it before any statistic over verdicts of one role. Raises: RunError where there are several, or none.
    """
    counts = Counter(map(signature, verdicts))
    if len(counts) == 1:
        return next(iter(counts))
    if not counts:
        raise RunError("there are no verdicts to compare", where=where, fix="verify the trajectories first")
    named = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
    raise RunError(
        f"the scores come from different verifiers: {named}",
        where=where,
        fix="judge all of them with one version of the verifier",
    )
