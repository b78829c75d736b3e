from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from burnish.core.errors import DataError, IntegrityError, NonFiniteError, ResourceError, RunError
from burnish.core.types import CheckpointRef, Decision
from burnish.observe.event_log import EventLog
from burnish.observe.events import (
    EVENT_TYPES,
    CheckpointPromoted,
    CheckpointSaved,
    EvalFinished,
    Event,
    EventRecord,
    FinalSetOpened,
    GateDecided,
    IdentityProof,
    Progress,
    Resumed,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunStarted,
    StageFinished,
    StageSkipped,
    StageStarted,
    StepMetrics,
    Warning_,
    metric_rows,
    read_events,
)

ONE_OF_EACH: list[Event] = [
    RunStarted("r1", "demo", 7, "c0", "k0", "smol", "0.1.0", {"cores": 2.0, "gpus": []}),
    StageStarted("sft", "sft", 20, "base"),
    StepMetrics("sft", 1, {"loss": 2.5, "lr": 1e-5, "tokens_trained": 640}),
    Progress("sft", "training", 1, 20, "steps"),
    CheckpointSaved(CheckpointRef("checkpoints/sft-20", "d1", "sft", 20, "base"), 123),
    EvalFinished("sft", "structured_extraction", "gate", "d1", 200, 1, {"pass_rate": 0.5}, 3.5, "evals/a.json"),
    GateDecided("sft", "d1", "base", Decision.PROMOTE, ("lower bound +0.041 > 0",), "evals/gate.json"),
    CheckpointPromoted("d1", "default", "run r1", "gate promoted"),
    IdentityProof("rl", 3, 4, True, 1.2e-6, 1e-4, "proved", 0.02),
    FinalSetOpened("tool_call", 1, "d1", "the sealed final evaluation"),
    Warning_("something\r\nodd \u2028 \ud800 here", "recipes/x.yaml:3", "rl", 2),
    Resumed("rl", 2, "d1"),
    StageSkipped("rl", "no variance"),
    StageFinished("sft", 12.5, "d1"),
    RunFailed("NonFiniteError", "loss is nan", "rl, step 2", "lower the learning rate"),
    RunInterrupted("SIGINT"),
    RunFinished(100.0, "d1", "promoted"),
]


def test_every_event_type_is_covered_here() -> None:
    assert {type(event).__name__ for event in ONE_OF_EACH} == set(EVENT_TYPES)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_equal(tmp_path: Path, event: Event) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        written = log.append(event)
    assert read_events(tmp_path / "events.jsonl").records == (written,)
    assert written.event == event


def test_lines_carry_schema_version_sequence_and_both_clocks(tmp_path: Path) -> None:
    before = time.monotonic()
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in ONE_OF_EACH:
            log.append(event)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").split("\n") if line]
    assert [line["seq"] for line in lines] == list(range(len(ONE_OF_EACH)))
    for line in lines:
        assert (line["schema"], line["version"]) == ("EventRecord", 1)
        assert line["event"]["version"] == 1
        assert line["utc"].endswith("+00:00")
        assert before - 1 <= line["monotonic_s"] <= time.monotonic()


def test_no_file_is_an_empty_log(tmp_path: Path) -> None:
    contents = read_events(tmp_path / "none.jsonl")
    assert (contents.records, contents.torn) == ((), b"")


