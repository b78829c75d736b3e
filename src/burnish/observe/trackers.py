"""Sinks that carry events to other people's tools; readers of the log, never its keepers.

    with TensorBoardSink(folder) as sink:
        log.subscribe(sink.write)

Leaves out services that need an account.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from burnish.core.errors import MissingDependencyError
from burnish.observe.disk import writing
from burnish.observe.events import EvalFinished, EventRecord, StepMetrics


class Sink(Protocol):
    """Takes every record in order; `close` makes what it took durable."""

    def write(self, record: EventRecord) -> None: ...
    def close(self) -> None: ...


class TensorBoardSink:
    """Writes step metrics as scalars `<stage>/<metric>`.

    Evaluation results become `<stage>/<suite>/<split>/<name>`, at the last step of their stage. Needs the
    package `tensorboard`, and no torch.

    Raises: MissingDependencyError where tensorboard is not installed; ResourceError where `folder` cannot be
    written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingDependencyError(
                f"the TensorBoard sink needs the package tensorboard: {error}",
                where=str(folder),
                fix="pip install 'burnish[tensorboard]'",
            ) from None
        self._event, self._summary = Event, Summary
        self._last_step: dict[str, int] = {}
        with writing(folder):
            self._writer: Any = EventFileWriter(str(folder))

    def write(self, record: EventRecord) -> None:
        """Takes one record; events without numbers are none of TensorBoard's business."""
        event = record.event
        if isinstance(event, StepMetrics):
            self._last_step[event.stage] = event.step
            values = {f"{event.stage}/{name}": value for name, value in event.metrics.items()}
            self._scalars(values, event.step, record.utc)
        elif isinstance(event, EvalFinished):
            prefix = f"{event.stage}/{event.suite}/{event.split}"
            values = {f"{prefix}/{name}": value for name, value in event.results.items()}
            self._scalars(values, self._last_step.get(event.stage, 0), record.utc)

    def _scalars(self, values: dict[str, float], step: int, utc: str) -> None:
        summary = self._summary(value=[self._summary.Value(tag=k, simple_value=v) for k, v in values.items()])
        wall_time = datetime.fromisoformat(utc).timestamp()
        self._writer.add_event(self._event(wall_time=wall_time, step=step, summary=summary))

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()

    def __enter__(self) -> TensorBoardSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
