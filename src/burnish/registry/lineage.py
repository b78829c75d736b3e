"""What was made from what.

A checkpoint names its parent by digest. Where several rows carry it (two runs can make the same weights), the
parent is the newest one registered before the child, of the child's own run if there is one; so no cycle can
arise, not even from a stage that changed nothing. Leaves out drawing.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from sqlalchemy import Connection, select

from burnish.core.types import Decision
from burnish.registry.promotion import live_digests
from burnish.registry.records import CheckpointRecord, LineageEntry, TreeNode
from burnish.registry.rows import checkpoint_record, decision_record, evaluation_record, run_record
from burnish.registry.schema import CHECKPOINTS, DECISIONS, EVALUATIONS, RUNS


def trace(connection: Connection, leaf: CheckpointRecord) -> list[LineageEntry]:
    """The way from the root to a checkpoint."""
    live = live_digests(connection)
    way: list[LineageEntry] = []
    here: CheckpointRecord | None = leaf
    while here is not None:
        way.append(_entry(connection, here, live))
        here = _parent(connection, here)
    return way[::-1]


def build_tree(connection: Connection) -> list[TreeNode]:
    """Every checkpoint below its parent; roots and children in the order of registration."""
    live = live_digests(connection)
    latest = {
        row.checkpoint_digest: Decision(row.decision)
        for row in connection.execute(select(DECISIONS).order_by(DECISIONS.c.id))
    }
    query = select(CHECKPOINTS, RUNS.c.folder).join(RUNS).order_by(CHECKPOINTS.c.id)
    records = [checkpoint_record(row, Path(row.folder)) for row in connection.execute(query)]
    newest: dict[tuple[str, str], int] = {}  # (digest, run id or '' for any) -> id, of the rows seen so far
    parents: dict[int, int | None] = {}
    for record in records:
        parent = record.ref.parent
        parents[record.id] = newest.get((parent, record.run_id), newest.get((parent, "")))
        newest[record.ref.digest, record.run_id] = newest[record.ref.digest, ""] = record.id
    children: dict[int | None, list[TreeNode]] = defaultdict(list)
    for record in reversed(records):  # children come after their parents
        digest = record.ref.digest
        node = TreeNode(record, latest.get(digest), live.get(digest, ()), tuple(children[record.id]))
        children[parents[record.id]].insert(0, node)
    return children[None]


def _parent(connection: Connection, child: CheckpointRecord) -> CheckpointRecord | None:
    earlier = (CHECKPOINTS.c.digest == child.ref.parent) & (CHECKPOINTS.c.id < child.id)
    query = select(CHECKPOINTS, RUNS.c.folder).join(RUNS).where(earlier)
    query = query.order_by((CHECKPOINTS.c.run_id == child.run_id).desc(), CHECKPOINTS.c.id.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else checkpoint_record(row, Path(row.folder))


def _entry(connection: Connection, here: CheckpointRecord, live: dict[str, tuple[str, ...]]) -> LineageEntry:
    digest = here.ref.digest
    run = connection.execute(select(RUNS).where(RUNS.c.run_id == here.run_id)).one()
    evaluations = select(EVALUATIONS).where(EVALUATIONS.c.checkpoint_digest == digest).order_by(EVALUATIONS.c.id)
    decisions = select(DECISIONS).where(DECISIONS.c.checkpoint_digest == digest).order_by(DECISIONS.c.id)
    return LineageEntry(
        checkpoint=here,
        run=run_record(run),
        evaluations=tuple(evaluation_record(row) for row in connection.execute(evaluations)),
        decisions=tuple(decision_record(row) for row in connection.execute(decisions)),
        live_in=live.get(digest, ()),
    )
