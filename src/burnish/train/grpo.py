"""Reinforcement learning with verifiable rewards: one readable loop.

    draw prompts -> sample groups -> verify -> drop groups without variance, draw again -> advantages
      -> loss over the tokens of the whole step -> clip -> step -> sync the sampler and prove it

Prompts are fresh tasks of the training split: the verifier is needed, labels are not. Everything random
follows from (seed, stage, step), so a resumed stage draws what the uninterrupted one would have drawn.

Source: group-relative advantages: Shao et al. 2024, arXiv 2402.03300; token and constant normalisation:
DAPO, arXiv 2503.14476, and Dr. GRPO, arXiv 2503.20783; drawing again for groups without variance: DAPO
section 3.2.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from burnish.core.errors import RefusedError
from burnish.core.outcomes import OUTCOME_TABLE, Outcome
from burnish.core.seeds import derive_seed
from burnish.core.types import Split, TokenUse, Trajectory
from burnish.domains.base import Domain, Example
from burnish.evals.passk import pass_at_k
from burnish.models.policy import Policy
from burnish.objectives.advantages import grpo_advantages
from burnish.objectives.grpo import GRPO
from burnish.objectives.rehearsal import Rehearsal
from burnish.observe import events
from burnish.observe.trajectories import TrajectoryWriter
from burnish.rollout.driver import Job, check_fault_budget
from burnish.train.backend import LocalBackend, StepOutput, TrainSequence, step_denominators
from burnish.train.best import Progression
from burnish.train.context import Context, length_metrics
from burnish.train.geometry import REPLAYED_A_STEP
from burnish.train.recipe_stages import GrpoStage
from burnish.train.replay import replay_sequences, rows_of_step, with_reference
from burnish.train.reward import describe_reward, reward_of
from burnish.train.schedule import Schedule

_NORMALISATION = {"grpo": ("std", "sequence"), "dr_grpo": ("none", "constant"), "dapo": ("std", "token")}
"""Recipe name -> (division of the advantage, reduction of the loss); see `objectives.grpo`."""

PROBE_PROMPTS = 32
"""Training prompts on which success is measured before the stage: 32 with none solved put the 95 % upper
bound of the solvable share at 9 % (1 - 0.05 ** (1/32))."""


def make_grpo(stage: GrpoStage) -> GRPO:
    """The objective that a stage's keys name."""
    return GRPO(
        clip_low=stage.clip_low,
        clip_high=stage.clip_high,
        normalisation=_NORMALISATION[stage.normalisation][1],  # type: ignore[arg-type]
        updates_per_step=stage.updates_per_step,
        kl_coefficient=stage.kl_coefficient or None,
        kl_estimator=stage.kl_estimator if stage.kl_coefficient else None,
        entropy_coefficient=stage.entropy_coefficient or None,
    )


def describe_grpo(stage: GrpoStage) -> str:
    """The loss of a stage as text, with the reward where it is more than the score, and what is rehearsed."""
    lines = [make_grpo(stage).describe()]
    if stage.partial_credit:
        lines.append(f"reward = {describe_reward(stage.partial_credit)}")
    if stage.replay_rows:
        lines.append(f"and {Rehearsal(stage.replay_coefficient).describe()}")
    return "\n".join(lines)


@dataclass(slots=True)
class Draws:
    """The groups of one step: all that were sampled, and those whose rewards differ."""

    partial_credit: Mapping[str, float] = field(default_factory=dict)
    groups: list[list[Trajectory]] = field(default_factory=list)
    useful: list[int] = field(default_factory=list)

    def add(self, groups: Sequence[list[Trajectory]]) -> None:
        """Append groups."""
        for group in groups:
            rewards = {reward_of(t, self.partial_credit) for t in group}
            if len({reward for reward in rewards if math.isfinite(reward)}) > 1:
                self.useful.append(len(self.groups))
            self.groups.append(list(group))


