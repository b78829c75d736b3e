"""What the registry answers with: one frozen record for each kind of row.

Leaves out how rows are stored (`schema`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from burnish.core.types import CheckpointRef, Decision


class RunStatus(StrEnum):
    """How a run stands. A killed run stays RUNNING here until it is resumed; its folder's lock tells."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class PromotionKind(StrEnum):
    """What made a checkpoint the live one."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run and what it was made from; `data_digests` by data set name."""

    run_id: str
    name: str
    folder: Path
    config_digest: str
    code_digest: str
    data_digests: dict[str, str]
    seed: int
    base_model: str
    started_utc: str
    finished_utc: str | None
    status: RunStatus
    reason: str
    deleted_utc: str | None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint of a run; `id` grows in the order of registration.

    `ref.path` is absolute for a folder, and verbatim where no files were registered (a base model by name).
    `files` maps relative paths to SHA-256. `deleted_utc` is set once `clean` took its files.
    """

    id: int
    ref: CheckpointRef
    run_id: str
    metrics: dict[str, float]
    files: dict[str, str]
    created_utc: str
    deleted_utc: str | None


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """A suite's results on a checkpoint."""

    id: int
    checkpoint_digest: str
    run_id: str
    suite: str
    split: str
    num_tasks: int
    num_undecided: int
    results: dict[str, Any]
    report: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A gate's answer about a checkpoint; `gate` is the whole decision as JSON."""

    id: int
    checkpoint_digest: str
    run_id: str
    decision: Decision
    reasons: tuple[str, ...]
    gate: dict[str, Any]
    created_utc: str


@dataclass(frozen=True, slots=True)
class PromotionRecord:
    """One change of the live checkpoint of a channel; `statement` says it in words, force included."""

    id: int
    channel: str
    kind: PromotionKind
    digest: str
    previous_digest: str
    by: str
    reason: str
    forced: bool
    statement: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """A checkpoint on the way from a root to a leaf, and what was found and decided about it."""

    checkpoint: CheckpointRecord
    run: RunRecord
    evaluations: tuple[EvaluationRecord, ...]
    decisions: tuple[DecisionRecord, ...]
    live_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A checkpoint and what was made from it. `decision`: the latest, None where no gate judged."""

    checkpoint: CheckpointRecord
    decision: Decision | None
    live_in: tuple[str, ...]
    children: tuple[TreeNode, ...]
