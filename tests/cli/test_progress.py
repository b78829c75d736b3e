from __future__ import annotations

import io
from typing import Any

from burnish.cli.progress import EVERY_S, Progress, describe
from burnish.core.types import Decision
from burnish.observe import events


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(event: Any) -> events.EventRecord:
    return events.EventRecord(0, "2026-11-30T00:00:00+00:00", 0.0, event)


def test_off_a_terminal_progress_is_a_line_every_half_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock) as progress:
        for second in range(100):
            clock.now = float(second)
            progress(record(events.Progress("grpo", "rollouts", second, 100, "replies")))
    lines = stream.getvalue().splitlines()
    assert lines == [f"grpo: rollouts {n} of 100 replies" for n in (30, 60, 90)]
    assert EVERY_S == 30


def test_what_a_person_waits_for_is_told_at_once() -> None:
    stream = io.StringIO()
    with Progress(stream, Clock()) as progress:
        progress(record(events.StageStarted("sft", "sft", 24)))
        progress(record(events.StepMetrics("sft", 1, {"loss": 1.0})))
        progress(record(events.GateDecided("sft", "c", "p", Decision.REJECT, ("worse", "longer"))))
        progress(record(events.Warning_("slow disk", where="runs")))
    assert stream.getvalue().splitlines() == [
        "sft: started, 24 steps",
        "sft: gate says REJECT: worse; longer",
        "warning: slow disk (runs)",
    ]


def test_on_a_terminal_there_is_a_bar_and_markup_is_text() -> None:
    stream = Terminal()
    with Progress(stream, Clock()) as progress:
        progress.report("sampling", 1, 4)
        progress.report("sampling", 4, 4)
        progress.report("verifying", 1, 2)
        progress(record(events.Warning_("[red]odd[/red] name")))
    assert "sampling" in stream.getvalue()
    assert "warning: [red]odd[/red] name" in stream.getvalue()


def test_every_event_can_be_described() -> None:
    import typing

    quiet = {
        events.Progress, events.StepMetrics, events.CheckpointSaved, events.IdentityProof,
        events.CheckpointPromoted, events.FinalSetOpened, events.RunFailed, events.RunInterrupted,
    }  # fmt: skip
    told = {
        events.Resumed("sft", 3): "resumed sft after step 3",
        events.StageStarted("base", "baseline"): "base: started",
        events.StageSkipped("grpo", "hopeless"): "grpo: skipped, hopeless",
        events.StageFinished("sft", 12.4): "sft: finished after 12 s",
        events.RunFinished(90.0): "finished after 90 s",
    }
    for event, line in told.items():
        assert describe(event) == line
    finished = events.EvalFinished("sft", "target", "gate", "d", 60, 0, {"pass_rate": 0.5})
    assert describe(finished) == "sft: target (gate) pass_rate 0.500"
    started = events.RunStarted("r1", "quick", 7, "", "", "base", power=("gate: 400 tasks find 6 points",))
    assert describe(started) == "quick: base, seed 7\ngate: 400 tasks find 6 points"
    shown = {type(event) for event in told} | {
        events.RunStarted,
        events.EvalFinished,
        events.GateDecided,
        events.Warning_,
    }
    assert shown | quiet == set(typing.get_args(events.Event))
