"""What a report is made of: one versioned JSON file, from which the page is drawn.

`report/report.json` holds a `ReportData`; `report/report.html` shows it. Curves are not repeated here: the
page reads them from `events.jsonl` beside it. Leaves out drawing (`report`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.core.types import Decision, Task, Trajectory
from burnish.evals.gate import Comparison, GateDecision
from burnish.evals.results import SuiteResult


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One row of the final table: a model under a prompt.

    `label` is what a person calls it ("base", "base, few-shot", "sft", "grpo", "continued_sft");
    `stage` is '' for the base. `result` is on the final set; `external` maps a suite's name to its result,
    `guards` a guard's name to the mean of its values.
    """

    label: str
    stage: str
    digest: str
    prompt: str
    promoted: bool
    result: SuiteResult
    external: dict[str, SuiteResult] = field(default_factory=dict)
    guards: dict[str, float] = field(default_factory=dict)
    from_cache: bool = False


CONTROL = "continued_sft"
"""The kind of the stage that is compared with RL and never gated."""


@dataclass(frozen=True, slots=True)
class StageEntry:
    """What became of one stage. `gate` is None where the stage was refused or skipped; `reason` says why.

    `digest` is the candidate's, `parent` its parent's; `seconds` the stage's own wall time, without its gate.
    `best_step` and `points` (step, development pass rate) come from evaluations within the stage.
    """

    name: str
    kind: str
    parent: str
    digest: str
    promoted: bool
    seconds: float
    reason: str
    formula: str
    gate: GateDecision | None = None
    best_step: int | None = None
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledComparison:
    """A paired comparison on the final set, for one domain or for all pooled (`domain` '')."""

    candidate: str
    reference: str
    domain: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Sample:
    """A task and one reply to it, with verdict and evidence in the trajectory; `label` names the model."""

    label: str
    task: Task
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Cost:
    """What the run took. `seconds` by part (prepare, baseline, each stage, gates, final); tokens over the run.

    `labels` are training answers shown to the model, `verified_prompts` tasks that only the verifier needed.
    """

    seconds: dict[str, float]
    tokens_sampled: int
    tokens_computed: int
    tokens_trained: int
    peak_memory_bytes: int
    labels: int
    verified_prompts: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything the page shows.

    `decision` is the last stage's gate's, INCONCLUSIVE where that stage reached none; `reasons` say why.
    `openings` counts how often each domain's final set was opened in this run, `opened_by_others` how many other
    recipes, versions of the code or verbs had shown the same tasks to a model on this machine before. `not_run`
    maps a suite or guard to the reason why it was not run. `identity` sums up the proofs: how many, largest gap in
    nats, how many undetectable. `power` are lines printed before the run. `machine` are facts without names of hosts.
    """

    run_id: str
    name: str
    created_utc: str
    seed: int
    base_model: str
    base_digest: str
    code: str
    recipe_yaml: str
    decision: Decision
    reasons: tuple[str, ...]
    promoted_label: str
    promoted_path: str
    stages: tuple[StageEntry, ...]
    models: tuple[ModelEntry, ...]
    comparisons: tuple[LabelledComparison, ...]
    samples: tuple[Sample, ...]
    cost: Cost
    openings: dict[str, int]
    not_run: dict[str, str]
    identity: dict[str, float]
    undecided: dict[str, int]
    few_shot: dict[str, Any]
    pass_at_k: dict[str, float]
    power: tuple[str, ...]
    warnings: tuple[str, ...]
    machine: dict[str, Any]
    opened_by_others: dict[str, int] = field(default_factory=dict)
