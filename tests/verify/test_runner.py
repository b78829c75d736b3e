"""The boundary: faults are never zeros, deadlines return, retries follow the outcome table."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.gold import Gold
from burnish.core.outcomes import OUTCOME_TABLE, Ending, Outcome
from burnish.core.types import Artifacts, Task, Trajectory, Verdict
from burnish.verify.base import passed
from burnish.verify.functions import FunctionVerifier
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.runner import verify_one


def same(reply: str, gold: Any) -> float:
    return float(reply.strip() == gold)


def as_number(reply: str, gold: Any) -> bool:
    return int(reply) == gold


def lenient(reply: str, gold: Any) -> Any:
    return {"half": 0.5, "more": 1.5, "np": np.float32(1.0), "npbool": np.bool_(True), "true": True}.get(reply, 0)


def bad_scores(reply: str, gold: Any) -> Any:
    return {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "1.0", "complex": 1j}.get(reply, 0.0)


def always_raises(reply: str, gold: Any) -> float:
    raise RuntimeError("no such service")


def exits(reply: str, gold: Any) -> float:
    raise SystemExit(0)


async def waits(reply: str, gold: Any, task: Task) -> float:
    await asyncio.sleep(0)
    return float(reply == gold and task.env == "single_turn")


def spins_on_bait(reply: str, gold: Any) -> float:
    while reply == "bait":
        pass
    return 0.0


def spoils_its_gold(reply: str, gold: Any) -> float:
    gold.append(reply)
    return float(len(gold) == 1)


def test_functions_pass_at_one(judge: Callable[..., Verdict]) -> None:
    for reply, outcome, score in [
        ("half", Outcome.FAIL, 0.5),
        ("more", Outcome.PASS, 1.5),
        ("np", Outcome.PASS, 1.0),
        ("npbool", Outcome.PASS, 1.0),
        ("true", Outcome.PASS, 1.0),
        ("x", Outcome.FAIL, 0.0),
    ]:
        verdict = judge(FunctionVerifier(lenient), None, reply)
        assert (verdict.outcome, verdict.score) == (outcome, score)
    assert judge(FunctionVerifier(waits), "a", "a").outcome is Outcome.PASS
    assert judge(FunctionVerifier(same), "a", " a ").outcome is Outcome.PASS


def test_null_replies_fail_without_a_call(judge: Callable[..., Verdict]) -> None:
    verdict = judge(FunctionVerifier(same), "", "  ")
    assert (verdict.outcome, verdict.score) == (Outcome.FAIL, 0.0)


def test_each_call_gets_its_own_gold(judge: Callable[..., Verdict]) -> None:
    verifier = FunctionVerifier(spoils_its_gold)
    assert [judge(verifier, [], "x").outcome for _ in range(2)] == [Outcome.PASS, Outcome.PASS]


def test_a_fault_that_the_text_provokes_is_flagged(judge: Callable[..., Verdict]) -> None:
    for reply in ("nan", "inf", "none", "text", "complex"):
        verdict = judge(FunctionVerifier(bad_scores), 1, reply)
        assert (verdict.outcome, verdict.score) == (Outcome.UNDECIDED, None)
        assert verdict.ending is Ending.VERIFIER_PROVOKED
        assert verdict.flags == ("provoked",)


class Service:
    """A function that asks a service, which fails on some calls."""

    def __init__(self, *fails: int) -> None:
        self.fails, self.num_calls = fails, 0

    async def __call__(self, reply: str, gold: Any) -> float:
        self.num_calls += 1
        if self.num_calls in self.fails:
            raise ConnectionError("reset by peer")
        return float(reply == gold)


def test_a_fault_that_passes_is_nobodys(judge: Callable[..., Verdict]) -> None:
    service = Service(1)
    verdict = judge(FunctionVerifier(service, "service"), "a", "a", retries=1)
    assert (verdict.outcome, verdict.flags) == (Outcome.PASS, ())
    assert service.num_calls == 3  # the failure, its neutral control, and the reply again


def test_a_fault_that_any_text_meets_is_not(judge: Callable[..., Verdict]) -> None:
    for function, reply in ((always_raises, "x"), (as_number, "not a number"), (exits, "x")):
        verdict = judge(FunctionVerifier(function), 1, reply)
        assert (verdict.outcome, verdict.ending, verdict.flags) == (
            Outcome.UNDECIDED,
            Ending.VERIFIER_ERROR,
            (),
        )


def test_a_loop_is_stopped_at_the_deadline_and_flagged(judge: Callable[..., Verdict]) -> None:
    started = time.perf_counter()
    verdict = judge(FunctionVerifier(spins_on_bait), 1, "bait", deadline_s=0.2, retries=1)
    assert time.perf_counter() - started < 3.0
    assert (verdict.outcome, verdict.ending) == (Outcome.UNDECIDED, Ending.VERIFIER_PROVOKED)
    assert verdict.duration_s >= 0.4  # the try and its retry
    until = time.monotonic() + 5.0
    while any(thread.name.startswith("verifier-spins") for thread in threading.enumerate()):
        assert time.monotonic() < until, "the thread still runs"
        time.sleep(0.01)


class Scripted:
    """Gives (or raises) what its script says, one entry a call."""

    name, version, cases = "scripted", "1", ()

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.replies: list[str] = []

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Any:
        self.replies.append(trajectory.reply.text)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if step == "hang":
            await asyncio.sleep(60)
        return step


_PASS = passed("").signed("scripted", "1")


@pytest.mark.parametrize(
    ("script", "retries", "outcome", "ending", "num_calls"),
    [
        ((_PASS,), 1, Outcome.PASS, Ending.VERIFIED, 1),
        ((OSError("busy"), _PASS), 1, Outcome.PASS, Ending.VERIFIED, 2),
        (("hang", _PASS), 1, Outcome.PASS, Ending.VERIFIED, 2),
        ((OSError("busy"), OSError("busy"), OSError("busy")), 1, Outcome.UNDECIDED, Ending.VERIFIER_ERROR, 3),
        ((OSError("busy"), OSError("busy"), _PASS), 1, Outcome.UNDECIDED, Ending.VERIFIER_PROVOKED, 3),
        (("hang", "hang", "hang"), 1, Outcome.UNDECIDED, Ending.WALL_TIME_MACHINE, 3),
        (("hang", _PASS), 0, Outcome.UNDECIDED, Ending.VERIFIER_PROVOKED, 2),
        ((TimeoutError("its own"), _PASS), 1, Outcome.PASS, Ending.VERIFIED, 2),
        (("not a verdict", "nor this", "nor that"), 1, Outcome.UNDECIDED, Ending.VERIFIER_ERROR, 3),
    ],
)
def test_retries_and_controls(
    judge: Callable[..., Verdict], script: Any, retries: int, outcome: Outcome, ending: Ending, num_calls: int
) -> None:
    verifier = Scripted(*script)
    verdict = judge(verifier, 1, "reply", deadline_s=0.05, retries=retries)
    assert (verdict.outcome, verdict.ending, len(verifier.replies)) == (outcome, ending, num_calls)
    assert (verdict.verifier, verdict.version) == ("scripted", "1")
    assert verdict.duration_s > 0


@pytest.mark.parametrize("ending", [e for e in Ending if OUTCOME_TABLE[e].outcome is not None])
def test_a_rollout_that_ended_badly_is_not_verified(ending: Ending) -> None:
    task = bare_task("scripted")
    trajectory = replace(reply_trajectory(task, "42"), ending=ending)
    verifier = Scripted()
    verdict = asyncio.run(verify_one(verifier, task, Gold.seal(42), trajectory, Artifacts()))
    assert (verdict.outcome, verdict.ending) == (OUTCOME_TABLE[ending].outcome, ending)
    assert verifier.replies == []


def test_cancellation_passes_through() -> None:
    async def cancelled() -> None:
        task = bare_task("scripted")
        call = verify_one(Scripted("hang"), task, Gold.seal(1), reply_trajectory(task, "x"), Artifacts())
        async with asyncio.timeout(0.05):
            await call

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())


def test_functions_of_another_shape_are_refused() -> None:
    for function in (lambda reply: 1.0, lambda reply, gold, other: 1.0, lambda reply, gold, task, more: 1.0):
        with pytest.raises(ConfigError, match="does not take"):
            FunctionVerifier(function)
    FunctionVerifier(lambda reply, gold, strict=True: 1.0)
