"""Which files may go: a plan first, deletion only when asked for.

Kept always: whatever an unfinished run holds that could go on (its resume reads every stage's weights), every
checkpoint that was ever promoted or whose gate said promote, and the last checkpoint of each run. The registry's
own rows are kept throughout; a cleaned checkpoint stays in its lineage. Leaves out files that no run registered.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, select, update

from burnish.core.errors import ResourceError
from burnish.core.types import Decision
from burnish.observe.disk import folder_bytes, writing
from burnish.observe.run_folder import RunFolder, hold, in_use, is_run_folder
from burnish.registry.promotion import history
from burnish.registry.records import CheckpointRecord, RunRecord, RunStatus
from burnish.registry.registry import Registry
from burnish.registry.rows import checkpoint_record, run_record
from burnish.registry.schema import CHECKPOINTS, DECISIONS, RUNS


@dataclass(frozen=True, slots=True)
class CleanItem:
    """One folder that may go or stays, and why. A whole run folder has no `digest` and no ids."""

    kind: Literal["checkpoint", "run"]
    path: Path
    run_id: str
    digest: str
    num_bytes: int
    why: str
    checkpoint_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What may go and what stays, by run, newest run first."""

    delete: tuple[CleanItem, ...]
    keep: tuple[CleanItem, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that deleting frees."""
        return sum(item.num_bytes for item in self.delete)


def clean(registry: Registry, *, apply: bool = False) -> CleanPlan:
    """What may be deleted; with `apply` it is, and the plan says what was.

    A crash half-way leaves files that the next call lists again. While it deletes, no run of which something goes
    can be resumed; one that was resumed meanwhile loses nothing.

    Raises: ResourceError where a folder cannot be deleted.
    """
    with registry.transaction(write=False) as connection:
        plan = _plan(connection, frozenset())
    if not apply:
        return plan
    with ExitStack() as locks:
        held = set()
        for folder in {
            run_id: registry.run(run_id).folder for run_id in {item.run_id for item in plan.delete}
        }.values():
            with suppress(ResourceError):  # in use by now: the second plan keeps all of it
                locks.callback(hold(folder).release)
                held.add(folder)
        with registry.transaction(write=True) as connection:
            plan = _plan(connection, held)
            _mark(connection, plan)
        for item in plan.delete:
            with writing(item.path):
                shutil.rmtree(item.path)
    return plan


def _plan(connection: Connection, held: Collection[Path]) -> CleanPlan:
    """What may go; `held`: folders whose lock the caller holds, so that no run is going on in them."""
    promoted = {change.digest: f"promoted in channel {change.channel!r}" for change in history(connection, None)}
    decisions = connection.execute(select(DECISIONS).order_by(DECISIONS.c.id))
    latest = {row.checkpoint_digest: row.decision for row in decisions}
    reasons = {d: "its gate said promote" for d, answer in latest.items() if answer == Decision.PROMOTE.value}
    delete: list[CleanItem] = []
    keep: list[CleanItem] = []
    for row in connection.execute(select(RUNS).order_by(RUNS.c.started_utc.desc(), RUNS.c.run_id)):
        run = run_record(row)
        if run.folder.is_dir():
            going_on = run.folder not in held and in_use(run.folder)
            _plan_run(connection, run, reasons | promoted, going_on, delete, keep)
    return CleanPlan(tuple(delete), tuple(keep))


def _plan_run(
    connection: Connection,
    run: RunRecord,
    reasons: dict[str, str],
    going_on: bool,
    delete: list[CleanItem],
    keep: list[CleanItem],
) -> None:
    query = select(CHECKPOINTS).where(CHECKPOINTS.c.run_id == run.run_id).order_by(CHECKPOINTS.c.id)
    records = [checkpoint_record(row, run.folder) for row in connection.execute(query)]
    present = [record for record in records if record.files and Path(record.ref.path).is_dir()]
    whole = _why_kept_whole(run, present, going_on)
    item = CleanItem("run", run.folder, run.run_id, "", folder_bytes(run.folder), whole or "nothing to go on from")
    (keep if whole else delete).append(item)
    last = max((r.id for r in present if r.deleted_utc is None), default=None)
    # Two rows can share a folder, where a resumed run wrote a step again: it stays if either must.
    by_path: dict[Path, list[CheckpointRecord]] = defaultdict(list)
    for record in present:
        by_path[Path(record.ref.path)].append(record)
    for path, sharing in by_path.items():
        why = next(filter(None, (_why_kept(r, run, reasons, going_on, r.id == last) for r in sharing)), "")
        ids, digest = tuple(r.id for r in sharing), sharing[-1].ref.digest
        num_bytes = folder_bytes(path)
        item = CleanItem("checkpoint", path, run.run_id, digest, num_bytes, why or "superseded", ids)
        (keep if why else delete).append(item)


def _why_kept(record: CheckpointRecord, run: RunRecord, reasons: dict[str, str], going_on: bool, is_last: bool) -> str:
    path = Path(record.ref.path)
    if going_on:
        return "its run is going on"
    if _can_go_on(run):
        return "its run is not finished"
    if record.ref.digest in reasons:
        return reasons[record.ref.digest]
    if is_last:
        return "the last of its run"
    if path.is_symlink() or run.folder.resolve() not in path.resolve().parents:
        return "not inside its run's folder"
    return ""


def _can_go_on(run: RunRecord) -> bool:
    """Whether an unfinished run left something to resume: what it finished, or the state of a stage's training."""
    left = (run.folder / "state.json").is_file() or any(run.folder.glob("checkpoints/*/state/*"))
    return run.status is not RunStatus.FINISHED and left


def _why_kept_whole(run: RunRecord, present: list[CheckpointRecord], going_on: bool) -> str:
    if not is_run_folder(run.folder) or run.folder.is_symlink():
        return "not marked as a run"
    if going_on:
        return "the run is going on"
    if run.status is RunStatus.FINISHED:
        return "holds the record of a finished run"
    if _can_go_on(run):
        return "can be resumed; where it need not, remove its folder"
    if present:
        return "holds checkpoints"
    try:
        marked = RunFolder.open(run.folder).run_id
    except ResourceError:
        return "its marker cannot be read"
    return "" if marked == run.run_id else f"now holds run {marked}"


def _mark(connection: Connection, plan: CleanPlan) -> None:
    utc = datetime.now(UTC).isoformat(timespec="microseconds")
    for item in plan.delete:
        if item.kind == "run":
            connection.execute(update(RUNS).where(RUNS.c.run_id == item.run_id).values(deleted_utc=utc))
        else:
            unmarked = CHECKPOINTS.c.id.in_(item.checkpoint_ids) & CHECKPOINTS.c.deleted_utc.is_(None)
            connection.execute(update(CHECKPOINTS).where(unmarked).values(deleted_utc=utc))
