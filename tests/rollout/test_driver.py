"""The driver: every fault typed, sampled tokens kept as they are, several turns, seeds from counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import FaultBudgetError, RunError
from burnish.core.outcomes import Ending, Outcome, StopReason
from burnish.core.protocols import Completion, GenerateRequest, Sampling, Step
from burnish.core.types import Artifacts, Message, Role, Split, Task, TokenSource, TokenUse, ToolSpec, Trajectory
from burnish.envs import registry as environments
from burnish.models.load import load_transformers
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import load_tokenizer
from burnish.rollout.driver import Driver, Job, check_fault_budget
from burnish.rollout.engine_local import LocalEngine
from burnish.verify.functions import FunctionVerifier
from toy_domain import Toy


@pytest.fixture(scope="module")
def parts(tiny_folder: Path) -> tuple[LocalEngine, Renderer]:
    tokenizer = load_tokenizer(tiny_folder)
    return LocalEngine(load_transformers(tiny_folder), tokenizer), Renderer(tokenizer)


def jobs(count: int, samples: int, env: str = "single_turn") -> list[Job]:
    return [Job(replace(e.task, env=env), e.gold, samples) for e in Toy().generate(Split.TRAIN, count, 3)]


def play(driver: Driver, work: list[Job], max_tokens: int = 8) -> list[list[Trajectory]]:
    return asyncio.run(driver.run(work, Sampling(max_tokens), stage="t", step=1))


class EchoTwice:
    """Answers twice, then ends."""

    def __init__(self) -> None:
        self.turns = 0

    async def reset(self, task: Task, seed: int) -> Step:
        return Step(task.prompt)

    async def step(self, message: Message) -> Step:
        self.turns += 1
        return Step(done=True) if self.turns > 2 else Step((Message.of(Role.USER, f"again {self.turns}"),))

    async def finish(self) -> Artifacts:
        return Artifacts(state={"turns": self.turns})

    async def close(self) -> None:
        return None


class Breaks(EchoTwice):
    """Raises in the part that a test names."""

    part = "step"

    async def reset(self, task: Task, seed: int) -> Step:
        if self.part == "reset":
            raise ConnectionError("the tool server is away")
        return await super().reset(task, seed)

    async def step(self, message: Message) -> Step:
        if self.part == "step":
            raise ConnectionError("the tool server is away")
        return Step(done=True)

    async def finish(self) -> Artifacts:
        if self.part == "finish":
            raise ConnectionError("the tool server is away")
        return Artifacts()


class FailingEngine:
    """An engine that is down."""

    def __init__(self, inner: LocalEngine) -> None:
        self._inner = inner

    def capabilities(self) -> Any:
        return self._inner.capabilities()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Completion]:
        raise RunError("connection refused")
        yield


def test_a_tasks_tools_are_in_its_prompt(parts: tuple[LocalEngine, Renderer]) -> None:
    engine, renderer = parts
    tool = ToolSpec("clock", "The time.", {"type": "object", "properties": {}})
    (job,) = jobs(1, 2)
    with_tool = replace(job, task=replace(job.task, tools=(tool,)))
    (group,) = play(Driver(engine, renderer, run_seed=1), [with_tool])
    for trajectory in group:
        prompt = trajectory.ids[trajectory.source == TokenSource.PROMPT]
        assert np.array_equal(prompt, renderer.prompt(job.task.prompt, (tool,)).ids)
        assert "clock" in renderer.tokenizer.decode(prompt.tolist())


def test_groups_share_their_prompt_and_keep_what_was_sampled(parts: tuple[LocalEngine, Renderer]) -> None:
    engine, renderer = parts
    seen: list[Completion] = []
    original = engine._completion

    def spy(*arguments: Any) -> Completion:
        seen.append(original(*arguments))
        return seen[-1]

    engine._completion = spy  # type: ignore[method-assign]
    computed = engine.decoder.num_computed_tokens
    work = jobs(3, 4)
    groups = play(Driver(engine, renderer, run_seed=5), work)
    del engine._completion  # type: ignore[method-assign]
    prompts = [len(renderer.prompt(j.task.prompt).ids) for j in work]
    assert engine.decoder.num_computed_tokens - computed <= sum(prompts)
    sampled = sorted(tuple(c.ids.tolist()) for c in seen)
    stored = sorted(tuple(t.ids[t.source == TokenSource.SAMPLED].tolist()) for g in groups for t in g)
    assert stored == sampled
    for group, job in zip(groups, work, strict=True):
        for t in group:
            assert t.task_id == job.task.id
            assert np.isfinite(t.logp_rollout[t.source == TokenSource.SAMPLED]).all()
            assert np.isnan(t.logp_rollout[t.source != TokenSource.SAMPLED]).all()
            assert (t.policy_version[t.source == TokenSource.SAMPLED] == engine.version).all()
            assert t.verdicts["main"].outcome is (Outcome.PASS if len(t.reply_text) % 2 == 0 else Outcome.FAIL)


def test_the_same_counters_give_the_same_replies(parts: tuple[LocalEngine, Renderer]) -> None:
    driver = Driver(*parts, run_seed=5)
    together = play(driver, jobs(4, 2))
    apart = [play(driver, [job])[0] for job in jobs(4, 2)]
    assert [[t.ids.tolist() for t in g] for g in together] == [[t.ids.tolist() for t in g] for g in apart]
    other = play(Driver(*parts, run_seed=6), jobs(4, 2))
    assert [[t.ids.tolist() for t in g] for g in together] != [[t.ids.tolist() for t in g] for g in other]


class ScriptedEngine(FailingEngine):
    """Says the same words each time, and ends its turn."""

    def __init__(self, inner: LocalEngine, renderer: Renderer) -> None:
        super().__init__(inner)
        self.ids = np.array([*renderer.tokenizer.encode("hello there"), 2], np.int32)
        self.prompts: list[list[int]] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Completion]:
        for index in range(len(request.seeds)):
            self.prompts.append(request.ids.tolist())
            logp = np.full(len(self.ids), -0.5)
            yield Completion(request.request_id, index, self.ids, logp, logp, "hello there", StopReason.STOP_TOKEN, 7)


def test_several_turns(parts: tuple[LocalEngine, Renderer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.ENVIRONMENTS, "echo", EchoTwice)
    _, renderer = parts
    engine = ScriptedEngine(*parts)
    (group,) = play(Driver(engine, renderer, run_seed=5), jobs(1, 2, "echo"))  # type: ignore[arg-type]
    for t in group:
        assert t.ending is Ending.VERIFIED
        assert [turn.sampled for turn in t.turns] == [False, True, False, True, False, True]
        for turn in (turn for turn in t.turns if turn.sampled):
            assert t.ids[turn.start : turn.end].tolist() == engine.ids.tolist()
        injected = renderer.tokenizer.decode(t.ids[t.source == TokenSource.INJECTED].tolist())
        assert "again 1" in injected
        assert "again 2" in injected
        assert (t.use[t.source == TokenSource.INJECTED] == TokenUse.IS_INJECTED).all()
        # What the third turn was sampled from is exactly the stored prefix, and is the full rendering.
        assert t.ids[: t.turns[-1].start].tolist() in engine.prompts
        said = Message.of(Role.ASSISTANT, "hello there")
        task = jobs(1, 1)[0].task
        talk = [*task.prompt, said, Message.of(Role.USER, "again 1"), said, Message.of(Role.USER, "again 2")]
        assert t.ids[: t.turns[-1].start].tolist() == renderer.prompt(talk).ids.tolist()


class FailsOnce(EchoTwice):
    """Away when it is first asked."""

    asked = 0

    async def reset(self, task: Task, seed: int) -> Step:
        FailsOnce.asked += 1
        if FailsOnce.asked == 1:
            raise ConnectionError("the tool server is away")
        return await super().reset(task, seed)


def test_an_environment_that_failed_once_is_asked_once_more(
    parts: tuple[LocalEngine, Renderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environments.ENVIRONMENTS, "fails_once", FailsOnce)
    (group,) = play(Driver(ScriptedEngine(*parts), parts[1], run_seed=1), jobs(1, 3, "fails_once"))  # type: ignore[arg-type]
    assert [t.sample for t in group] == [0, 1, 2]
    assert all(t.ending is Ending.VERIFIED for t in group)
    assert FailsOnce.asked == 4


class Verbose(EchoTwice):
    """Answers at such length that the context is full."""

    async def step(self, message: Message) -> Step:
        return Step((Message.of(Role.USER, "and again " * 3_000),))


def test_a_conversation_that_outgrows_the_context_is_cut(
    parts: tuple[LocalEngine, Renderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environments.ENVIRONMENTS, "verbose", Verbose)
    engine = ScriptedEngine(*parts)
    ((cut,),) = play(Driver(engine, parts[1], run_seed=1), jobs(1, 1, "verbose"))  # type: ignore[arg-type]
    assert cut.ending is Ending.TRUNCATED
    assert cut.main is not None
    assert cut.main.outcome is not Outcome.UNDECIDED
    assert len(engine.prompts) == 1


@pytest.mark.parametrize("part", ["reset", "step", "finish"])
def test_a_fault_of_the_environment_is_never_a_zero(
    parts: tuple[LocalEngine, Renderer], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(Breaks, "part", part)
    monkeypatch.setitem(environments.ENVIRONMENTS, "breaks", Breaks)
    (group,) = play(Driver(*parts, run_seed=5), jobs(1, 2, "breaks"))
    for t in group:
        verdict = t.verdicts["main"]
        assert verdict.outcome is Outcome.UNDECIDED
        assert verdict.score is None
        assert verdict.ending is Ending.ENVIRONMENT_ERROR
        assert "tool server is away" in t.note
        assert t.num_trained == 0
    with pytest.raises(FaultBudgetError, match="2 of 2 verdicts"):
        check_fault_budget([group], 0.05, where="a test")


def test_a_fault_of_the_engine_is_never_a_zero(parts: tuple[LocalEngine, Renderer]) -> None:
    engine, renderer = parts
    driver = Driver(FailingEngine(engine), renderer, run_seed=5)  # type: ignore[arg-type]
    (group,) = play(driver, jobs(1, 2))
    for t in group:
        assert t.verdicts["main"].outcome is Outcome.UNDECIDED
        assert t.verdicts["main"].ending is Ending.ENGINE_ERROR


def test_a_verifier_that_raises_leaves_reward_and_training(parts: tuple[LocalEngine, Renderer]) -> None:
    def broken(reply: str, gold: str) -> float:
        raise ZeroDivisionError("by the verifier's own fault")

    driver = Driver(*parts, run_seed=5, verifiers={Toy.verifier: FunctionVerifier(broken)})
    (group,) = play(driver, jobs(1, 3))
    assert all(t.verdicts["main"].outcome is Outcome.UNDECIDED and t.num_trained == 0 for t in group)
    assert check_fault_budget([group], 1.0, where="a test") == 1.0
