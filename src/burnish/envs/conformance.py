"""The public conformance suite of the `Environment` protocol: run it on your own environment in a test.

It plays each task twice with scripted replies and reports every broken promise. Leaves out what only the
author can judge: whether the episode makes sense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from burnish.core.codec import to_plain
from burnish.core.gold import Gold
from burnish.core.protocols import Environment, Step
from burnish.core.types import Artifacts, Message, Role, Task


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: the rule, and what was seen."""

    rule: str
    seen: str


async def check_environment(
    make: Callable[[], Environment], tasks: Sequence[Task], replies: Sequence[str], *, seed: int = 0
) -> list[Violation]:
    """The promises that environments from `make` break; an empty list means that it conforms.

    Rules: `protocol` (the four coroutines, and reset takes a task and a seed only), `reset_speaks` (reset
    returns messages and is not done), `ends` (done within `len(replies)` steps), `messages_only` (no
    assistant message is put into the model's mouth after reset), `artifacts`, `deterministic` (equal task,
    seed and replies give equal steps and artifacts, also on a reused object), `no_gold` (none reachable from
    the environment or from what it returns), `close` (may be called twice).
    """
    first, second = make(), make()
    found = _check_protocol(first)
    if found:
        return found
    for task in tasks:
        played = await _play(first, task, replies, seed, found)
        fresh = await _play(second, task, replies, seed, [])
        again = await _play(first, task, replies, seed, [])
        if not played == fresh == again:
            found.append(Violation("deterministic", f"task {task.id}: two episodes with seed {seed} differ"))
        if _holds_gold(first, played):
            found.append(Violation("no_gold", f"task {task.id}: gold can be reached from the environment"))
    for environment in (first, second):
        await environment.close()
        await environment.close()
    return found


def _check_protocol(environment: object) -> list[Violation]:
    found = [
        Violation("protocol", f"{name} is not a coroutine function")
        for name in ("reset", "step", "finish", "close")
        if not inspect.iscoroutinefunction(getattr(environment, name, None))
    ]
    if not found:
        parameters = list(inspect.signature(environment.reset).parameters)  # type: ignore[attr-defined]
        if parameters != ["task", "seed"]:
            found.append(Violation("protocol", f"reset takes {parameters}, not ['task', 'seed']"))
    return found


async def _play(
    environment: Environment, task: Task, replies: Sequence[str], seed: int, found: list[Violation]
) -> list[Any]:
    """Every step and the artifacts of one episode, as plain values; rules broken on the way are appended."""
    step = await environment.reset(task, seed)
    if step.done or not step.messages:
        found.append(Violation("reset_speaks", f"task {task.id}: reset returned {step}"))
    record: list[Any] = [to_plain(step)]
    for reply in replies:
        if step.done:
            break
        step = await environment.step(Message.of(Role.ASSISTANT, reply))
        record.append(to_plain(step))
        _check_step(step, task, found)
    if not step.done:
        found.append(Violation("ends", f"task {task.id}: not done after {len(replies)} replies"))
    artifacts: Any = await environment.finish()
    if not isinstance(artifacts, Artifacts):
        found.append(Violation("artifacts", f"task {task.id}: finish returned {type(artifacts).__name__}"))
    record.append(to_plain(artifacts))
    return record


def _check_step(step: Step, task: Task, found: list[Violation]) -> None:
    if any(message.role is Role.ASSISTANT for message in step.messages):
        found.append(Violation("messages_only", f"task {task.id}: a step speaks as the assistant"))


def _holds_gold(*roots: Any) -> bool:
    """Whether gold can be reached through containers and attributes; modules and classes are not entered."""
    pending, seen = list(roots), set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, Gold):
            return True
        if id(value) in seen or isinstance(value, (str, bytes, int, float, type, ModuleType)):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        else:
            slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
            pending += [
                *getattr(value, "__dict__", {}).values(),
                *(getattr(value, name, None) for name in slots),
            ]
    return False
