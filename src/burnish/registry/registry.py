"""The registry: what was made from what, what was decided about it, and which checkpoint is live.

    registry = Registry()
    registry.add_run(...); registry.add_checkpoint(ref, run_id)
    registry.record_decision(ref.digest, gate, Decision.PROMOTE, reasons)
    registry.promote(ref.digest, by="run 20261130-...", reason="gate promoted")

History is only ever added to. Digests may be shortened to a prefix of four or more characters where that is
unique. Safe for several processes at once. Leaves out deciding (`evals.gate`) and deleting (`cleaning`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, func, insert, select, update

from burnish.core.errors import ConfigError, DataError
from burnish.core.types import CheckpointRef, Decision
from burnish.registry import promotion
from burnish.registry.files import FileCheck, check_files, hash_files
from burnish.registry.lineage import build_tree, trace
from burnish.registry.lookup import require_parent, resolve_digest, run_row
from burnish.registry.records import (
    CheckpointRecord,
    DecisionRecord,
    EvaluationRecord,
    LineageEntry,
    PromotionRecord,
    RunRecord,
    RunStatus,
    TreeNode,
)
from burnish.registry.rows import (
    checkpoint_of,
    checkpoint_record,
    decision_record,
    evaluation_record,
    run_record,
)
from burnish.registry.schema import (
    CHECKPOINTS,
    DECISIONS,
    EVALUATIONS,
    OPENINGS,
    RUNS,
    database_path,
    default_path,
    open_database,
    transaction,
)


class Registry:
    """The registry in one SQLite file, `default_path()` where none is given.

    Raises: see `schema.open_database`.
    """

    def __init__(self, location: str | Path | None = None) -> None:
        self.path = database_path(default_path() if location is None else location)
        self._engine = open_database(self.path)

    def transaction(self, *, write: bool) -> AbstractContextManager[Connection]:
        """One transaction on the tables of `schema`, for what this class does not offer."""
        return transaction(self._engine, self.path, write=write)

    # --- writing down ---------------------------------------------------------------------------------

    def add_run(
        self,
        run_id: str,
        *,
        name: str,
        folder: Path,
        config_digest: str,
        code_digest: str,
        data_digests: Mapping[str, str],
        seed: int,
        base_model: str,
    ) -> RunRecord:
        """Registers a run as running. A resumed run says the same again, from wherever its folder now lies.

        Raises: ConfigError where this id belongs to a run with another config, or with other data.
        """
        moving = {"folder": str(Path(folder).absolute()), "code_digest": code_digest}
        moving |= {"status": RunStatus.RUNNING.value, "reason": ""}
        with self.transaction(write=True) as connection:
            known = connection.execute(select(RUNS).where(RUNS.c.run_id == run_id)).one_or_none()
            if known is None:
                fixed = {"run_id": run_id, "name": name, "config_digest": config_digest, "seed": seed}
                fixed |= {"base_model": base_model, "started_utc": _utc_now()}
                connection.execute(insert(RUNS).values(**fixed, **moving, data_digests=dict(data_digests)))
            elif known.config_digest != config_digest:
                raise ConfigError(
                    f"run {run_id} is registered with another config ({known.config_digest[:12]})",
                    where=str(self.path),
                    fix="start a new run; a config does not change between start and resume",
                )
            elif changed := sorted(n for n, d in data_digests.items() if known.data_digests.get(n) != d):
                raise ConfigError(
                    f"run {run_id} was begun with other {', '.join(changed)} tasks: its files, or the code that draws "
                    "them, changed since",
                    where=str(folder),
                    fix="put the old data or code back and resume, or start a new run",
                )
            else:
                connection.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(**moving, finished_utc=None))
            return run_record(run_row(connection, self.path, run_id))

    def finish_run(self, run_id: str, status: RunStatus, reason: str = "") -> None:
        """Writes down how a run ended.

        Raises: ConfigError where the run is not registered.
        """
        with self.transaction(write=True) as connection:
            run_row(connection, self.path, run_id)
            values = {"status": status.value, "reason": reason, "finished_utc": _utc_now()}
            connection.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(**values))

    def add_checkpoint(
        self,
        ref: CheckpointRef,
        run_id: str,
        metrics: Mapping[str, float] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> CheckpointRecord:
        """Registers a checkpoint that is whole on disk; registering it again changes nothing.

        A relative `ref.path` counts from the run's folder. `files` maps relative paths to SHA-256; left out,
        the folder is hashed here; empty, there is no folder (a base model by name). A parent comes first.

        Raises: ConfigError for an unknown run; DataError for an unknown parent; IntegrityError where there
        are no files to hash.
        """
        with self.transaction(write=False) as connection:
            folder = Path(run_row(connection, self.path, run_id).folder)
        if files is None:
            files = hash_files(folder / ref.path)
        path = ref.path
        if files and (folder / path).is_relative_to(folder):
            path = str((folder / path).relative_to(folder))
        elif files:
            path = str(Path(path).absolute())
        same = (CHECKPOINTS.c.run_id == run_id) & (CHECKPOINTS.c.digest == ref.digest)
        same &= (CHECKPOINTS.c.stage == ref.stage) & (CHECKPOINTS.c.step == ref.step)
        values = {"digest": ref.digest, "run_id": run_id, "path": path, "stage": ref.stage, "step": ref.step}
        values |= {"parent": ref.parent, "files": dict(files), "created_utc": _utc_now()}
        with self.transaction(write=True) as connection:
            row = connection.execute(select(CHECKPOINTS).where(same)).one_or_none()
            if row is None:
                require_parent(connection, self.path, ref)
                plain = _plain(dict(metrics or {}), f"checkpoint {ref.digest[:12]}")
                connection.execute(insert(CHECKPOINTS).values(**values, metrics=plain))
                row = connection.execute(select(CHECKPOINTS).where(same)).one()
            return checkpoint_record(row, folder)

    def add_evaluation(
        self,
        digest: str,
        *,
        suite: str,
        split: str,
        num_tasks: int,
        num_undecided: int,
        results: Mapping[str, Any],
        report: str = "",
        run_id: str = "",
    ) -> EvaluationRecord:
        """Registers what a suite found about a checkpoint; the same once more (a report drawn again) adds nothing.

        `run_id`: the run that looked, where it is not the one that made the checkpoint.

        Raises: ConfigError for an unknown digest; DataError where the results hold a NaN or no plain JSON.
        """
        plain = _plain(dict(results), f"evaluation {suite}")
        values = {"suite": suite, "split": split, "num_tasks": num_tasks, "num_undecided": num_undecided}
        values |= {"run_id": run_id} if run_id else {}
        same = [EVALUATIONS.c[name] == value for name, value in (*values.items(), ("report", report))]
        with self.transaction(write=True) as connection:
            full = resolve_digest(connection, self.path, digest)
            known = connection.execute(select(EVALUATIONS).where(EVALUATIONS.c.checkpoint_digest == full, *same)).all()
            row = next((row for row in known if row.results == plain), None)
            if row is None:
                row = self._insert_about(connection, EVALUATIONS, full, **values, results=plain, report=report)
            return evaluation_record(row)

    def open_final_set(self, set_digest: str, *, domain: str, by: str, models: Sequence[str]) -> int:
        """Writes down that the models (by digest) are shown a sealed set; returns how many others did so before.

        `by`: who looks, as the digests of a recipe without its seed and of the code, or a verb and its models.
        Looking again under the same name is nobody else's look: what makes numbers less blind is that settings
        or code changed after them.
        """
        mine = {"set_digest": set_digest, "domain": domain, "by": by, "models": sorted(models)}
        with self.transaction(write=True) as connection:
            seen = connection.execute(select(OPENINGS).where(OPENINGS.c.set_digest == set_digest)).all()
            if not any(row.by == by and row.models == mine["models"] for row in seen):
                connection.execute(insert(OPENINGS).values(**mine, created_utc=_utc_now()))
            return len({row.by for row in seen} - {by})

    def record_decision(
        self, digest: str, gate: Mapping[str, Any], decision: Decision, reasons: Sequence[str]
    ) -> DecisionRecord:
        """Writes down a gate's answer; the latest one about a checkpoint counts.

        Raises: ConfigError for an unknown digest; DataError where `gate` holds a NaN or no plain JSON.
        """
        plain = _plain(dict(gate), "gate decision")
        with self.transaction(write=True) as connection:
            values = {"decision": decision.value, "reasons": list(reasons), "gate": plain}
            return decision_record(self._insert_about(connection, DECISIONS, digest, **values))

    def _insert_about(self, connection: Connection, table: Table, prefix: str, **values: Any) -> Row[Any]:
        digest = resolve_digest(connection, self.path, prefix)
        run_id = checkpoint_of(connection, digest).run_id
        known = {"checkpoint_digest": digest, "run_id": run_id, "created_utc": _utc_now()}
        statement = insert(table).values(**(known | values)).returning(*table.c)
        return connection.execute(statement).one()

    # --- which is live --------------------------------------------------------------------------------

    def promote(
        self,
        digest: str,
        *,
        by: str,
        reason: str,
        channel: str = "default",
        unpromoted_ok: bool = False,
    ) -> PromotionRecord:
        """Makes a checkpoint the live one of a channel; where it is already, nothing is added.

        Only one whose latest gate said PROMOTE, unless `unpromoted_ok`, with a reason; the record then says
        so aloud.

        Raises: GateRefusedError; ConfigError for an unknown digest or force without a reason; IntegrityError
        where its files are not those once registered.
        """
        full = self.resolve(digest)
        with self.transaction(write=False) as connection:
            promotion.require_kept(connection, full, channel)
        self.verify_files(full).require_ok()
        with self.transaction(write=True) as connection:
            return promotion.promote(connection, full, channel, by, reason, unpromoted_ok, _utc_now())

    def rollback(self, *, by: str, reason: str, channel: str = "default", to: str | None = None) -> PromotionRecord:
        """Makes the promotion before the live one live again, or the earlier one that `to` names.

        Rolling back twice goes back two promotions, not forth again.

        Raises: ConfigError where there is nothing to go back to; IntegrityError where the files of the target
        are not those once registered.
        """
        wanted = None if to is None else self.resolve(to)
        with self.transaction(write=False) as connection:
            target = promotion.rollback_target(connection, channel, wanted)
        self.verify_files(target).require_ok()
        with self.transaction(write=True) as connection:
            return promotion.rollback(connection, channel, target, by, reason, _utc_now())

    def current(self, channel: str = "default") -> PromotionRecord | None:
        """What is live in a channel, or None."""
        with self.transaction(write=False) as connection:
            return promotion.current(connection, channel)

    def promotions(self, channel: str | None = None) -> list[PromotionRecord]:
        """Every promotion and rollback, oldest first, of one channel or of all."""
        with self.transaction(write=False) as connection:
            return promotion.history(connection, channel)

    # --- asking ---------------------------------------------------------------------------------------

    def resolve(self, prefix: str) -> str:
        """The one registered digest that begins so.

        Raises: ConfigError where none or several do, with the candidates.
        """
        with self.transaction(write=False) as connection:
            return resolve_digest(connection, self.path, prefix)

    def checkpoint(self, digest: str) -> CheckpointRecord:
        """The newest checkpoint with this digest whose files are kept.

        Raises: ConfigError for an unknown digest.
        """
        with self.transaction(write=False) as connection:
            return checkpoint_of(connection, resolve_digest(connection, self.path, digest))

    def checkpoints(self, run_id: str) -> list[CheckpointRecord]:
        """The checkpoints of a run, in order.

        Raises: ConfigError where the run is not registered.
        """
        with self.transaction(write=False) as connection:
            folder = Path(run_row(connection, self.path, run_id).folder)
            query = select(CHECKPOINTS).where(CHECKPOINTS.c.run_id == run_id).order_by(CHECKPOINTS.c.id)
            return [checkpoint_record(row, folder) for row in connection.execute(query)]

    def run(self, run_id: str) -> RunRecord:
        """One run.

        Raises: ConfigError where it is not registered.
        """
        with self.transaction(write=False) as connection:
            return run_record(run_row(connection, self.path, run_id))

    def code_of(self, run_id: str) -> str:
        """The code digest that a run was last worked on with; "" for a run that is not registered."""
        with self.transaction(write=False) as connection:
            found = connection.execute(select(RUNS.c.code_digest).where(RUNS.c.run_id == run_id)).scalar()
            return str(found or "")

    def runs(
        self, *, name: str | None = None, status: RunStatus | None = None, base_model: str | None = None
    ) -> list[RunRecord]:
        """Runs, newest first; `name` matches any part of a run's name."""
        query = select(RUNS).order_by(RUNS.c.started_utc.desc(), RUNS.c.run_id.desc())
        if name is not None:
            query = query.where(func.instr(RUNS.c.name, name) > 0)
        if status is not None:
            query = query.where(RUNS.c.status == status.value)
        if base_model is not None:
            query = query.where(RUNS.c.base_model == base_model)
        with self.transaction(write=False) as connection:
            return [run_record(row) for row in connection.execute(query)]

    def lineage(self, digest: str) -> list[LineageEntry]:
        """The checkpoints from the root to this one, each with evaluations, decisions and where it is live.

        Raises: ConfigError for an unknown digest.
        """
        with self.transaction(write=False) as connection:
            return trace(connection, checkpoint_of(connection, resolve_digest(connection, self.path, digest)))

    def tree(self) -> list[TreeNode]:
        """Every checkpoint, as trees of what was made from what."""
        with self.transaction(write=False) as connection:
            return build_tree(connection)

    def verify_files(self, digest: str) -> FileCheck:
        """Compares a checkpoint's files with the digests that were registered."""
        record = self.checkpoint(digest)
        return check_files(Path(record.ref.path), record.files)


def _plain(data: dict[str, Any], what: str) -> dict[str, Any]:
    try:
        text = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"not plain JSON: {error}", where=what, fix="give finite numbers, strings and lists") from None
    plain: dict[str, Any] = json.loads(text)
    return plain


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
