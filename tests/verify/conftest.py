"""One reply judged synchronously, through the boundary that training uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from burnish.core.gold import Gold
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, ToolSpec, Verdict
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.runner import verify_one


def _judge(
    verifier: Verifier,
    gold: Any,
    reply: str,
    *,
    tools: tuple[ToolSpec, ...] = (),
    deadline_s: float = 5.0,
    retries: int = 0,
) -> Verdict:
    task = bare_task(verifier.name, tools=tools)
    trajectory = reply_trajectory(task, reply)
    return asyncio.run(
        verify_one(verifier, task, Gold.seal(gold), trajectory, Artifacts(), deadline_s=deadline_s, retries=retries)
    )


@pytest.fixture(scope="session")
def judge() -> Callable[..., Verdict]:
    return _judge
