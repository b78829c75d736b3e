"""Pass rates of a suite: pass@1 and unbiased pass@k, pooled and by domain, with clustered intervals.

Undecided samples are no samples: they leave n. Leaves out comparing two models (see `stats`, `gate`).
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.core.errors import DataError
from burnish.evals.results import SuiteResult, TaskRecord
from burnish.evals.stats import MeanEstimate, clustered_mean


@dataclass(frozen=True, slots=True)
class PassAtK:
    """pass@k over `estimate.num_values` tasks; `left_out` had fewer than k decided samples.

    `estimate` is None where every task was left out.
    """

    k: int
    estimate: MeanEstimate | None
    left_out: int


@dataclass(frozen=True, slots=True)
class SuitePassAtK:
    """pass@k of all domains pooled, and of each."""

    pooled: PassAtK
    by_domain: dict[str, PassAtK]


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """The unbiased estimate, from n samples of which c passed, that at least one of k passes.

    1 - C(n-c, k) / C(n, k), as a product of ratios so that nothing overflows.
    Raises: ValueError unless 1 <= k <= n and 0 <= c <= n.
    Source: Chen et al., arXiv 2107.03374, eq. 1.
    """
    n, c = num_samples, num_passed
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, not n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    none_pass = 1.0
    for i in range(n - c + 1, n + 1):
        none_pass *= 1.0 - k / i
    return 1.0 - none_pass


def suite_pass_at_k(result: SuiteResult, k: int, confidence: float = 0.95) -> SuitePassAtK:
    """pass@k of a suite; domains are strata of the pooled estimate.

    Raises: DataError where the suite has fewer than k samples a task.
    """
    if result.records and max(len(record.outcomes) for record in result.records) < k:
        raise DataError(
            f"pass@{k} needs {k} samples a task, {result.suite} has fewer",
            where=f"suite {result.suite}, split {result.split}",
            fix=f"evaluate with at least {k} samples a task",
        )
    by_domain = {
        domain: _of_records([r for r in result.records if r.domain == domain], k, confidence)
        for domain in result.domains
    }
    return SuitePassAtK(_of_records(list(result.records), k, confidence), by_domain)


def _of_records(records: list[TaskRecord], k: int, confidence: float) -> PassAtK:
    usable = [record for record in records if record.num_decided >= k]
    left_out = len(records) - len(usable)
    if not usable:
        return PassAtK(k, None, left_out)
    estimate = clustered_mean(
        [pass_at_k(record.num_decided, record.num_passed, k) for record in usable],
        [f"{record.domain}/{record.cluster}" for record in usable],
        [record.domain for record in usable],
        confidence,
    )
    return PassAtK(k, estimate, left_out)
