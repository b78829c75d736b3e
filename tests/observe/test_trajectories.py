from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from burnish.core.codec import dumps
from burnish.core.errors import DataError, IntegrityError, ResourceError
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.types import Message, Role, TokenSource, TokenUse, Trajectory, Turn, Verdict
from burnish.observe.trajectories import TrajectoryReader, TrajectoryWriter


def make(name: str, length: int = 6, text: str = "réponse \ud800\n") -> Trajectory:
    rng = np.random.default_rng(len(name) + length)
    sampled = np.arange(length) >= 2
    logp = np.where(sampled, rng.normal(size=length), np.nan)
    return Trajectory(
        id=name,
        task_id="t",
        domain="tool_call",
        cluster="c1",
        sample=0,
        seed=3,
        ids=rng.integers(0, 49152, length).astype(np.int32),
        source=np.where(sampled, TokenSource.SAMPLED, TokenSource.PROMPT).astype(np.uint8),
        use=np.where(sampled, TokenUse.TRAINED, TokenUse.IS_PROMPT).astype(np.uint8),
        logp_rollout=logp,
        logp_unfiltered=logp - 0.1,
        policy_version=np.where(sampled, 4, -1).astype(np.int32),
        turns=(Turn(0, 2, Role.USER, False), Turn(2, length, Role.ASSISTANT, True)),
        reply=Message.of(Role.ASSISTANT, text),
        reply_text=text,
        stop_reason=StopReason.STOP_TOKEN,
        verdicts={"main": Verdict(Outcome.PASS, 1.0, "equal", "exact", "1")},
    )


def test_a_step_comes_back_bit_for_bit(tmp_path: Path) -> None:
    written = [make("a"), make("b", 9), make("c", 3)]
    row = TrajectoryWriter(tmp_path).write("rl", 12, written)
    assert row.ids == ("a", "b", "c")
    reader = TrajectoryReader(tmp_path)
    assert [dumps(item) for item in reader.read("rl", 12)] == [dumps(item) for item in written]
    assert np.array_equal(reader.read("rl", 12)[1].logp_rollout, written[1].logp_rollout, equal_nan=True)
    assert reader.find("b").reply_text == written[1].reply_text


def test_stages_and_steps_are_listed_in_order(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    for stage, step in (("sft", 3), ("rl", 10), ("rl", 2)):
        writer.write(stage, step, [make(f"{stage}-{step}")])
    writer.write("rl", 4, [])
    reader = TrajectoryReader(tmp_path)
    assert reader.stages() == ["sft", "rl"]
    assert reader.steps("rl") == [2, 4, 10]
    assert [item.id for item in reader] == ["sft-3", "rl-2", "rl-10"]


def test_a_step_written_again_replaces_the_first(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    writer.write("rl", 1, [make("old")])
    writer.write("rl", 1, [make("new")])
    reader = TrajectoryReader(tmp_path)
    assert [item.id for item in reader] == ["new"]
    assert len(list((tmp_path / "rl").iterdir())) == 1
    with pytest.raises(DataError, match="old"):
        reader.find("old")


def test_a_crash_before_the_index_line_leaves_the_older_step_readable(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    writer.write("rl", 1, [make("first")])
    index = (tmp_path / "index.jsonl").read_bytes()
    writer.write("rl", 2, [make("second")])
    torn = (tmp_path / "index.jsonl").read_bytes()[:-7]
    (tmp_path / "index.jsonl").write_bytes(torn)
    assert [item.id for item in TrajectoryReader(tmp_path)] == ["first"]
    writer.write("rl", 2, [make("second again")])
    assert [item.id for item in TrajectoryReader(tmp_path)] == ["first", "second again"]
    assert (tmp_path / "index.jsonl").read_bytes().startswith(index)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    row = TrajectoryWriter(tmp_path).write("rl", 1, [make("a")])
    path = tmp_path / row.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        TrajectoryReader(tmp_path).read("rl", 1)
    assert caught.value.where == str(path)


def test_a_damaged_index_line_is_refused(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    writer.write("rl", 1, [make("a")])
    writer.write("rl", 2, [make("b")])
    index = tmp_path / "index.jsonl"
    index.write_bytes(b"{" + index.read_bytes())
    with pytest.raises(IntegrityError) as caught:
        TrajectoryReader(tmp_path)
    assert caught.value.where == f"{index}:1"


def test_what_cannot_be_written_or_found_is_said(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    with pytest.raises(DataError, match="cannot name a folder"):
        writer.write("../rl", 1, [])
    (tmp_path / "sft").write_text("a file")
    with pytest.raises(ResourceError):
        writer.write("sft", 1, [make("a")])
    with pytest.raises(DataError, match="step 5"):
        TrajectoryReader(tmp_path).read("rl", 5)
