"""What an evaluation found, task by task, and how two evaluations are laid side by side.

Leaves out running a suite (a caller's job) and statistics (see `stats`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.core.errors import RunError
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.types import Split


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The samples of one task and their verdicts; every tuple has one entry a sample.

    `scores` holds None exactly where the outcome is undecided. `verifier` and `version` say who judged.
    """

    task_id: str
    domain: str
    cluster: str
    outcomes: tuple[Outcome, ...]
    scores: tuple[float | None, ...]
    reply_tokens: tuple[int, ...]
    stop_reasons: tuple[StopReason, ...]
    verifier: str
    version: str

    def __post_init__(self) -> None:
        n = len(self.outcomes)
        if not n or not n == len(self.scores) == len(self.reply_tokens) == len(self.stop_reasons):
            raise ValueError(f"task {self.task_id}: outcomes, scores, tokens and stops need one entry a sample")
        for outcome, score in zip(self.outcomes, self.scores, strict=True):
            if (outcome is Outcome.UNDECIDED) != (score is None):
                raise ValueError(f"task {self.task_id}: a sample has a score iff it is decided")

    @property
    def num_decided(self) -> int:
        """Samples with a verdict."""
        return len(self.outcomes) - self.outcomes.count(Outcome.UNDECIDED)

    @property
    def num_passed(self) -> int:
        """Samples that passed."""
        return self.outcomes.count(Outcome.PASS)

    @property
    def pass_rate(self) -> float | None:
        """Passes over decided samples; None where no sample is decided."""
        num_decided = self.num_decided
        return self.num_passed / num_decided if num_decided else None


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One model under one prompt on one set of tasks.

    `model_digest` is the digest of the weights; `prompt` is "plain" or "few_shot:ID"; `sampling` describes
    decoding in a canonical string, so that equal strings mean equal decoding. `num_tokens` were generated in
    `duration_s` seconds.
    """

    suite: str
    split: Split
    model_digest: str
    prompt: str
    sampling: str
    records: tuple[TaskRecord, ...]
    num_tokens: int
    duration_s: float

    def __post_init__(self) -> None:
        if self.prompt != "plain" and not self.prompt.startswith("few_shot:"):
            raise ValueError(f'prompt is "plain" or "few_shot:ID", not {self.prompt!r}')
        if len({record.task_id for record in self.records}) != len(self.records):
            raise ValueError(f"suite {self.suite}: a task occurs twice")

    @property
    def domains(self) -> tuple[str, ...]:
        """Domain names, sorted."""
        return tuple(sorted({record.domain for record in self.records}))

    @property
    def undecided_frac(self) -> float:
        """Undecided samples over all samples; 0 without samples."""
        samples = sum(len(record.outcomes) for record in self.records)
        decided = sum(record.num_decided for record in self.records)
        return (samples - decided) / samples if samples else 0.0

    def of_domain(self, domain: str) -> SuiteResult:
        """The part of one domain; tokens are those of its replies, time is shared out by tokens."""
        records = tuple(record for record in self.records if record.domain == domain)
        num_tokens = sum(sum(record.reply_tokens) for record in records)
        total = sum(sum(record.reply_tokens) for record in self.records)
        duration_s = self.duration_s * num_tokens / total if total else 0.0
        return SuiteResult(
            self.suite,
            self.split,
            self.model_digest,
            self.prompt,
            self.sampling,
            records,
            num_tokens,
            duration_s,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Pass rates of two models on the tasks that both decided, in order of task id.

    Shapes: `a`, `b` [n] in [0, 1]. `clusters` are unique across domains. `undecided_a` and `undecided_b`
    count tasks without a decided sample on that side; `undecided` counts tasks left out, from both sides.
    """

    task_ids: tuple[str, ...]
    domains: tuple[str, ...]
    clusters: tuple[str, ...]
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    undecided_a: int
    undecided_b: int
    undecided: int

    @property
    def difference(self) -> NDArray[np.float64]:
        """a - b, by task [n]."""
        return self.a - self.b

    @property
    def wins(self) -> int:
        """Tasks on which `a` has the higher pass rate."""
        return int((self.a > self.b).sum())

    @property
    def losses(self) -> int:
        """Tasks on which `b` has the higher pass rate."""
        return int((self.a < self.b).sum())

    @property
    def undecided_frac(self) -> float:
        """Tasks left out over all tasks; 0 without tasks."""
        total = len(self.task_ids) + self.undecided
        return self.undecided / total if total else 0.0


def paired(a: SuiteResult, b: SuiteResult) -> Paired:
    """Two results on the same tasks, pair by pair; pairs undecided on either side leave both, counted.

    Raises: RunError where suites, splits or task sets differ, or a task was judged by different verifiers or
    verifier versions.
    """
    where = f"{a.suite} of {a.model_digest[:12]} against {b.suite} of {b.model_digest[:12]}"
    if (a.suite, a.split) != (b.suite, b.split):
        raise RunError(
            f"suite {a.suite}/{a.split} cannot be paired with {b.suite}/{b.split}",
            where=where,
            fix="evaluate both models on the same suite and split",
        )
    of_a = {record.task_id: record for record in a.records}
    of_b = {record.task_id: record for record in b.records}
    unmatched = sorted(set(of_a) ^ set(of_b))
    if unmatched:
        raise RunError(
            f"different tasks: {len(unmatched)} are on one side only, such as {unmatched[0]}",
            where=where,
            fix="evaluate both models on the same task files",
        )
    both = []
    undecided_a = undecided_b = 0
    for task_id in sorted(of_a):
        x, y = of_a[task_id], of_b[task_id]
        _refuse_different_judges(x, y, where)
        rate_a, rate_b = x.pass_rate, y.pass_rate
        undecided_a += rate_a is None
        undecided_b += rate_b is None
        if rate_a is not None and rate_b is not None:
            both.append((x, rate_a, rate_b))
    return Paired(
        task_ids=tuple(record.task_id for record, _, _ in both),
        domains=tuple(record.domain for record, _, _ in both),
        clusters=tuple(f"{record.domain}/{record.cluster}" for record, _, _ in both),
        a=np.array([rate for _, rate, _ in both], dtype=np.float64),
        b=np.array([rate for _, _, rate in both], dtype=np.float64),
        undecided_a=undecided_a,
        undecided_b=undecided_b,
        undecided=len(of_a) - len(both),
    )


def _refuse_different_judges(x: TaskRecord, y: TaskRecord, where: str) -> None:
    if (x.verifier, x.version) != (y.verifier, y.version):
        raise RunError(
            f"task {x.task_id} was judged by {x.verifier} {x.version} on one side and "
            f"{y.verifier} {y.version} on the other",
            where=where,
            fix="evaluate both with one version of the verifier: run the older recipe again",
        )
    if (x.domain, x.cluster) != (y.domain, y.cluster):
        raise RunError(
            f"task {x.task_id} is in {x.domain}/{x.cluster} on one side and in {y.domain}/{y.cluster} on the other",
            where=where,
            fix="evaluate both models on the same task files",
        )
