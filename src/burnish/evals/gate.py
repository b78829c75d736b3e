"""PROMOTE, REJECT or INCONCLUSIVE: the one place that says whether a checkpoint is better.

The target is every task of every domain, pooled, each domain at its share. PROMOTE needs all of: the paired
difference's lower bound above zero against the parent *and* against the best few-shot prompt on the untouched
model, every guard holding, nothing missing, undecided verdicts within their cap. REJECT needs one sound
comparison or guard that is surely worse. Everything else is INCONCLUSIVE, with its reasons.

**Errors.** Promotion asks for all conditions at once, an intersection-union test: each part is tested at the
full level and the whole has that level, without correction for the number of tests (Berger 1982). With
two-sided 95 % intervals an equal model passes a target comparison in about 2.5 % of trials;
benchmarks/gate_trials/result.md has the measured rates.

What it does not protect against: a suite that leaked into training; the same set being asked again and again;
verdicts that are undecided *because* a reply would have failed, within `max_undecided_frac`.

Source: Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24 (1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from burnish.core.config import Config
from burnish.core.seeds import derive_seed
from burnish.core.types import Decision, Split
from burnish.evals.guards import DEFAULT_GUARDS, GuardOutcome, GuardResult, assess
from burnish.evals.results import Paired, SuiteResult, paired
from burnish.evals.stats import Interval, cluster_bootstrap, mcnemar_midp

Finding = Literal["better", "worse", "unclear", "unusable"]

PARENT = "parent"
FEW_SHOT_BASE = "few-shot base"


class GateConfig(Config):
    """What a promotion asks for."""

    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    """Confidence of the two-sided intervals of the target comparisons; 0.9 to 0.99."""

    guard_confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.90
    """Confidence of the guards' two-sided intervals; 0.90 makes each bound a one-sided 5 % test, the usual
    level for showing no harm."""

    max_undecided_frac: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Largest share of undecided pairs in a comparison, or of undecided items in a guard; 0 to 0.05."""

    resamples: Annotated[int, Field(ge=1000)] = 10_000
    """Bootstrap resamples an interval; 2,000 to 20,000."""

    min_clusters: Annotated[int, Field(ge=10)] = 30
    """Fewest clusters in each domain, and of items in a guard, for an interval to be trusted; 20 or more."""

    required_guards: Annotated[tuple[str, ...], Field(strict=False)] = tuple(g.name for g in DEFAULT_GUARDS)
    """Names of the guards without which nothing is promoted."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The candidate against one reference on the target.

    Rates, difference and bounds are fractions, None where the comparison is unusable, and then `problem`
    says why. `wins` and `losses` are the discordant pairs; `mcnemar_p` is printed and decides nothing.
    """

    reference: str
    finding: Finding
    num_pairs: int
    num_clusters: int
    wins: int
    losses: int
    undecided: int
    undecided_candidate: int
    undecided_reference: int
    confidence: float
    candidate_rate: float | None = None
    reference_rate: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    mcnemar_p: float | None = None
    problem: str = ""

    def explain(self) -> str:
        """One line in plain words."""
        if self.difference is None or self.low is None or self.high is None or self.mcnemar_p is None:
            return f"against the {self.reference}: unusable, {self.problem}"
        word = {"better": "better", "worse": "worse", "unclear": "no clear difference"}[self.finding]
        return (
            f"against the {self.reference}: {word}, {100 * self.difference:+.1f} points, "
            f"{100 * self.confidence:.0f} % interval [{100 * self.low:+.1f}, {100 * self.high:+.1f}] "
            f"({self.num_pairs} pairs in {self.num_clusters} clusters, {self.wins} won, {self.losses} lost, "
            f"{self.undecided} undecided; McNemar mid-p {self.mcnemar_p:.2g}, which ignores clusters)"
        )


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A decision with everything it rests on; round-trips through `core.codec`.

    `reasons` are the lines that made the decision, worst first.
    """

    decision: Decision
    reasons: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    guards: tuple[GuardOutcome, ...]
    candidate_digest: str
    parent_digest: str
    suite: str
    split: Split | None
    seed: int
    resamples: int

    @property
    def promoted(self) -> bool:
        """Whether the candidate may be released."""
        return self.decision is Decision.PROMOTE

    def explain(self) -> str:
        """The decision, why, and every comparison and guard, in plain words."""
        lines = [f"{self.decision.value.upper()}: {'; '.join(self.reasons)}"]
        lines += [f"  {comparison.explain()}" for comparison in self.comparisons]
        lines += [f"  {guard.explain()}" for guard in self.guards]
        return "\n".join(lines)


def decide(
    candidate: SuiteResult | None,
    parent: SuiteResult | None,
    few_shot_base: SuiteResult | None,
    guards: Sequence[GuardResult],
    config: GateConfig,
    seed: int,
) -> GateDecision:
    """The decision on a candidate; a suite that was not run is None and never leads to PROMOTE.

    `parent` is judged under the candidate's own prompt, `few_shot_base` under the base model's best one. The
    three must share suite, split and decoding. The same arguments give the same decision, whatever the
    order of tasks and guards.

    Raises: RunError where results cannot be paired: other tasks, other suites, other verifier versions.
    """
    comparisons = (
        compare(candidate, parent, PARENT, config, seed),
        compare(candidate, few_shot_base, FEW_SHOT_BASE, config, seed),
    )
    outcomes = tuple(
        assess(
            guard,
            confidence=config.guard_confidence,
            resamples=config.resamples,
            min_clusters=config.min_clusters,
            max_undecided_frac=config.max_undecided_frac,
            seed=seed,
        )
        for guard in sorted(guards, key=lambda guard: guard.name)
    )
    decision, reasons = _conclude(comparisons, outcomes, config)
    return GateDecision(
        decision=decision,
        reasons=reasons,
        comparisons=comparisons,
        guards=outcomes,
        candidate_digest=candidate.model_digest if candidate else "",
        parent_digest=parent.model_digest if parent else "",
        suite=candidate.suite if candidate else "",
        split=candidate.split if candidate else None,
        seed=seed,
        resamples=config.resamples,
    )


def compare(
    candidate: SuiteResult | None, reference: SuiteResult | None, name: str, config: GateConfig, seed: int
) -> Comparison:
    """The paired difference candidate - reference with its interval, or why there is none.

    Raises: RunError where the two cannot be paired.
    """
    if candidate is None or reference is None:
        missing = "the candidate" if candidate is None else f"the {name}"
        return Comparison(
            name, "unusable", 0, 0, 0, 0, 0, 0, 0, config.confidence, problem=f"{missing} was not evaluated"
        )
    pairs = paired(candidate, reference)
    problem = _problem(candidate, reference, pairs, name, config)
    interval: Interval | None = None
    if not problem:
        interval = cluster_bootstrap(
            pairs.difference,
            pairs.clusters,
            pairs.domains,
            confidence=config.confidence,
            resamples=config.resamples,
            seed=derive_seed(seed, "evals.gate", name),
        )
    return Comparison(
        reference=name,
        finding=_finding(interval),
        num_pairs=len(pairs.task_ids),
        num_clusters=len(set(pairs.clusters)),
        wins=pairs.wins,
        losses=pairs.losses,
        undecided=pairs.undecided,
        undecided_candidate=pairs.undecided_a,
        undecided_reference=pairs.undecided_b,
        confidence=config.confidence,
        candidate_rate=float(pairs.a.mean()) if interval else None,
        reference_rate=float(pairs.b.mean()) if interval else None,
        difference=interval.estimate if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        mcnemar_p=mcnemar_midp(pairs.wins, pairs.losses) if interval else None,
        problem=problem,
    )


def _problem(candidate: SuiteResult, reference: SuiteResult, pairs: Paired, name: str, config: GateConfig) -> str:
    """Why a comparison cannot decide, or ''."""
    if candidate.split not in (Split.GATE, Split.FINAL):
        return f"the {candidate.split} set has already been used to choose; only gate and final sets decide"
    if candidate.sampling != reference.sampling:
        return f"decoding differs: {candidate.sampling} against {reference.sampling}"
    if name == PARENT and candidate.prompt != reference.prompt:
        return f"prompts differ: {candidate.prompt} against {reference.prompt}"
    if pairs.undecided_frac > config.max_undecided_frac:
        total = len(pairs.task_ids) + pairs.undecided
        return f"{pairs.undecided} of {total} pairs are undecided, more than {config.max_undecided_frac:.1%}"
    for domain in candidate.domains:
        inside = {c for c, d in zip(pairs.clusters, pairs.domains, strict=True) if d == domain}
        if len(inside) < config.min_clusters:
            return f"{domain} has {len(inside)} clusters, fewer than {config.min_clusters}"
    return "" if pairs.task_ids else "there are no pairs"


def _finding(interval: Interval | None) -> Finding:
    if interval is None:
        return "unusable"
    if interval.low > 0:
        return "better"
    return "worse" if interval.high < 0 else "unclear"


def _conclude(
    comparisons: Sequence[Comparison], guards: Sequence[GuardOutcome], config: GateConfig
) -> tuple[Decision, tuple[str, ...]]:
    harm = [f"worse than the {c.reference}" for c in comparisons if c.finding == "worse"]
    harm += [f"guard {g.name} is broken" for g in guards if g.status == "broken"]
    if harm:
        return Decision.REJECT, tuple(harm)
    seen = {guard.name for guard in guards}
    doubt = [f"the comparison with the {c.reference} is unusable: {c.problem}" for c in comparisons if c.problem]
    doubt += [f"guard {name} is missing" for name in config.required_guards if name not in seen]
    doubt += [f"guard {g.name} is unusable: {g.problem}" for g in guards if g.status == "unusable"]
    doubt += [f"not shown to be better than the {c.reference}" for c in comparisons if c.finding == "unclear"]
    doubt += [f"guard {g.name} is not shown to hold" for g in guards if g.status == "unclear"]
    if doubt:
        return Decision.INCONCLUSIVE, tuple(doubt)
    return Decision.PROMOTE, ("better than the parent and than the few-shot base, and every guard holds",)
