from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core import codec
from burnish.core.codec import decode, dumps, encode, loads
from burnish.core.errors import DataError
from burnish.core.outcomes import Ending, Outcome, StopReason
from burnish.core.types import (
    CheckpointRef,
    ImagePart,
    Message,
    ParseState,
    ReasoningPart,
    Role,
    Split,
    Task,
    TextPart,
    Timing,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Trajectory,
    Turn,
    Verdict,
)

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)  # UTF-8 files hold no lone surrogates
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, plain, max_size=3)
parts = st.one_of(
    st.builds(TextPart, text),
    st.builds(ReasoningPart, text),
    st.builds(ImagePart, text, text),
    st.builds(ToolCallPart, text, objects, text),
    st.builds(ToolResultPart, text, text, text, st.booleans()),
)
messages = st.builds(Message, st.sampled_from(Role), st.lists(parts, max_size=3).map(tuple))
tools = st.builds(ToolSpec, text, text, objects)
tasks = st.builds(
    Task.create,
    st.lists(messages, max_size=2).map(tuple),
    env=text,
    verifier=text,
    domain=text,
    split=st.sampled_from(Split),
    cluster=text,
    source=text,
    licence=text,
    difficulty=st.none() | st.floats(0, 1),
    tools=st.lists(tools, max_size=2).map(tuple),
    tags=st.lists(text, max_size=2).map(tuple),
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    outcome = draw(st.sampled_from(Outcome))
    return Verdict(
        outcome,
        None if outcome is Outcome.UNDECIDED else draw(st.floats(-10, 10)),
        draw(text),
        draw(text),
        draw(text),
        components=draw(st.dictionaries(text, st.floats(-1, 1), max_size=2)),
        step_scores=tuple(draw(st.lists(st.floats(-1, 1), max_size=2))),
        evidence=draw(objects),
        flags=tuple(draw(st.lists(text, max_size=2))),
        ending=draw(st.sampled_from(Ending)),
        duration_s=draw(st.floats(0, 10)),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    length = draw(st.integers(0, 6))
    numbers = st.lists(st.floats(width=64), min_size=length, max_size=length)  # NaN and infinities included
    return Trajectory(
        id=draw(text),
        task_id=draw(text),
        domain=draw(text),
        cluster=draw(text),
        sample=draw(st.integers(0, 9)),
        seed=draw(st.integers(0, 2**63 - 1)),
        ids=np.arange(length, dtype=np.int32),
        source=np.zeros(length, dtype=np.uint8),
        use=np.ones(length, dtype=np.uint8),
        logp_rollout=np.array(draw(numbers), dtype=np.float64),
        logp_unfiltered=np.array(draw(numbers), dtype=np.float64),
        policy_version=np.full(length, -1, dtype=np.int32),
        turns=(Turn(0, length, Role.ASSISTANT, True, draw(st.sampled_from(ParseState))),),
        reply=draw(messages),
        reply_text=draw(text),
        stop_reason=draw(st.sampled_from(StopReason)),
        ending=draw(st.sampled_from(Ending)),
        timing=Timing(0.25, 0.5, draw(st.floats(0, 9)), 1.0),
        verdicts=draw(st.dictionaries(text, verdicts(), max_size=2)),
        parent_id=draw(st.none() | text),
        fork_token=draw(st.integers(0, 3)),
        routing=draw(st.sampled_from([None, np.zeros((length, 2, 2), dtype=np.int16)])),
        note=draw(text),
    )


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same_trajectory(a: Trajectory, b: Trajectory) -> None:
    for name in Trajectory.__slots__:
        x, y = getattr(a, name), getattr(b, name)
        assert same_bits(x, y) if isinstance(x, np.ndarray) else x == y, name


@given(obj=st.one_of(messages, tasks, verdicts(), st.builds(CheckpointRef, text, text, text, st.integers())))
def test_what_is_written_reads_back_equal(obj: Any) -> None:
    line = dumps(obj)
    assert "\n" not in line
    assert loads(type(obj), line) == obj
    assert json.loads(line)["schema"] == type(obj).__name__
    assert pickle.loads(pickle.dumps(obj)) == obj


@given(trajectory=trajectories())
def test_trajectories_keep_every_bit(trajectory: Trajectory) -> None:
    assert_same_trajectory(loads(Trajectory, dumps(trajectory)), trajectory)
    assert_same_trajectory(pickle.loads(pickle.dumps(trajectory)), trajectory)


TASK = Task.create(
    (Message.of("user", "1 + 1"),),
    env="single_turn",
    verifier="exact",
    domain="sums",
    split=Split.GATE,
    cluster="plus",
    source="here",
    licence="Apache-2.0",
)


def test_task_id_is_of_the_content_alone() -> None:
    assert TASK.id == "7045e19f8c056e14"  # golden: a change of it parts every stored result from its task
    other_split = Task.create(
        TASK.prompt, env=TASK.env, verifier=TASK.verifier, domain=TASK.domain, split=Split.TRAIN,
        cluster="x", source="y", licence="z", difficulty=0.5, tags=("a",),
    )  # fmt: skip
    assert other_split.id == TASK.id
    other_judge = Task.create(
        TASK.prompt, env=TASK.env, verifier="numeric", domain=TASK.domain, split=TASK.split,
        cluster="plus", source="here", licence="Apache-2.0",
    )  # fmt: skip
    assert other_judge.id != TASK.id


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 2}, "Task version 2 is newer than this Burnish reads (1)"),
        ({"version": "1"}, "Task version '1' is newer"),
        ({"version": 0}, "Task version 0 cannot be migrated"),
        ({"schema": "Verdict"}, "expected a Task, found a Verdict"),
        ({"speed": 3}, "not a valid Task: Task: unknown keys ['speed']"),
        ({"split": "holdout"}, "not a valid Task: 'holdout' is not a valid Split"),
        ({"difficulty": "hard"}, "not a valid Task: Task.difficulty: fits none of its types"),
        ({"tags": "abc"}, "not a valid Task: Task.tags: expected a list, found str"),
        ({"env": 3}, "not a valid Task: Task.env: expected str, found int"),
        (
            {"prompt": [{"role": "user", "parts": [{"kind": "sound"}]}]},
            "not a valid Task: Task.prompt[0].parts[0]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(Task, encode(TASK) | change, where="tasks.jsonl:3")
    assert caught.value.what.startswith(what)
    assert caught.value.where == "tasks.jsonl:3"


def test_missing_keys_and_lines_that_are_no_json() -> None:
    data = encode(TASK)
    del data["prompt"]
    with pytest.raises(DataError, match="not a valid Task"):
        decode(Task, data)
    for line, what in (("{", "not JSON"), ("[]", "expected a JSON object, found list"), ("", "not JSON")):
        with pytest.raises(DataError, match=what):
            loads(Task, line)


def test_old_versions_are_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(data: dict[str, Any]) -> dict[str, Any]:
        data["licence"] = data.pop("license")
        return data

    def add_cluster(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"cluster": data["domain"]}

    monkeypatch.setitem(codec.SCHEMA_VERSIONS, "Task", 3)
    monkeypatch.setitem(codec.MIGRATIONS, ("Task", 1), rename)
    monkeypatch.setitem(codec.MIGRATIONS, ("Task", 2), add_cluster)
    data = encode(TASK) | {"version": 1, "license": TASK.licence}
    del data["licence"], data["cluster"]
    assert decode(Task, data) == replace(TASK, cluster=TASK.domain)
    assert encode(TASK)["version"] == 3


def test_bools_are_no_numbers_and_integers_may_be_floats() -> None:
    ref = encode(CheckpointRef("p", "d", "sft", 3))
    with pytest.raises(DataError, match=r"CheckpointRef\.step: expected int, found bool"):
        decode(CheckpointRef, ref | {"step": True})
    assert decode(Timing, encode(Timing()) | {"queue_s": 2}).queue_s == 2.0


def test_trajectory_arrays_have_one_length() -> None:
    with pytest.raises(ValueError, match="logp_rollout has 1 entries for 2 tokens"):
        replace(
            Trajectory(
                "t", "k", "d", "c", 0, 1, *(np.zeros(2, d) for d in ("i4", "u1", "u1", "f8", "f8", "i4")),
                (), Message.of("assistant", "x"), "x", StopReason.STOP_TOKEN,
            ),
            logp_rollout=np.zeros(1),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "score"),
    [(Outcome.PASS, None), (Outcome.FAIL, None), (Outcome.UNDECIDED, 0.0), (Outcome.FAIL, float("nan"))],
)
def test_a_verdict_has_a_finite_score_iff_it_is_decided(outcome: Outcome, score: float | None) -> None:
    with pytest.raises(ValueError, match="score"):
        Verdict(outcome, score, "because", "exact", "1")
