"""The boundary at which verifiers are called: a deadline with an owner, retries, nothing ever raised.

Leaves out what a verdict is worth, and where it is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace

from burnish.core.gold import Gold
from burnish.core.outcomes import Ending, Outcome, rule_of
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, Task, Trajectory, Verdict
from burnish.verify.base import NEUTRAL_REPLY, PROVOKED_FLAG, Finding, contained, fault, undecided
from burnish.verify.replies import with_reply
from burnish.verify.text import shown

DEFAULT_DEADLINE_S = 30.0  # checks here take milliseconds; a user's function may call a service
DEFAULT_RETRIES = 1


async def verify_one(
    verifier: Verifier,
    task: Task,
    gold: Gold,
    trajectory: Trajectory,
    artifacts: Artifacts,
    deadline_s: float = DEFAULT_DEADLINE_S,
    retries: int = DEFAULT_RETRIES,
) -> Verdict:
    """The verdict on one trajectory, whatever the verifier does; cancellation alone passes through.

    A rollout whose own ending already decides (a fault, or the reply's program out of its limits) is not
    verified. An exception, a missed deadline or a return value that is no verdict is UNDECIDED; it is tried
    again up to `retries` times where the outcome table says so. What still fails is held against a neutral
    reply: where that one gets a verdict, the text provoked the fault and the verdict is flagged. `duration_s`
    covers all of it.

    Units: `deadline_s` wall seconds for each try. It binds verifiers that await and wrapped functions; a
    CPU-bound verifier that never awaits holds the event loop, so such a one must bound its own work, as those
    here do.
    """
    started = time.perf_counter()
    ended = rule_of(trajectory.ending).outcome
    if ended is not None:
        score = None if ended is Outcome.UNDECIDED else 0.0
        finding = Finding(ended, score, f"the rollout ended as {trajectory.ending}", ending=trajectory.ending)
        return finding.signed(verifier.name, verifier.version)
    verdict = await _attempt(verifier, task, gold, trajectory, artifacts, deadline_s)
    for _ in range(retries):
        if not rule_of(verdict.ending).retry:
            break
        verdict = await _attempt(verifier, task, gold, trajectory, artifacts, deadline_s)
    if verdict.ending in (Ending.VERIFIER_ERROR, Ending.WALL_TIME_MACHINE) and trajectory.reply.text != NEUTRAL_REPLY:
        control = await _attempt(verifier, task, gold, with_reply(trajectory, NEUTRAL_REPLY), artifacts, deadline_s)
        if control.outcome is not Outcome.UNDECIDED:
            verdict = replace(
                verdict,
                reason=f"{verdict.reason}; a neutral reply got a verdict",
                ending=Ending.VERIFIER_PROVOKED,
                flags=(*verdict.flags, PROVOKED_FLAG),
                evidence={**verdict.evidence, "reply": shown(trajectory.reply.text)},
            )
    return replace(verdict, duration_s=time.perf_counter() - started)


async def _attempt(
    verifier: Verifier,
    task: Task,
    gold: Gold,
    trajectory: Trajectory,
    artifacts: Artifacts,
    deadline_s: float,
) -> Verdict:
    timer = asyncio.timeout(deadline_s)
    verdict = await contained(_within(timer, verifier.verify(task, gold, trajectory, artifacts)))
    if isinstance(verdict, Verdict):
        return verdict
    if timer.expired():
        found = undecided(f"no verdict within {deadline_s:g} s", Ending.WALL_TIME_MACHINE)
    elif isinstance(verdict, Exception):
        found = fault(verdict, trajectory.reply.text, provoked=False)
    else:
        found = undecided(f"the verifier returned a {type(verdict).__name__}, not a verdict", Ending.VERIFIER_ERROR)
    return found.signed(verifier.name, verifier.version)


async def _within(timer: asyncio.Timeout, verdict: Awaitable[object]) -> object:
    async with timer:
        return await verdict
