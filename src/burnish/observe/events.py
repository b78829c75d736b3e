"""What can happen in a run: one typed event for each, and how a line of `events.jsonl` is read.

A line is `{"schema": "EventRecord", "version": 1, "seq": 7, "utc": ..., "monotonic_s": ..., "event":
{"schema": "StepMetrics", "version": 1, ...}}`. Sequence numbers start at 0 and have no gap. Each event type
has its own version and migrates by itself (`core.codec`).

Leaves out appending (`event_log`) and who may see what (events hold no gold and no secrets).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from burnish.core.codec import decode, encode
from burnish.core.errors import DataError, IntegrityError
from burnish.core.types import CheckpointRef, Decision
from burnish.observe.redaction import redact_strings

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event of a run. `power`: what its gates and its final set can find, one sentence each."""

    run_id: str
    name: str
    seed: int
    config_digest: str
    code_digest: str
    base_model: str
    burnish_version: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    power: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on from a checkpoint; steps of `stage` after `step` are done again."""

    stage: str
    step: int
    checkpoint_digest: str = ""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage begins from the checkpoint `parent_digest`; `num_steps` 0 means unknown."""

    stage: str
    kind: str
    num_steps: int = 0
    parent_digest: str = ""


@dataclass(frozen=True, slots=True)
class StageSkipped:
    """A stage was not run, and why."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage ended; `checkpoint_digest` is what it hands on ('' where it made none)."""

    stage: str
    seconds: float
    checkpoint_digest: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an activity is, for progress bars; never made durable, and a missing one means nothing."""

    stage: str
    activity: str
    done: int
    total: int
    unit: str = ""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one optimiser step; every name is declared in `metrics.METRICS`, every value finite."""

    stage: str
    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvalFinished:
    """A suite was run on a checkpoint; `results` are its own numbers, `report` a path in the run folder."""

    stage: str
    suite: str
    split: str
    checkpoint_digest: str
    num_tasks: int
    num_undecided: int
    results: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    report: str = ""


@dataclass(frozen=True, slots=True)
class GateDecided:
    """A gate answered about a checkpoint, against its parent."""

    stage: str
    checkpoint_digest: str
    parent_digest: str
    decision: Decision
    reasons: tuple[str, ...]
    report: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is whole on disk."""

    checkpoint: CheckpointRef
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPromoted:
    """A checkpoint is the live one of a channel; `forced` where no gate had promoted it."""

    digest: str
    channel: str
    by: str
    reason: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """Whether sampler and trainer speak for the same policy, after a weight sync.

    `logp_gap_max`, `logp_gap_mean` and `tolerance` (of the largest gap) are nats on the probe set;
    `version_gap_max` is the smallest shift that the probe saw between this version and the one before.
    `undetectable`: the probe cannot tell the two versions apart, and only the digest speaks. `noise_ratio`: how
    far the farther side lies from the fp32 reference, in units of what rounding does; None where none was asked.
    """

    stage: str
    step: int
    policy_version: int
    digest_matches: bool
    logp_gap_max: float
    tolerance: float
    result: Literal["proved", "undetectable", "mismatch"]
    version_gap_max: float = 0.0
    logp_gap_mean: float = 0.0
    noise_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class FinalSetOpened:
    """A sealed final set was opened; `opening` counts from 1 over the whole run."""

    domain: str
    opening: int
    checkpoint_digest: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warning_:  # noqa: N801  (the builtin's name, kept apart)
    """Something a person should know that does not stop the run; `where` is a path one can open."""

    message: str
    where: str = ""
    stage: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run came to its end; `promoted_digest` is '' where no gate promoted anything."""

    seconds: float
    promoted_digest: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run stopped on an error: its type and its three lines."""

    error: str
    what: str
    where: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class RunInterrupted:
    """Someone stopped the run; it can be resumed."""

    reason: str


Event = (
    RunStarted
    | Resumed
    | StageStarted
    | StageSkipped
    | StageFinished
    | Progress
    | StepMetrics
    | EvalFinished
    | GateDecided
    | CheckpointSaved
    | CheckpointPromoted
    | IdentityProof
    | FinalSetOpened
    | Warning_
    | RunFinished
    | RunFailed
    | RunInterrupted
)

EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}
"""Every event type by its schema name."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event with its place and time.

    `utc` is ISO 8601 with microseconds. `monotonic_s` can be compared within one process only, since a
    resumed run starts a new clock.
    """

    seq: int
    utc: str
    monotonic_s: float
    event: Event


@dataclass(frozen=True, slots=True)
class LogContents:
    """What a log holds: its whole records, and the bytes of a last line that a crash cut short (or none)."""

    records: tuple[EventRecord, ...]
    whole_bytes: int
    torn: bytes = b""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events alone, in order."""
        return tuple(record.event for record in self.records)


