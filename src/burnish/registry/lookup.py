"""From what a person types to what the registry holds.

Leaves out searching by anything but ids and digests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, select

from burnish.core.errors import ConfigError, DataError
from burnish.core.types import CheckpointRef
from burnish.registry.schema import CHECKPOINTS, RUNS

_SHORTEST_PREFIX = 4


def resolve_digest(connection: Connection, path: Path, prefix: str) -> str:
    """The one registered digest that begins so; a whole digest is always its own.

    Raises: ConfigError where none or several do, with the candidates.
    """
    where = str(path)
    if len(prefix) < _SHORTEST_PREFIX:
        raise ConfigError(
            f"{prefix!r} is too short for a digest",
            where=where,
            fix=f"give {_SHORTEST_PREFIX} or more characters",
        )
    begins = func.substr(CHECKPOINTS.c.digest, 1, len(prefix)) == prefix
    query = select(CHECKPOINTS.c.digest).distinct().where(begins).order_by(CHECKPOINTS.c.digest)
    found = [str(digest) for digest in connection.execute(query).scalars()]
    if prefix in found:
        return prefix
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(digest[: len(prefix) + 8] for digest in found[:5])
        raise ConfigError(f"{prefix!r} begins {len(found)} digests: {shown}", where=where, fix="give more characters")
    raise ConfigError(f"no checkpoint {prefix!r} is registered", where=where, fix="list them with `burnish lineage`")


def run_row(connection: Connection, path: Path, run_id: str) -> Row[Any]:
    """The row of a run.

    Raises: ConfigError where it is not registered.
    """
    row = connection.execute(select(RUNS).where(RUNS.c.run_id == run_id)).one_or_none()
    if row is None:
        raise ConfigError(f"no run {run_id!r} is registered", where=str(path), fix="list them with `burnish runs`")
    return row


def require_parent(connection: Connection, path: Path, ref: CheckpointRef) -> None:
    """Checks that a checkpoint's parent is registered.

    Raises: DataError.
    """
    known = select(CHECKPOINTS.c.id).where(CHECKPOINTS.c.digest == ref.parent).limit(1)
    if ref.parent and connection.execute(known).first() is None:
        raise DataError(
            f"the parent {ref.parent[:12]} of {ref.stage}, step {ref.step} is not registered",
            where=str(path),
            fix="register it first; a resumed run needs the registry it began with (BURNISH_REGISTRY)",
        )
