"""Rows of the database as records.

Leaves out writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, select

from burnish.core.types import CheckpointRef, Decision
from burnish.registry.records import (
    CheckpointRecord,
    DecisionRecord,
    EvaluationRecord,
    PromotionKind,
    PromotionRecord,
    RunRecord,
    RunStatus,
)
from burnish.registry.schema import CHECKPOINTS, RUNS


def run_record(row: Row[Any]) -> RunRecord:
    """A row of `runs`."""
    values = dict(row._mapping)
    return RunRecord(**{**values, "folder": Path(row.folder), "status": RunStatus(row.status)})


def checkpoint_record(row: Row[Any], run_folder: Path) -> CheckpointRecord:
    """A row of `checkpoints`, with the path as it is now that the run's folder lies at `run_folder`."""
    path = str(run_folder / row.path) if row.files else row.path
    ref = CheckpointRef(path, row.digest, row.stage, row.step, row.parent)
    return CheckpointRecord(row.id, ref, row.run_id, row.metrics, row.files, row.created_utc, row.deleted_utc)


def evaluation_record(row: Row[Any]) -> EvaluationRecord:
    """A row of `evaluations`."""
    return EvaluationRecord(**row._mapping)


def decision_record(row: Row[Any]) -> DecisionRecord:
    """A row of `decisions`."""
    values = dict(row._mapping)
    return DecisionRecord(**{**values, "decision": Decision(row.decision), "reasons": tuple(row.reasons)})


def promotion_record(row: Row[Any]) -> PromotionRecord:
    """A row of `promotions`."""
    return PromotionRecord(**{**row._mapping, "kind": PromotionKind(row.kind)})


def checkpoint_of(connection: Connection, digest: str) -> CheckpointRecord:
    """The newest checkpoint with this very digest, those with files before those without."""
    query = select(CHECKPOINTS, RUNS.c.folder).join(RUNS).where(CHECKPOINTS.c.digest == digest)
    newest = query.order_by(CHECKPOINTS.c.deleted_utc.is_not(None), CHECKPOINTS.c.id.desc()).limit(1)
    row = connection.execute(newest).one()
    return checkpoint_record(row, Path(row.folder))
