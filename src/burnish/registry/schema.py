"""The tables, and opening a database so that several processes may share it.

SQLite in write-ahead mode: readers never wait, a writer takes the write lock when its transaction begins and
others wait for it. A database that an older Burnish made is migrated forward when it is opened. Leaves out
servers (PostgreSQL), and folders shared over a network, where SQLite's locks cannot be relied on.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from burnish.core.errors import ConfigError, IntegrityError, ResourceError
from burnish.observe.disk import writing

SCHEMA_VERSION = 2

_BUSY_S = 30.0  # writes take milliseconds; this is for a machine that swaps
_OPTION = "burnish_begin"

METADATA = MetaData()

META = Table("meta", METADATA, Column("key", String, primary_key=True), Column("value", String, nullable=False))

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("folder", String, nullable=False),
    Column("config_digest", String, nullable=False),
    Column("code_digest", String, nullable=False),
    Column("data_digests", JSON, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("base_model", String, nullable=False),
    Column("started_utc", String, nullable=False),
    Column("finished_utc", String),
    Column("status", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("deleted_utc", String),
)

CHECKPOINTS = Table(
    "checkpoints",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", String, nullable=False, index=True),
    Column("run_id", ForeignKey("runs.run_id"), nullable=False),
    Column("path", String, nullable=False),  # relative to the run's folder where it lies in it
    Column("stage", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("parent", String, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("files", JSON, nullable=False),
    Column("created_utc", String, nullable=False),
    Column("deleted_utc", String),
    # Two runs can make the same weights; one run registers a checkpoint once, however often it is resumed.
    UniqueConstraint("run_id", "digest", "stage", "step"),
    sqlite_autoincrement=True,
)

EVALUATIONS = Table(
    "evaluations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("checkpoint_digest", String, nullable=False, index=True),
    Column("run_id", String, nullable=False),
    Column("suite", String, nullable=False),
    Column("split", String, nullable=False),
    Column("num_tasks", Integer, nullable=False),
    Column("num_undecided", Integer, nullable=False),
    Column("results", JSON, nullable=False),
    Column("report", String, nullable=False),
    Column("created_utc", String, nullable=False),
    sqlite_autoincrement=True,
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("checkpoint_digest", String, nullable=False, index=True),
    Column("run_id", String, nullable=False),
    Column("decision", String, nullable=False),
    Column("reasons", JSON, nullable=False),
    Column("gate", JSON, nullable=False),
    Column("created_utc", String, nullable=False),
    sqlite_autoincrement=True,
)

PROMOTIONS = Table(
    "promotions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("channel", String, nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("previous_digest", String, nullable=False),
    Column("by", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("forced", Boolean, nullable=False),
    Column("statement", String, nullable=False),
    Column("created_utc", String, nullable=False),
    sqlite_autoincrement=True,
)

OPENINGS = Table(
    "final_openings",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("set_digest", String, nullable=False, index=True),
    Column("domain", String, nullable=False),
    Column("by", String, nullable=False),
    Column("models", JSON, nullable=False),
    Column("created_utc", String, nullable=False),
    sqlite_autoincrement=True,
)


MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: OPENINGS.create}
"""From version -> what turns its tables into those of the next version."""


def default_path() -> Path:
    """`BURNISH_REGISTRY` where set, else `~/.local/share/burnish/registry.sqlite`."""
    chosen = os.environ.get("BURNISH_REGISTRY")
    return Path(chosen) if chosen else Path.home() / ".local/share/burnish/registry.sqlite"


def database_path(location: str | Path) -> Path:
    """The file behind a path or an `sqlite:///` URL.

    Raises: ConfigError for a URL of another kind.
    """
    if isinstance(location, Path) or "://" not in location:
        return Path(location).expanduser().absolute()
    fix = "give a path, or sqlite:///PATH"
    try:
        url = make_url(location)
    except ArgumentError:
        raise ConfigError("the registry's address is no URL", where="registry", fix=fix) from None
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        shown = url.render_as_string(hide_password=True)
        raise ConfigError(f"a registry lives in an SQLite file, not in {shown}", where="registry", fix=fix)
    return Path(str(url.database)).absolute()


def open_database(path: Path) -> Engine:
    """An engine on the registry in a file, which is made or migrated where needed.

    Raises: ResourceError where the file cannot be written; IntegrityError where it is no SQLite database;
    ConfigError where it is another program's, or a newer Burnish's.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    # Switching to write-ahead mode is the one step in which SQLite does not wait for others.
    with writing(path), FileLock(f"{path}.lock", timeout=_BUSY_S), database_errors(path):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        with transaction(engine, path, write=True) as connection:
            _make_or_migrate(connection, path)
    return engine


@contextmanager
def transaction(engine: Engine, path: Path, *, write: bool) -> Iterator[Connection]:
    """One transaction: all of it or nothing. A write takes the lock at once, so what it reads stays true.

    Raises: ResourceError, IntegrityError as `database_errors` says.
    """
    with database_errors(path), engine.connect() as connection:
        connection = connection.execution_options(**{_OPTION: "BEGIN IMMEDIATE" if write else "BEGIN"})
        with connection.begin():
            yield connection


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turns the database's own errors into ours; what is left is a bug and passes through."""
    try:
        yield
    except DBAPIError as error:
        message = str(error.orig)
        where = str(path)
        if "locked" in message or "busy" in message:
            raise ResourceError(
                f"another process held the registry for more than {_BUSY_S:.0f} s",
                where=where,
                fix="try again; if it stays, look for a stopped burnish process",
            ) from error
        if "not a database" in message or "malformed" in message:
            raise IntegrityError(
                f"the registry is damaged: {message}", where=where, fix="restore the file from a copy"
            ) from error
        if any(word in message for word in ("readonly", "unable to open", "disk is full", "disk I/O")):
            raise ResourceError(
                f"cannot write the registry: {message}",
                where=where,
                fix="set BURNISH_REGISTRY to a file that can be written",
            ) from error
        raise


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions late and without the write lock
    cursor: sqlite3.Cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=FULL")  # a promotion survives a power cut; writes here are few
    cursor.close()


def _on_begin(connection: Connection) -> None:
    statement = connection.get_execution_options().get(_OPTION)
    if statement:
        connection.exec_driver_sql(statement)


def _make_or_migrate(connection: Connection, path: Path) -> None:
    tables = set(inspect(connection).get_table_names())
    if "meta" not in tables:
        if tables:
            raise ConfigError(
                f"the database is not a Burnish registry: it holds {', '.join(sorted(tables)[:3])}",
                where=str(path),
                fix="set BURNISH_REGISTRY to another file",
            )
        METADATA.create_all(connection)
        connection.execute(META.insert().values(key="schema_version", value=str(SCHEMA_VERSION)))
        return
    version = int(connection.execute(text("SELECT value FROM meta WHERE key = 'schema_version'")).scalar_one())
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"the registry has version {version}; this Burnish reads up to {SCHEMA_VERSION}",
            where=str(path),
            fix="update Burnish, or set BURNISH_REGISTRY to another file",
        )
    while version < SCHEMA_VERSION:
        MIGRATIONS[version](connection)
        version += 1
        connection.execute(META.update().where(META.c.key == "schema_version").values(value=str(version)))
