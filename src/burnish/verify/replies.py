"""Texts that no policy sampled, as tasks and trajectories: cases, files of replies, controls.

Leaves out anything with tokens: the arrays are empty, and nothing made here is ever trained on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from burnish.core.outcomes import Ending, StopReason
from burnish.core.types import Message, Role, Split, Task, ToolSpec, Trajectory


def bare_task(verifier: str, prompt: str | tuple[Message, ...] = "", tools: tuple[ToolSpec, ...] = ()) -> Task:
    """A task for a reply that comes without one."""
    return Task.create(
        (Message.of(Role.USER, prompt),) if isinstance(prompt, str) else prompt,
        env="single_turn",
        verifier=verifier,
        domain="adhoc",
        split=Split.DEVELOPMENT,
        cluster="adhoc",
        source="adhoc",
        licence="",
        tools=tools,
    )


def reply_trajectory(task: Task, reply: str) -> Trajectory:
    """A trajectory without tokens that ends in this reply."""
    floats = np.zeros(0, np.float64)
    return Trajectory(
        id=f"{task.id}-reply",
        task_id=task.id,
        domain=task.domain,
        cluster=task.cluster,
        sample=0,
        seed=0,
        ids=np.zeros(0, np.int32),
        source=np.zeros(0, np.uint8),
        use=np.zeros(0, np.uint8),
        logp_rollout=floats,
        logp_unfiltered=floats.copy(),
        policy_version=np.zeros(0, np.int32),
        turns=(),
        reply=Message.of(Role.ASSISTANT, reply),
        reply_text=reply,
        stop_reason=StopReason.STOP_TOKEN,
    )


def with_reply(trajectory: Trajectory, reply: str) -> Trajectory:
    """The same trajectory as if it had ended in this reply."""
    return replace(
        trajectory,
        turns=(),
        reply=Message.of(Role.ASSISTANT, reply),
        reply_text=reply,
        ending=Ending.VERIFIED,
        verdicts={},
    )
