"""Environments by name, the single-turn episode, and the conformance suite against sound and faulty ones."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from burnish.core.errors import ConfigError
from burnish.core.gold import Gold
from burnish.core.protocols import Environment, Step
from burnish.core.types import Artifacts, Message, Role, Split, Task
from burnish.envs import SingleTurn, check_environment, environment_names, make_environment

TASK = Task.create(
    (Message.of(Role.USER, "What is 2 + 2?"),),
    env="single_turn",
    verifier="exact",
    domain="sums",
    split=Split.TRAIN,
    cluster="c",
    source="test",
    licence="CC0-1.0",
)


class Leaky(SingleTurn):
    """Holds gold where an honest environment has none."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = {"answer": [Gold.seal("4")]}


class Moody(SingleTurn):
    """Says something else each time."""

    moods = itertools.count()

    async def reset(self, task: Task, seed: int) -> Step:
        await super().reset(task, seed)
        return Step((Message.of(Role.USER, f"mood {next(self.moods)}"),))


class Endless(SingleTurn):
    """Never done, and speaks as the model."""

    async def step(self, message: Message) -> Step:
        return Step((Message.of(Role.ASSISTANT, "I said so"),))


class Blocking:
    """Has plain functions where coroutines are promised."""

    def reset(self, task: Task, seed: int) -> Step:
        return Step()

    def step(self, message: Message) -> Step:
        return Step(done=True)

    def finish(self) -> Artifacts:
        return Artifacts()

    def close(self) -> None:
        return None


class GoldTaking(SingleTurn):
    """Asks for gold in `reset`."""

    async def reset(self, task: Task, seed: int, gold: Gold | None = None) -> Step:
        return await super().reset(task, seed)


def broken_rules(make: type) -> set[str]:
    return {v.rule for v in asyncio.run(check_environment(make, [TASK], ["4", "5"], seed=3))}


def test_single_turn_conforms() -> None:
    assert broken_rules(SingleTurn) == set()


@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (Leaky, {"no_gold"}),
        (Moody, {"deterministic"}),
        (Endless, {"ends", "messages_only"}),
        (Blocking, {"protocol"}),
        (GoldTaking, {"protocol"}),
    ],
)
def test_conformance_names_the_broken_rule(make: type, rules: set[str]) -> None:
    assert broken_rules(make) == rules


def test_single_turn_gives_the_prompt_and_ends_after_one_reply() -> None:
    async def episode() -> None:
        environment = make_environment("single_turn")
        assert (await environment.reset(TASK, 1)).messages == TASK.prompt
        assert await environment.step(Message.of(Role.ASSISTANT, "4")) == Step(done=True)
        assert await environment.finish() == Artifacts()
        with pytest.raises(RuntimeError, match="call reset first"):
            await environment.step(Message.of(Role.ASSISTANT, "4"))
        await environment.close()

    asyncio.run(episode())


def test_names_and_module_paths() -> None:
    assert "single_turn" in environment_names()
    made = make_environment("burnish.envs.single_turn:SingleTurn")
    assert isinstance(made, SingleTurn)
    assert isinstance(made, Environment)
    assert make_environment("single_turn") is not make_environment("single_turn")


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("single_trun", "unknown environment 'single_trun'", "write 'single_turn'"),
        ("qqq", "unknown environment 'qqq'", "choose a known one"),
        ("burnish.envs:Nothing", "cannot be imported", "importable module:Class"),
        ("no_such_module:Thing", "cannot be imported", "importable module:Class"),
        ("builtins:dict", "which is no environment", "coroutines"),
        ("sys:maxsize", "is not callable", "name a class"),
    ],
)
def test_bad_names_say_what_and_how_to_fix(name: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_environment(name)
    assert what in caught.value.what
    assert fix in caught.value.fix
