"""The metric table: each metric is declared once, with unit, meaning and healthy range.

Events, curves, trackers and health findings all read `METRICS`; a name that is not in it is refused. A label
may follow a name after a slash (`dev_pass_rate/tool_call`, `loss/kl`): same metric, one part of it.

Leaves out rules over several steps (trends, collapses); a range here judges one value at one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from burnish.core.errors import NonFiniteError, RunError


class Direction(StrEnum):
    """Which way is better, other things being equal."""

    UP = "up"
    DOWN = "down"
    NEITHER = "neither"


class MetricGroup(StrEnum):
    """Which question a metric answers; curves are drawn group by group."""

    QUALITY = "quality"
    POLICY = "policy"
    REPLIES = "replies"
    OPTIMISER = "optimiser"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. A healthy value lies in [low, high]; None leaves that side open.

    `unit` is 'fraction' (of 1), 'nats', 'tokens', 's', 'bytes', 'versions', 'score', or '' for a pure number.
    """

    name: str
    unit: str
    meaning: str
    group: MetricGroup
    low: float | None = None
    high: float | None = None
    direction: Direction = Direction.NEITHER

    def healthy(self, value: float) -> bool:
        """Whether a value lies in the healthy range."""
        above_low = self.low is None or value >= self.low
        return above_low and (self.high is None or value <= self.high)

    @property
    def range_text(self) -> str:
        """The healthy range in words, or '' where there is none."""
        if self.low is None and self.high is None:
            return ""
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


_Q, _P, _R, _O, _C = MetricGroup
_UP, _DOWN = Direction.UP, Direction.DOWN

