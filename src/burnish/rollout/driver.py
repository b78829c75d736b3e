"""Runs tasks: environment and engine take turns, a verifier judges, every fault is typed.

    Task -> (Environment x RolloutEngine) -> Trajectory + Artifacts -> Verifier(Gold) -> Verdict

A group's samples share the first prompt, which the engine computes once. The sampled ids go into the
trajectory as they are; text that the environment adds is encoded and appended, never the other way round.
Leaves out what a verdict is worth in training (`train.grpo`) and in evaluation (`evals`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from burnish.core.errors import BurnishError, FaultBudgetError, TemplateError
from burnish.core.gold import Gold
from burnish.core.outcomes import Ending, Outcome, StopReason, rule_of
from burnish.core.protocols import Completion, Environment, GenerateRequest, RolloutEngine, Sampling, Verifier
from burnish.core.seeds import derive_seed
from burnish.core.types import (
    Artifacts,
    Message,
    Role,
    Task,
    Timing,
    TokenSource,
    TokenUse,
    Trajectory,
    Turn,
)
from burnish.envs.registry import make_environment
from burnish.render.renderer import Fork, Renderer
from burnish.verify.registry import get_verifier
from burnish.verify.runner import DEFAULT_DEADLINE_S, verify_one

log = logging.getLogger(__name__)

MAX_TURNS = 16
"""Policy turns in one episode before it is ended as truncated; single-turn tasks use one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task to run, with its sealed gold, so many times."""

    task: Task
    gold: Gold
    num_samples: int


@dataclass(slots=True)
class _Episode:
    """One sample in the making."""

    index: int
    seed: int
    environment: Environment
    ids: list[NDArray[np.int32]]
    source: list[int]  # one TokenSource for each piece of ids
    logp: list[NDArray[np.float64]]
    logp_unfiltered: list[NDArray[np.float64]]
    version: list[int]
    turns: list[Turn]
    messages: list[Message]
    completion: Completion | None = None
    ending: Ending = Ending.VERIFIED
    note: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(len(piece) for piece in self.ids)

    def append(self, ids: NDArray[np.int32], source: TokenSource, role: Role, completion: Completion | None) -> None:
        start = self.num_tokens
        nothing = np.full(len(ids), np.nan)
        self.ids.append(ids)
        self.source.append(source)
        self.logp.append(nothing if completion is None else completion.logp)
        self.logp_unfiltered.append(nothing if completion is None else completion.logp_unfiltered)
        self.version.append(-1 if completion is None else completion.policy_version)
        self.turns.append(Turn(start, start + len(ids), role, completion is not None))


class Driver:
    """Runs jobs on one engine.

    `on_done` is called with (done, total) trajectories as they end. `deadline_s` bounds one verification.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        renderer: Renderer,
        *,
        run_seed: int,
        deadline_s: float = DEFAULT_DEADLINE_S,
        verifiers: Mapping[str, Verifier] | None = None,
        on_done: Callable[[int, int], None] | None = None,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.run_seed = run_seed
        self.verify_s = 0.0
        self._deadline_s = deadline_s
        self._verifiers: dict[str, Verifier] = dict(verifiers or {})
        self.on_done = on_done

    async def run(self, jobs: Sequence[Job], sampling: Sampling, *, stage: str, step: int) -> list[list[Trajectory]]:
        """Trajectories with their main verdict, one list for each job, in order.

        Seeds come from (run seed, stage, step, task, sample), so no schedule changes them.

        Raises: BurnishError where the request itself is wrong (a prompt that does not fit, an unknown
        verifier or environment); faults of environments, engines and verifiers become verdicts.
        """
        total = sum(job.num_samples for job in jobs)
        done = 0

        async def one(job: Job) -> list[Trajectory]:
            nonlocal done
            group = await self._group(job, sampling, stage, step)
            done += len(group)
            if self.on_done is not None:
                self.on_done(done, total)
            return group

        tasks = [asyncio.ensure_future(one(job)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def verifier(self, name: str) -> Verifier:
        """The verifier of that name: as given to this driver, else the registered one."""
        if name not in self._verifiers:
            self._verifiers[name] = get_verifier(name)
        return self._verifiers[name]

    # --- one group ----------------------------------------------------------------------------------

    async def _group(self, job: Job, sampling: Sampling, stage: str, step: int) -> list[Trajectory]:
        task = job.task
        verifier = self.verifier(task.verifier)
        seeds = {i: derive_seed(self.run_seed, "sample", stage, step, task.id, i) for i in range(job.num_samples)}
        played = await self._episodes(task, sampling, seeds)
        failed = {i: seeds[i] for i, (episode, _) in played.items() if rule_of(episode.ending).retry}
        if failed:  # an environment or engine that failed once is asked once more
            played |= await self._episodes(task, sampling, failed)
        out = []
        for episode, artifacts in played.values():
            trajectory = self._trajectory(task, episode)
            out.append(await self._judge(verifier, task, job.gold, trajectory, artifacts))
        return out

    async def _episodes(
        self, task: Task, sampling: Sampling, seeds: Mapping[int, int]
    ) -> dict[int, tuple[_Episode, Artifacts]]:
        """One episode for each (sample, seed), played to its end, with what its environment leaves; by sample."""
        episodes = [
            _Episode(i, seed, make_environment(task.env), [], [], [], [], [], [], []) for i, seed in seeds.items()
        ]
        ready = [episode for episode in episodes if await self._reset(task, episode)]
        first = [episode for episode in ready if episode.num_tokens]
        shared = all(np.array_equal(e.ids[0], first[0].ids[0]) for e in first)
        if shared and first:
            await self._generate(task, first, sampling, turn=0)
        else:
            await asyncio.gather(*(self._generate(task, [e], sampling, turn=0) for e in first))
        await asyncio.gather(*(self._play(task, e, sampling) for e in first if e.completion is not None))
        return {episode.index: (episode, await self._finish(episode)) for episode in episodes}

    async def _reset(self, task: Task, episode: _Episode) -> bool:
        try:
            step = await episode.environment.reset(task, episode.seed)
        except Exception as error:
            self._fault(episode, Ending.ENVIRONMENT_ERROR, f"reset: {type(error).__name__}: {error}")
            return False
        episode.messages = list(step.messages)
        rendered = self.renderer.prompt(step.messages, task.tools)
        episode.append(rendered.ids, TokenSource.PROMPT, Role.USER, None)
        return True

    async def _generate(self, task: Task, episodes: Sequence[_Episode], sampling: Sampling, turn: int) -> None:
        """One policy turn for episodes that stand at the same ids."""
        ids = np.concatenate(episodes[0].ids)
        seeds = tuple(e.seed if turn == 0 else derive_seed(e.seed, "turn", turn) for e in episodes)
        request = GenerateRequest(f"{task.id}/{episodes[0].index}/{turn}", ids, sampling, seeds)
        try:
            async for completion in self.engine.generate(request):
                episode = episodes[completion.index]
                episode.append(completion.ids, TokenSource.SAMPLED, Role.ASSISTANT, completion)
                episode.completion = completion
        except BurnishError as error:
            if error.exit_code == 2:
                raise
            for episode in episodes:
                self._fault(episode, Ending.ENGINE_ERROR, str(error))

    async def _play(self, task: Task, episode: _Episode, sampling: Sampling) -> None:
        """Let the environment answer until it is done, or the policy can go no further."""
        for turn in range(1, MAX_TURNS + 1):
            completion = episode.completion
            if completion is None or episode.ending is not Ending.VERIFIED:
                return
            message, state = self.renderer.parse_reply(completion.text)
            episode.turns[-1] = replace(episode.turns[-1], parse_state=state)
            cut = completion.stop_reason in (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
            try:
                step = await episode.environment.step(message)
            except Exception as error:
                self._fault(episode, Ending.ENVIRONMENT_ERROR, f"step {turn}: {type(error).__name__}: {error}")
                return
            if step.done or cut or turn == MAX_TURNS:
                if cut or not step.done:
                    episode.ending = Ending.TRUNCATED
                return
            before = (*episode.messages, message)
            try:
                extension = self.renderer.extend(np.concatenate(episode.ids), before, step.messages, task.tools)
            except TemplateError as error:  # the template refuses what the policy said
                self._fault(episode, Ending.ENVIRONMENT_ERROR, error.what)
                return
            if isinstance(extension, Fork):
                # The template rewrites earlier turns: what was sampled can not be a prefix of what follows.
                self._fault(episode, Ending.ENVIRONMENT_ERROR, f"the template rewrites earlier turns: {extension}")
                return
            if episode.num_tokens + len(extension.ids) >= self.engine.capabilities().max_context_tokens:
                episode.ending = Ending.TRUNCATED  # the policy has no room left to answer
                return
            episode.messages = [*before, *step.messages]
            episode.append(extension.ids, TokenSource.INJECTED, Role.TOOL, None)
            episode.completion = None
            await self._generate(task, [episode], sampling, turn)

    async def _finish(self, episode: _Episode) -> Artifacts:
        artifacts = Artifacts()
        try:
            if episode.ending in (Ending.VERIFIED, Ending.TRUNCATED):
                artifacts = await episode.environment.finish()
            await episode.environment.close()
        except Exception as error:
            self._fault(episode, Ending.ENVIRONMENT_ERROR, f"finish: {type(error).__name__}: {error}")
        return artifacts

    def _fault(self, episode: _Episode, ending: Ending, note: str) -> None:
        log.warning("sample %d: %s: %s", episode.index, ending, note)
        episode.ending, episode.note = ending, note

    def _trajectory(self, task: Task, episode: _Episode) -> Trajectory:
        lengths = [len(piece) for piece in episode.ids]
        source = np.repeat(np.array(episode.source, dtype=np.uint8), lengths)
        use = np.full(len(source), TokenUse.TRAINED, np.uint8)
        use[source == TokenSource.PROMPT] = TokenUse.IS_PROMPT
        use[source == TokenSource.INJECTED] = TokenUse.IS_INJECTED
        text = "" if episode.completion is None else episode.completion.text
        reason = StopReason.ERROR if episode.completion is None else episode.completion.stop_reason
        message, _ = self.renderer.parse_reply(text)
        return Trajectory(
            id=f"{task.id}-{episode.seed:016x}",
            task_id=task.id,
            domain=task.domain,
            cluster=task.cluster,
            sample=episode.index,
            seed=episode.seed,
            ids=_joined(episode.ids, np.int32),
            source=source,
            use=use,
            logp_rollout=_joined(episode.logp, np.float64),
            logp_unfiltered=_joined(episode.logp_unfiltered, np.float64),
            policy_version=np.repeat(np.array(episode.version, dtype=np.int32), lengths),
            turns=tuple(episode.turns),
            reply=message,
            reply_text=text,
            stop_reason=reason,
            ending=episode.ending,
            note=episode.note,
            timing=Timing() if episode.completion is None else episode.completion.timing,
        )

    async def _judge(
        self, verifier: Verifier, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts
    ) -> Trajectory:
        began = time.monotonic()
        verdict = await verify_one(verifier, task, gold, trajectory, artifacts, deadline_s=self._deadline_s)
        self.verify_s += time.monotonic() - began
        judged = trajectory.with_verdict("main", verdict)
        return judged.masked(TokenUse.UNDECIDED) if verdict.outcome is Outcome.UNDECIDED else judged


def check_fault_budget(groups: Sequence[Sequence[Trajectory]], max_undecided_frac: float, *, where: str) -> float:
    """Share of undecided trajectories.

    Raises: FaultBudgetError beyond the bound, with the commonest reason.
    """
    flat = [trajectory for group in groups for trajectory in group]
    undecided = [t for t in flat if t.main is not None and t.main.outcome is Outcome.UNDECIDED]
    share = len(undecided) / len(flat) if flat else 0.0
    if share > max_undecided_frac:
        reasons = [t.main.reason for t in undecided if t.main is not None]
        commonest = max(set(reasons), key=reasons.count)
        raise FaultBudgetError(
            f"{len(undecided)} of {len(flat)} verdicts are undecided ({share:.1%}, bound "
            f"{max_undecided_frac:.1%}); most often: {commonest}",
            where=where,
            fix="mend the verifier, environment or engine, or raise faults.max_undecided_frac",
        )
    return share


def _joined(pieces: Sequence[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.zeros(0, dtype)
