"""Appending to `events.jsonl`, the truth about a run.

Leaves out locking: one writer a log, which the lock of its run folder sees to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from burnish.core.errors import NonFiniteError, RunError
from burnish.observe.disk import fsync_folder, writing
from burnish.observe.events import (
    Event,
    EventRecord,
    LogContents,
    Progress,
    StepMetrics,
    Warning_,
    encode_record,
    read_events,
)
from burnish.observe.metrics import require_declared
from burnish.observe.redaction import secret_values

Subscriber = Callable[[EventRecord], None]

# Losing the last few of these to a power cut costs nothing: those steps are done again after a resume.
_NOT_DURABLE = (Progress, StepMetrics)


class EventLog:
    """An append-only log of typed events.

    Opening an existing log continues its sequence. A last line that a crash cut short is moved to
    `events.torn-<seq>.jsonl` beside it and reported in a `Warning_` event. A process killed at any instant
    leaves a log that opens again; events other than `Progress` and `StepMetrics` survive a power cut once
    `append` has returned. Safe to use from several threads of one process.

    Raises: IntegrityError where the existing log is damaged before its last line; ResourceError where it
    cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._subscribers: list[Subscriber] = []
        self._secrets = secret_values()
        existing = read_events(self.path)
        self._next_seq = len(existing.records)
        torn_path = self._set_aside(existing) if existing.torn else None
        with writing(self.path):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fsync_folder(self.path.parent)
        if torn_path is not None:
            message = f"a crash cut the last line short; its {len(existing.torn)} bytes were set aside"
            self.append(Warning_(message, where=str(torn_path)))

    def _set_aside(self, existing: LogContents) -> Path:
        aside = self.path.with_name(f"{self.path.stem}.torn-{self._next_seq}{self.path.suffix}")
        with writing(self.path):
            with open(aside, "ab") as file:
                file.write(existing.torn + b"\n")
                file.flush()
                os.fsync(file.fileno())
            with open(self.path, "r+b") as file:
                file.truncate(existing.whole_bytes)
                os.fsync(file.fileno())
        return aside

    @property
    def next_seq(self) -> int:
        """The sequence number that the next event gets."""
        return self._next_seq

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` with each later record, in the appending thread, once it is written.

        Returns: a function that ends the subscription. What a subscriber raises reaches whoever appended.
        """
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def append(self, event: Event) -> EventRecord:
        """Writes one event in a single write and tells the subscribers.

        Raises: RunError for an undeclared metric or a closed log; NonFiniteError for a NaN or an infinity;
        ResourceError where the disk refuses, in which case the log is as it was before.
        """
        if isinstance(event, StepMetrics):
            require_declared(event.metrics, where=f"{event.stage}, step {event.step}")
        with self._lock:
            record = EventRecord(self._next_seq, _utc_now(), round(time.monotonic(), 6), event)
            try:
                line = encode_record(record, self._secrets)
            except ValueError as error:
                where = f"{type(event).__name__}, {self.path}"
                raise NonFiniteError(f"an event holds no finite number: {error}", where=where) from None
            self._write(line + b"\n")
            if not isinstance(event, _NOT_DURABLE):
                with writing(self.path):
                    os.fsync(self._fd)
            self._next_seq += 1
        for subscriber in tuple(self._subscribers):
            subscriber(record)
        return record

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            raise RunError("the event log is closed", where=str(self.path), fix="append before closing the run")
        with writing(self.path):
            before = os.fstat(self._fd).st_size
            try:
                written = os.write(self._fd, data)
                while written < len(data):  # a disk that fills up takes a part, then refuses
                    written += os.write(self._fd, data[written:])
            except OSError:
                os.ftruncate(self._fd, before)
                raise

    def close(self) -> None:
        """Makes everything durable and closes the file; closing twice is harmless."""
        with self._lock:
            if self._fd >= 0:
                with writing(self.path):
                    os.fsync(self._fd)
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