def encode_record(record: EventRecord, secrets: Iterable[str] = ()) -> bytes:
    """One line of JSON in UTF-8, without its newline and without the given secrets.

    Raises: ValueError for a NaN or an infinity.
    """
    data = {
        "schema": "EventRecord",
        "version": RECORD_VERSION,
        "seq": record.seq,
        "utc": record.utc,
        "monotonic_s": record.monotonic_s,
        "event": redact_strings(encode(record.event), secrets),
    }
    line = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate in a model's text becomes \udXXX, which is also how JSON writes it.
    return line.encode("utf-8", "backslashreplace")


def decode_record(line: bytes, *, where: str) -> EventRecord:
    """The record in one line.

    Raises: IntegrityError where the line is not a record; DataError where a newer Burnish wrote it.
    """
    try:
        data = json.loads(line)
        version, event = data["version"], data["event"]
        schema = event["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"not an event record: {type(error).__name__}: {error}",
            where=where,
            fix="restore the file from a copy; lines after a damaged one are not trusted",
        ) from None
    if version != RECORD_VERSION or schema not in EVENT_TYPES:
        raise DataError(f"event {schema!r} in record version {version!r} is unknown", where=where, fix="update Burnish")
    decoded = decode(EVENT_TYPES[schema], event, where=where)
    return EventRecord(int(data["seq"]), str(data["utc"]), float(data["monotonic_s"]), decoded)


def read_events(path: Path) -> LogContents:
    """Everything in a log, also while a run is writing it.

    A last line without its newline is reported in `torn`, not decoded. No file reads as an empty log.

    Raises: IntegrityError for damage before the last line or a gap in the sequence, as path:line; DataError
    where a newer Burnish wrote the log.
    """
    content = path.read_bytes() if path.exists() else b""
    whole_bytes = content.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(content[:whole_bytes].split(b"\n")[:-1], start=1):
        record = decode_record(line, where=f"{path}:{number}")
        if record.seq != number - 1:
            raise IntegrityError(
                f"event {number - 1} is missing: the line says seq {record.seq}",
                where=f"{path}:{number}",
                fix="restore the file from a copy; a log is never edited",
            )
        records.append(record)
    return LogContents(tuple(records), whole_bytes, content[whole_bytes:])


def metric_rows(records: Iterable[EventRecord]) -> list[StepMetrics]:
    """The step metrics that count, one row a step: events of the same step add up, and steps done again after a
    resume replace those they repeat.

    Returns: rows in the order of stages as first seen, then of steps.
    """
    rows: dict[str, dict[int, StepMetrics]] = {}
    for record in records:
        event = record.event
        if isinstance(event, StepMetrics):
            earlier = rows.setdefault(event.stage, {}).get(event.step)
            merged = event.metrics if earlier is None else {**earlier.metrics, **event.metrics}
            rows[event.stage][event.step] = StepMetrics(event.stage, event.step, merged)
        elif isinstance(event, Resumed):
            kept = rows.get(event.stage, {})
            rows[event.stage] = {step: row for step, row in kept.items() if step <= event.step}
    return [by_step[step] for by_step in rows.values() for step in sorted(by_step)]