def test_reopening_continues_the_sequence(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for count in range(3):
        with EventLog(path) as log:
            assert log.next_seq == count
            log.append(Warning_(f"opening {count}"))
    assert [record.seq for record in read_events(path).records] == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_last_line_is_reported_set_aside_and_never_lost(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(StageSkipped("sft", "a"))
        log.append(StageSkipped("rl", "b"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    contents = read_events(path)
    assert [record.seq for record in contents.records] == [0]
    assert contents.torn

    with EventLog(path) as log:
        log.append(StageSkipped("rl", "again"))
    first, warning, last = read_events(path).events
    assert first == StageSkipped("sft", "a")
    assert isinstance(warning, Warning_)
    assert f"{len(contents.torn)} bytes" in warning.message
    assert Path(warning.where).read_bytes() == contents.torn + b"\n"
    assert last == StageSkipped("rl", "again")


def test_damage_before_the_last_line_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for index in range(3):
            log.append(Warning_(str(index)))
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + lines[1][:20] + b"\n" + lines[2]
    path.write_bytes(damaged)
    with pytest.raises(IntegrityError) as caught:
        EventLog(path)
    assert caught.value.where == f"{path}:2"
    assert path.read_bytes() == damaged


def test_a_missing_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for index in range(3):
            log.append(Warning_(str(index)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(IntegrityError, match="event 1 is missing"):
        read_events(path)


def test_an_event_from_a_newer_burnish_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(StageSkipped("rl", "x"))
    path.write_text(path.read_text().replace("StageSkipped", "StageTeleported"))
    with pytest.raises(DataError, match="StageTeleported"):
        read_events(path)


def test_nothing_undeclared_or_non_finite_reaches_the_log(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        with pytest.raises(RunError, match="not declared"):
            log.append(StepMetrics("rl", 1, {"vibes": 1.0}))
        with pytest.raises(NonFiniteError, match="loss is nan"):
            log.append(StepMetrics("rl", 1, {"loss": math.nan}))
        with pytest.raises(NonFiniteError):
            log.append(StageFinished("rl", math.inf))
        assert log.next_seq == 0
    assert (tmp_path / "events.jsonl").read_bytes() == b""


def test_subscribers_see_what_was_written_in_order_until_they_leave(tmp_path: Path) -> None:
    seen: list[EventRecord] = []
    with EventLog(tmp_path / "events.jsonl") as log:
        leave = log.subscribe(seen.append)
        log.append(Warning_("one"))
        log.append(Warning_("two"))
        leave()
        log.append(Warning_("three"))
    assert seen == list(read_events(tmp_path / "events.jsonl").records[:2])


def test_a_subscriber_may_append(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:

        def warn(record: EventRecord) -> None:
            if isinstance(record.event, StepMetrics):
                log.append(Warning_("seen"))

        log.subscribe(warn)
        log.append(StepMetrics("sft", 1, {"loss": 1.0}))
    assert [type(event).__name__ for event in read_events(tmp_path / "events.jsonl").events] == [
        "StepMetrics",
        "Warning_",
    ]


def test_threads_share_one_sequence(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        threads = [
            threading.Thread(target=lambda: [log.append(Progress("rl", "r", i, 50)) for i in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_events(tmp_path / "events.jsonl").records) == 200


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.close()
    log.close()
    with pytest.raises(RunError, match="closed"):
        log.append(Warning_("late"))


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """The kernel's file size limit stands in for a full disk: both take a part of a write, then refuse."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from burnish.core.errors import ResourceError\n"
        "from burnish.observe.event_log import EventLog\n"
        "from burnish.observe.events import Warning_\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = Path(sys.argv[1])\n"
        "log = EventLog(path)\n"
        "log.append(Warning_('fits'))\n"
        "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limits[1]))\n"
        "try:\n"
        "    log.append(Warning_('x' * 500))\n"
        "except ResourceError as error:\n"
        "    assert str(path) in error.where\n"
        "else:\n"
        "    sys.exit('no error')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
        "log.append(Warning_('room again'))\n"
    )
    path = tmp_path / "events.jsonl"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    contents = read_events(path)
    assert contents.torn == b""
    assert contents.events == (Warning_("fits"), Warning_("room again"))


def test_a_killed_writer_leaves_a_log_that_opens_again(tmp_path: Path) -> None:
    script = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from burnish.observe.event_log import EventLog\n"
        "from burnish.observe.events import Progress\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "for step in itertools.count():\n"
        "    log.append(Progress('rl', 'x' * 3000, step, 0))\n"
    )
    path = tmp_path / "events.jsonl"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > 100_000):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    survived = read_events(path)
    assert len(survived.records) > 20
    with EventLog(path) as log:
        log.append(Warning_("after the crash"))
    again = read_events(path)
    assert again.records[: len(survived.records)] == survived.records
    assert again.events[-1] == Warning_("after the crash")
    assert again.torn == b""


def test_secrets_of_the_environment_never_reach_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HUB_TOKEN", 'very"secret')
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(RunFailed("OSError", 'refused: very"secret', "https://u:very%20hidden@host/x"))
    text = (tmp_path / "events.jsonl").read_text()
    assert "secret" not in text
    assert "hidden" not in text
    assert "refused: <redacted>" in text


def test_an_unwritable_log_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((ResourceError, NotADirectoryError)) as caught:
        EventLog(tmp_path / "file" / "events.jsonl")
    assert isinstance(caught.value, ResourceError)


def test_steps_done_again_after_a_resume_replace_what_they_repeat(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(StepMetrics("sft", 1, {"loss": 9.0}))
        for step in (1, 2, 3):
            log.append(StepMetrics("rl", step, {"loss": float(step)}))
        log.append(Resumed("rl", 1))
        log.append(StepMetrics("rl", 2, {"loss": 20.0}))
    rows = metric_rows(read_events(tmp_path / "events.jsonl").records)
    assert [(row.stage, row.step, row.metrics["loss"]) for row in rows] == [
        ("sft", 1, 9.0),
        ("rl", 1, 1.0),
        ("rl", 2, 20.0),
    ]


def test_events_of_one_step_add_up(tmp_path: Path) -> None:
    """A development evaluation reports its pass rate for a step that training has already reported."""
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(StepMetrics("sft", 1, {"loss": 2.0, "tokens_trained": 116}))
        log.append(StepMetrics("sft", 1, {"dev_pass_rate": 0.5}))
    (row,) = metric_rows(read_events(tmp_path / "events.jsonl").records)
    assert row.metrics == {"loss": 2.0, "tokens_trained": 116, "dev_pass_rate": 0.5}
