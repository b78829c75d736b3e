"""Progress of a run, fed by events: a bar on a terminal, else a line every half minute. On stderr.

Leaves out what happened in detail: that is in events.jsonl and in the report.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from burnish.observe import events

EVERY_S = 30.0
"""Between two lines where stderr is no terminal: often enough to see life, rare enough for a log."""


class Progress:
    """Shows events and activities while it is entered.

    Call it with each `EventRecord`; `report(activity, done, total)` serves work that has no events.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._due_s = clock() + EVERY_S
        self._bar: Any = None
        self._task: Any = None
        self._activity = ""

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self._bar = Bar(*columns, console=Console(file=self._stream), transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: events.EventRecord) -> None:
        event = record.event
        if isinstance(event, events.Progress):
            self.report(f"{event.stage}: {event.activity}", event.done, event.total, event.unit)
        elif line := describe(event):
            self._say(line)

    def report(self, activity: str, done: int, total: int, unit: str = "") -> None:
        """Show how far an activity is."""
        if self._bar is None:
            if self._clock() >= self._due_s:
                self._due_s = self._clock() + EVERY_S
                self._say(f"{activity} {done} of {total} {unit}".rstrip())
            return
        if activity != self._activity:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._activity = self._bar.add_task(activity, total=total), activity
        self._bar.update(self._task, completed=done, total=total)

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()


def describe(event: events.Event) -> str:
    """One line for an event that a person waits for; '' for the others."""
    match event:
        case events.RunStarted():
            return "\n".join([f"{event.name}: {event.base_model}, seed {event.seed}", *event.power])
        case events.Resumed():
            return f"resumed {event.stage} after step {event.step}"
        case events.StageStarted():
            steps = f", {event.num_steps} steps" if event.num_steps else ""
            return f"{event.stage}: started{steps}"
        case events.StageSkipped():
            return f"{event.stage}: skipped, {event.reason}"
        case events.StageFinished():
            return f"{event.stage}: finished after {event.seconds:.0f} s"
        case events.EvalFinished():
            rates = ", ".join(f"{name} {value:.3f}" for name, value in event.results.items())
            return f"{event.stage}: {event.suite} ({event.split}) {rates}"
        case events.GateDecided():
            return f"{event.stage}: gate says {event.decision.value.upper()}: {'; '.join(event.reasons)}"
        case events.Warning_():
            where = f" ({event.where})" if event.where else ""
            return f"warning: {event.message}{where}"
        case events.RunFinished():
            return f"finished after {event.seconds:.0f} s"
        case _:
            return ""
