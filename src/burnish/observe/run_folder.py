"""The folder of one run, and the lock that keeps a second run out of it.

    config.yaml       the resolved config, each value with where it came from; itself a recipe
    run.json          what marks the folder as a run: id, name, origins of the values
    events.jsonl      everything that happened
    checkpoints/  trajectories/  evals/  report/

Leaves out what a checkpoint holds (`train`) and which one is live (`registry`).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from burnish.core.codec import dumps, loads
from burnish.core.errors import DataError, ResourceError
from burnish.observe.disk import atomic_write, writing
from burnish.observe.event_log import EventLog
from burnish.observe.events import LogContents, read_events
from burnish.observe.redaction import redact_config, secret_values

_MARKER = "run.json"
_LOCK = ".lock"
_OWNER = ".lock-owner"
_FOLDERS = ("checkpoints", "trajectories", "evals", "report")


@dataclass(frozen=True, slots=True)
class RunMarker:
    """What `run.json` says. `origins` maps dotted config keys to where each value came from."""

    run_id: str
    name: str
    created_utc: str
    origins: dict[str, str] = field(default_factory=dict)


class RunFolder:
    """A run folder, open for writing (`create`, `resume`) or for reading (`open`).

    Writing holds a lock that the system releases when the process ends, however it ends. Close it, or use
    it in a `with` statement.
    """

    def __init__(self, path: Path, marker: RunMarker, lock: FileLock | None) -> None:
        self.path = path
        self.marker = marker
        self._lock = lock
        self._log = EventLog(path / "events.jsonl") if lock is not None else None

    @classmethod
    def create(
        cls,
        path: Path,
        resolved_config: Mapping[str, Any],
        *,
        name: str = "",
        origins: Mapping[str, str] | None = None,
        run_id: str | None = None,
    ) -> RunFolder:
        """A new run in a folder that is absent or empty; secrets in the config are replaced first.

        Raises: ResourceError where the folder cannot be written, holds anything, or is another run's.
        """
        path = Path(path).absolute()
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            _require_empty(path)
            lock = _take_lock(path)
        try:
            _require_empty(path)  # again: another run may have come first
            marker = RunMarker(run_id or new_run_id(), name, _utc_now(), dict(origins or {}))
            config = redact_config(resolved_config, secret_values())
            with writing(path):
                for folder in _FOLDERS:
                    (path / folder).mkdir()
            atomic_write(path / "config.yaml", _to_yaml(config, marker.origins))
            atomic_write(path / _MARKER, (dumps(marker) + "\n").encode("utf-8"))
            return cls(path, marker, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, to read; takes no lock, so the run may be going on.

        Raises: ResourceError where the folder is no run; DataError where its marker is damaged.
        """
        path = Path(path).absolute()
        return cls(path, _read_marker(path), None)

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """An existing run, to go on with.

        Raises: ResourceError where the folder is no run, is in use, or cannot be written; IntegrityError
        where its event log is damaged.
        """
        path = Path(path).absolute()
        marker = _read_marker(path)
        with writing(path):
            lock = _take_lock(path)
        try:
            return cls(path, marker, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def run_id(self) -> str:
        """The run's id, unique across folders."""
        return self.marker.run_id

    @property
    def name(self) -> str:
        """The run's name, as its recipe gave it."""
        return self.marker.name

    @property
    def origins(self) -> dict[str, str]:
        """Dotted config key -> where its value came from."""
        return self.marker.origins

    @property
    def events(self) -> EventLog:
        """The log to append to.

        Raises: ResourceError where the folder was opened for reading.
        """
        if self._log is None:
            raise ResourceError(
                "the run folder is open for reading",
                where=str(self.path),
                fix="open it with RunFolder.resume",
            )
        return self._log

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def trajectories(self) -> Path:
        """Where sampled trajectories lie (see `trajectories`)."""
        return self.path / "trajectories"

    @property
    def evals(self) -> Path:
        """Where evaluation results lie."""
        return self.path / "evals"

    @property
    def report(self) -> Path:
        """Where the report lies."""
        return self.path / "report"

    def config(self) -> dict[str, Any]:
        """The resolved config as written, secrets replaced.

        Raises: DataError where config.yaml is missing or is not YAML.
        """
        path = self.path / "config.yaml"
        try:
            data = YAML(typ="safe", pure=True).load(path.read_bytes())
        except (OSError, YAMLError) as error:
            raise DataError(
                f"the run's config cannot be read: {type(error).__name__}",
                where=str(path),
                fix="start a new run",
            ) from error
        if not isinstance(data, dict):
            raise DataError("the run's config is no mapping", where=str(path), fix="start a new run")
        return data

    def read_events(self) -> LogContents:
        """Everything in the event log so far (see `events.read_events`)."""
        return read_events(self.path / "events.jsonl")

    def close(self) -> None:
        """Closes the log and gives the lock back; closing twice is harmless."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def new_run_id() -> str:
    """A sortable id: UTC time and six random hex digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def is_run_folder(path: Path) -> bool:
    """Whether a folder carries the mark of a run."""
    return (path / _MARKER).is_file()


def in_use(path: Path) -> bool:
    """Whether some process is running a run in this folder now; creates nothing."""
    try:
        handle = os.open(path / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as filelock does; a read-only folder will do
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def hold(path: Path) -> FileLock:
    """Takes a run folder's lock, as a run does, without opening the run: nobody resumes it until it is released.

    Raises: ResourceError where a process is running a run in it, or it cannot be written.
    """
    with writing(path):
        return _take_lock(path)


def _require_empty(path: Path) -> None:
    found = sorted(entry.name for entry in path.iterdir() if entry.name not in (_LOCK, _OWNER))
    if _MARKER in found:
        raise ResourceError(
            "the folder already holds a run",
            where=str(path),
            fix="continue it with --resume, or choose another --out",
        )
    if found:
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise ResourceError(
            f"the folder is not empty: {shown}",
            where=str(path),
            fix="choose an empty or a new folder with --out",
        )


def _take_lock(path: Path) -> FileLock:
    # Half a second outlasts whoever only looks whether the folder is in use.
    lock = FileLock(str(path / _LOCK), timeout=0.5, thread_local=False)
    try:
        lock.acquire(poll_interval=0.05)
    except Timeout:
        owner = _owner_text(path)
        raise ResourceError(
            f"another run is using the folder{owner}",
            where=str(path),
            fix="wait for it to end, or choose another folder with --out",
        ) from None
    owner_now = {"pid": os.getpid(), "host": socket.gethostname(), "since_utc": _utc_now()}
    (path / _OWNER).write_text(json.dumps(owner_now), encoding="utf-8")
    return lock


def _owner_text(path: Path) -> str:
    try:
        owner = json.loads((path / _OWNER).read_text(encoding="utf-8"))
        return f": process {owner['pid']} on {owner['host']} since {owner['since_utc']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # the owner has the lock but has not written its name yet


def _read_marker(path: Path) -> RunMarker:
    marker = path / _MARKER
    try:
        text = marker.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResourceError(
            f"not a run folder: {_MARKER} cannot be read ({type(error).__name__})",
            where=str(path),
            fix="give the folder of a run, as `burnish runs` lists them",
        ) from None
    return loads(RunMarker, text, where=str(marker))


def _to_yaml(config: Mapping[str, Any], origins: Mapping[str, str]) -> bytes:
    yaml = YAML(pure=True)
    yaml.width = 10_000  # no folding: a comment belongs to the line of its value
    stream = io.BytesIO()
    yaml.dump(_commented(config, "", origins), stream)
    return stream.getvalue()


def _commented(value: Any, key: str, origins: Mapping[str, str]) -> Any:
    node: CommentedMap | CommentedSeq
    if isinstance(value, Mapping):
        node = CommentedMap(value)
    elif isinstance(value, (list, tuple)):
        node = CommentedSeq(value)
    elif isinstance(value, str) and not value.isprintable():
        return DoubleQuotedScalarString(value)  # left plain, some line breaks come back as spaces
    else:
        return value
    for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        child = f"{key}.{name}" if key else str(name)
        node[name] = _commented(item, child, origins)
        is_leaf = not (isinstance(item, (Mapping, list, tuple)) and item)
        if is_leaf and child in origins:
            node.yaml_add_eol_comment("# " + " ".join(origins[child].split()), name)
    return node


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