async def run_grpo(
    context: Context,
    stage: GrpoStage,
    name: str,
    backend: LocalBackend,
    reference: Policy | None,
) -> Progression:
    """Train; the policy ends as the best point on the development set (or the last, without evaluations).

    Raises: RefusedError where the parent almost never succeeds; FaultBudgetError; PolicyMismatchError;
    NonFiniteError.
    """
    objective = make_grpo(stage)
    schedule = Schedule(stage.lr, stage.steps, warmup_steps=stage.warmup_steps, decay=stage.schedule)
    progression = Progression(context, backend, name)
    # Before anything moves the policy, in a resumed stage too: the replayed talk is the parent's.
    talk = with_reference(backend, await replay_sequences(context, backend, name, stage.replay_rows, context.sampling))
    start = progression.resume()
    await context.sync(backend.policy, stage=name, step=start)
    if start == 0:
        await refuse_hopeless(context, stage, name)
        if stage.evaluate_every_steps:
            await progression.consider(0)
    for step in range(start, stage.steps):
        started = time.monotonic()
        draws = await _draw(context, stage, name, step)
        rollout_s = time.monotonic() - started
        undecided = check_fault_budget(
            draws.groups, context.recipe.faults.max_undecided_frac, where=f"stage {name}, step {step + 1}"
        )
        kept = [draws.groups[i] for i in draws.useful[: stage.prompts_per_step]]
        sequences, use = build_sequences(kept, stage)
        metrics = rollout_metrics(draws, use, rollout_s) | {"undecided_frac": undecided}
        _store(context, name, step, draws.groups)
        if sequences:
            train_began = time.monotonic()
            lr = schedule.at(step)
            rows = rows_of_step(context.recipe.seed, name, step, max(1, len(talk) // REPLAYED_A_STEP), len(talk))
            metrics |= _update(context, stage, backend, objective, sequences, reference, lr, [talk[i] for i in rows])
            metrics["train_s"] = time.monotonic() - train_began
            sync_began = time.monotonic()
            await context.sync(backend.policy, stage=name, step=step + 1)
            metrics["sync_s"] = time.monotonic() - sync_began
        else:
            context.warn("no group had variance: nothing was trained in this step", stage=name, step=step + 1)
        metrics["step_s"] = time.monotonic() - started
        context.emit(events.StepMetrics(name, step + 1, {k: float(v) for k, v in (metrics | context.memory()).items()}))
        context.emit(events.Progress(name, "training", step + 1, stage.steps, "steps"))
        every, late = stage.evaluate_every_steps, context.out_of_time()
        if every and ((step + 1) % every == 0 or step + 1 == stage.steps or late):
            await progression.consider(step + 1)
        if late and step + 1 < stage.steps:
            context.warn("limits.max_seconds is used up; the stage ends here", stage=name, step=step + 1)
            break
        progression.save_if_due(step + 1)
    progression.take_best()
    return progression


def training_prompts(domains: Sequence[Domain], run_seed: int, count: int, *counters: int | str) -> list[Example]:
    """Fresh training tasks, the domains in turn; a function of (run seed, counters), a smaller count a prefix.

    Which domain comes first is drawn too, so that none is always left out where few are wanted. A domain with an end
    (`Domain.limit`) gives what it has; `prepare` has checked that a step's worth is there.
    """
    share = -(-count // len(domains))
    drawn = []
    for domain in domains:
        limit = domain.limit(Split.TRAIN)
        size = share if limit is None else min(share, limit)
        seed = derive_seed(run_seed, "prompts", domain.name, *counters)
        drawn.append(domain.generate(Split.TRAIN, size, seed))
    first = derive_seed(run_seed, "first domain", *counters) % len(drawn)
    rows = itertools.zip_longest(*drawn[first:], *drawn[:first])
    return [example for row in rows for example in row if example is not None][:count]


def redraw_prompts(
    domains: Sequence[Domain], run_seed: int, name: str, step: int, wanted: set[str], most: int
) -> list[Example]:
    """The tasks of a stored step again, by their ids: drawn from the same counters, at most `most` an attempt."""
    found: list[Example] = []
    missing, attempt = set(wanted), 0
    while missing and attempt <= most:
        for example in training_prompts(domains, run_seed, most, name, step, attempt):
            if example.task.id in missing:
                missing.discard(example.task.id)
                found.append(example)
        attempt += 1
    return found


async def refuse_hopeless(context: Context, stage: GrpoStage, name: str) -> float:
    """Measured pass@k of the parent on training prompts, k the group size.

    Raises: RefusedError below `min_pass_at_k`, with the advice to fine-tune first.
    """
    examples = training_prompts(context.domains, context.recipe.seed, PROBE_PROMPTS, name, "probe")
    jobs = [Job(example.task, example.gold, stage.group_size) for example in examples]
    groups = await context.driver.run(jobs, context.sampling, stage=f"{name}/probe", step=0)
    check_fault_budget(groups, context.recipe.faults.max_undecided_frac, where=f"stage {name}, before step 1")
    decided = [[t.main.outcome for t in g if t.main and t.main.outcome is not Outcome.UNDECIDED] for g in groups]
    counts = [(len(g), sum(o is Outcome.PASS for o in g)) for g in decided if g]
    at_1 = float(np.mean([passed / n for n, passed in counts])) if counts else 0.0
    k = min(stage.group_size, min((n for n, _ in counts), default=1))
    at_k = float(np.mean([pass_at_k(n, passed, k) for n, passed in counts])) if counts else 0.0
    context.emit(events.StepMetrics(name, 0, {"pass_rate": at_1, "pass_at_k": at_k}))
    if at_k < stage.min_pass_at_k:
        raise RefusedError(
            f"the policy solves {at_1:.1%} of {len(counts)} training prompts at once and {at_k:.1%} in {k} tries "
            f"(pass@{k}); {stage.min_pass_at_k:.0%} is needed for reinforcement learning to find anything",
            where=f"stage {name}",
            fix="fine-tune first: put an sft stage with more labels or epochs before it, or choose easier tasks",
        )
    return at_k


async def _draw(context: Context, stage: GrpoStage, name: str, step: int) -> Draws:
    """Sample groups until enough have variance, or the most prompts of a step are drawn.

    Raises: DataError where a prompt shares content with an evaluation set.
    """
    draws, drawn, attempt = Draws(stage.partial_credit), 0, 0
    most = stage.max_prompt_draws or stage.prompts_per_step
    while len(draws.useful) < stage.prompts_per_step and drawn < most:
        # What is still missing, at the rate seen so far (at first: as if every group had variance).
        rate = max(len(draws.useful) / drawn, 0.25) if drawn else 1.0
        want = min(most - drawn, math.ceil((stage.prompts_per_step - len(draws.useful)) / rate))
        examples = training_prompts(context.domains, context.recipe.seed, want, name, step, attempt)
        for example in examples:
            context.contents[example.task.domain].claim(str(Split.TRAIN), (example,))
        context.driver.on_done = context.progress(name, f"sampling, step {step + 1}", "replies")
        jobs = [Job(example.task, example.gold, stage.group_size) for example in examples]
        draws.add(await context.driver.run(jobs, context.sampling, stage=f"{name}/{attempt}", step=step))
        context.driver.on_done = None
        drawn, attempt = drawn + len(examples), attempt + 1
    return draws


def build_sequences(
    groups: Sequence[Sequence[Trajectory]], stage: GrpoStage
) -> tuple[list[TrainSequence], list[TokenUse]]:
    """Trajectories as training sequences with group advantages; undecided ones leave the group's mean.

    Also returns each trajectory's `TokenUse`, in order of groups and samples.
    """
    flat = [(index, t) for index, group in enumerate(groups) for t in group]
    if not flat:
        return [], []
    reward = np.array([reward_of(t, stage.partial_credit) for _, t in flat])
    decided = np.isfinite(reward)
    found = grpo_advantages(
        reward,
        np.array([index for index, _ in flat]),
        decided,
        normalisation=_NORMALISATION[stage.normalisation][0],  # type: ignore[arg-type]
    )
    sequences = []
    for (index, t), advantage, use in zip(flat, found.advantage, found.use, strict=True):
        if use != TokenUse.TRAINED:
            continue
        sequences.append(
            TrainSequence(
                ids=t.ids,
                trained=t.use == TokenUse.TRAINED,
                group=index,
                advantage=float(advantage),
                logp_rollout=t.logp_rollout,
            )
        )
    return sequences, [TokenUse(u) for u in found.use]


def _update(
    context: Context,
    stage: GrpoStage,
    backend: LocalBackend,
    objective: GRPO,
    sequences: list[TrainSequence],
    reference: Policy | None,
    lr: float,
    talk: Sequence[TrainSequence],
) -> dict[str, float]:
    """One set of rollouts (and replayed talk), `updates_per_step` optimiser steps."""
    if reference is not None:
        frozen = LocalBackend(reference, sampling=context.sampling, frozen=True)
        logp_ref = frozen.forward(sequences)
        sequences = [replace(s, logp_ref=values) for s, values in zip(sequences, logp_ref, strict=True)]
    denominators = step_denominators(sequences, max_tokens=context.recipe.sampling.max_tokens)
    output, rehearsed = StepOutput(), StepOutput()
    grad_norm, num_trained = 0.0, 0
    for _ in range(stage.updates_per_step):
        output = backend.forward_backward(sequences, objective, denominators)
        if talk:
            rehearsed = backend.forward_backward(talk, Rehearsal(stage.replay_coefficient), step_denominators(talk))
        grad_norm = backend.optim_step(lr)
        num_trained += output.num_trained_tokens + rehearsed.num_trained_tokens
    metrics = {
        "loss": output.loss + rehearsed.loss,
        "lr": lr,
        "grad_norm": grad_norm,
        "tokens_trained": float(num_trained),
    }
    return metrics | output.metrics | rehearsed.metrics


def rollout_metrics(draws: Draws, use: Sequence[TokenUse], rollout_s: float) -> dict[str, float]:
    """What the step's replies look like, over all groups that were sampled."""
    flat = [t for group in draws.groups for t in group]
    rewards = np.array([reward_of(t, draws.partial_credit) for t in flat])
    rewards = rewards[np.isfinite(rewards)]
    lengths = np.array([t.num_sampled for t in flat if OUTCOME_TABLE[t.ending].in_lengths])
    tokens = int(sum(t.num_sampled for t in flat))
    metrics = {
        "rollout_s": rollout_s,
        "tokens_sampled": float(tokens),
        "tokens_per_s": tokens / rollout_s if rollout_s > 0 else 0.0,
        "prompts_drawn": float(len(draws.groups)),
        "zero_variance_group_frac": 1.0 - len(draws.useful) / max(1, len(draws.groups)),
        "truncated_frac": float(np.mean([t.stop_reason == "max_tokens" for t in flat])) if flat else 0.0,
    }
    if len(rewards):
        passed = [t.main.outcome is Outcome.PASS for t in flat if t.main is not None and t.main.score is not None]
        metrics |= {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "pass_rate": float(np.mean(passed)),
        }
    return metrics | length_metrics(lengths)


def _store(context: Context, name: str, step: int, groups: Sequence[Sequence[Trajectory]]) -> None:
    flat = [trajectory for group in groups for trajectory in group]
    TrajectoryWriter(context.folder.trajectories).write(name, step + 1, flat)