# Where a range has no derivation beside it, it is a rule of thumb for short runs on small models, meant to
# catch what is broken rather than what could be better.
_DECLARED = (
    Metric("reward_mean", "score", "mean reward of decided rollouts", _Q, direction=_UP),
    Metric("reward_std", "score", "standard deviation of reward over decided rollouts", _Q),
    # Outside 0.02..0.98 more than 85 % of groups of 8 are all right or all wrong: p**8 + (1-p)**8.
    Metric("pass_rate", "fraction", "share of decided training rollouts that pass", _Q, 0.02, 0.98, _UP),
    Metric("dev_pass_rate", "fraction", "share of decided development tasks that pass", _Q, direction=_UP),
    Metric("pass_at_k", "fraction", "training prompts solved in one of k tries before the stage", _Q),
    Metric("dev_loss", "nats", "loss per trained token on the development set", _Q, direction=_DOWN),
    Metric("train_loss", "nats", "mean negative log-probability of the trained labels", _Q, direction=_DOWN),
    Metric("undecided_frac", "fraction", "share of rollouts without a decided verdict", _Q, 0.0, 0.05, _DOWN),
    Metric("zero_variance_group_frac", "fraction", "share of groups with equal rewards", _Q, 0.0, 0.8, _DOWN),
    # 6 nats is more than half of the entropy of a uniform draw from 49,152 words (10.8): text turns to noise.
    Metric("entropy_mean", "nats", "mean entropy per sampled token", _P, 0.005, 6.0),
    Metric("kl_to_reference", "nats", "KL to the reference per token (k3 under the sampler)", _P, 0.0, 1.0),
    # An unbiased estimate that may fall below 0; on policy it is 0 but for the rounding of two kernels.
    # Before the first update of a batch the ratio is 1; with clipping at 0.2 a healthy batch stays near it.
    Metric("replay_kl", "nats", "KL to the stage's first policy per token of replayed talk", _P, 0.0, 0.1, _DOWN),
    Metric("ratio_mean", "", "mean probability ratio of trainer now to trainer at sampling", _P, 0.9, 1.1),
    Metric("ratio_max", "", "largest probability ratio of one token", _P, 0.0, 10.0),
    Metric("clip_frac", "fraction", "share of trained tokens whose ratio was clipped", _P, 0.0, 0.3),
    # Same weights, different kernels: bf16 differs by some hundredths of a nat on single tokens.
    Metric("sampler_logp_gap_max", "nats", "largest gap of sampler and trainer on probes", _P, 0.0, 0.1, _DOWN),
    Metric("staleness", "versions", "policy versions between sampling and training", _P, 0.0, 4.0, _DOWN),
    Metric("reply_tokens_mean", "tokens", "mean length of sampled replies", _R),
    Metric("reply_tokens_p10", "tokens", "10th percentile of reply length", _R),
    Metric("reply_tokens_p50", "tokens", "median reply length", _R),
    Metric("reply_tokens_p90", "tokens", "90th percentile of reply length", _R),
    Metric("reply_tokens_max", "tokens", "longest reply", _R),
    Metric("truncated_frac", "fraction", "share of replies cut by the token limit", _R, 0.0, 0.1, _DOWN),
    Metric("loss", "", "the objective that was minimised, per its own denominator", _O),
    # A gradient of exactly zero is how a wrong mask looks from outside.
    Metric("grad_norm", "", "norm of the whole gradient before clipping", _O, 1e-8, 100.0),
    Metric("lr", "", "learning rate of the step", _O),
    Metric("epoch", "", "passes over the training rows so far", _O),
    Metric("tokens_trained", "tokens", "tokens that entered the loss in this step", _O, 1.0, None),
    Metric("num_rollouts", "", "rollouts finished in this step", _C),
    Metric("prompts_drawn", "", "prompts sampled in this step, with and without variance", _C),
    Metric("tokens_sampled", "tokens", "tokens sampled in this step", _C),
    Metric("tokens_per_s", "tokens/s", "tokens sampled or trained per second of the step", _C, direction=_UP),
    Metric("rollout_s", "s", "wall time of sampling", _C, direction=_DOWN),
    Metric("verify_s", "s", "wall time of verifying beyond sampling", _C, direction=_DOWN),
    Metric("train_s", "s", "wall time of forward, backward and optimiser", _C, direction=_DOWN),
    Metric("sync_s", "s", "wall time of weight sync and identity proof", _C, direction=_DOWN),
    Metric("eval_s", "s", "wall time of evaluating on the development set", _C, direction=_DOWN),
    Metric("step_s", "s", "wall time of the whole step", _C, direction=_DOWN),
    Metric("peak_memory_bytes", "bytes", "most memory the process has held so far", _C, direction=_DOWN),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
"""Every metric by name."""


def metric_of(name: str) -> Metric:
    """The declaration behind a name or a labelled name (`name/label`).

    Raises: RunError where the metric is not declared.
    """
    base = name.partition("/")[0]
    if base not in METRICS:
        raise RunError(
            f"the metric {name!r} is not declared",
            where="burnish.observe.metrics.METRICS",
            fix=f"declare {base!r} there with unit, meaning and healthy range, or correct the name",
        )
    return METRICS[base]


def require_declared(row: Mapping[str, float], *, where: str = "") -> None:
    """Checks that a row holds declared metrics and finite numbers only.

    Raises: RunError for an undeclared name; NonFiniteError for a NaN or an infinity.
    """
    for name, value in row.items():
        metric_of(name)
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{name} is {value}",
                where=where,
                fix="leave out what was not measured; otherwise find the step that first made it non-finite",
            )


def check_ranges(row: Mapping[str, float]) -> list[str]:
    """One sentence for each value outside its healthy range, in the row's order.

    Raises: RunError for an undeclared name.
    """
    findings = []
    for name, value in row.items():
        metric = metric_of(name)
        if not metric.healthy(value):
            unit = f" {metric.unit}" if metric.unit else ""
            outside = f"outside its healthy range of {metric.range_text}"
            findings.append(f"{name} is {value:.4g}{unit}, {outside}: {metric.meaning}")
    return findings
