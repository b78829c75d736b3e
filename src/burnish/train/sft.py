"""Supervised fine-tuning: one readable loop.

    shuffle -> pack -> loss over the tokens of the whole step -> clip -> step -> (evaluate, keep the best)

Shuffling is a function of (seed, stage, epoch), so a step's rows follow from its number alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.core.errors import DataError
from burnish.core.protocols import Sampling
from burnish.core.seeds import generator
from burnish.core.types import TokenUse
from burnish.domains.base import Example
from burnish.domains.guards import replay_examples
from burnish.objectives.sft import SFT
from burnish.observe import events
from burnish.render.renderer import Renderer
from burnish.rollout.driver import Job
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators
from burnish.train.best import Progression
from burnish.train.context import Context
from burnish.train.recipe_stages import SftStage
from burnish.train.schedule import Schedule


@dataclass(frozen=True, slots=True)
class SftLimits:
    """Bounds that are not the recipe's: a control run gets the wall time of the stage it is held against."""

    max_seconds: float | None = None
    max_epochs: int | None = None


def sft_sequences(examples: Sequence[Example], renderer: Renderer, *, max_tokens: int) -> list[TrainSequence]:
    """Demonstrations as sequences, trained on the assistant's tokens and its end token only.

    Raises: DataError where an example has no trained token, or does not fit `max_tokens`.
    """
    sequences = []
    for index, example in enumerate(examples):
        if not example.demonstration.parts:
            raise DataError(
                "this task has no written answer to learn from",
                where=f"task {example.task.id} ({example.task.source})",
                fix="add a `reply` to the row, or leave the sft stage out",
            )
        for rendered in renderer.examples((*example.task.prompt, example.demonstration)):
            trained = rendered.use == TokenUse.TRAINED
            if not trained.any() or len(rendered.ids) > max_tokens:
                raise DataError(
                    f"a demonstration of {len(rendered.ids)} tokens has {int(trained.sum())} to train on "
                    f"(the model takes {max_tokens})",
                    where=f"task {example.task.id}",
                    fix="run `burnish preflight` and mend the row, or leave it out",
                )
            sequences.append(TrainSequence(rendered.ids, trained, group=index))
    return sequences


REPLAY_TOKENS = 96
"""Tokens of a replayed answer: as many as the response-length guard looks at."""


async def replay_sequences(context: Context, backend: LocalBackend, name: str, count: int) -> list[TrainSequence]:
    """The policy's own answers to everyday prompts, token by token as sampled at temperature 1.

    At first their expected gradient is zero (the policy is the minimum of its own cross-entropy), and it pulls
    back as the policy moves: a rehearsal without data. An answer that the limit cut teaches no end token.

    Source: Robins, "Catastrophic forgetting, rehearsal and pseudorehearsal", Connection Science 7 (1995).
    """
    if count == 0:
        return []
    await context.sync(backend.policy, stage=name, step=0)
    jobs = [Job(example.task, example.gold, 1) for example in replay_examples(count)]
    groups = await context.driver.run(jobs, Sampling(REPLAY_TOKENS), stage=f"{name}/replay", step=0)
    return [
        TrainSequence(t.ids, t.use == TokenUse.TRAINED, group=-1 - index)
        for index, (t,) in enumerate(groups)
        if t.num_trained
    ]


async def run_sft(
    context: Context,
    stage: SftStage,
    name: str,
    backend: LocalBackend,
    *,
    limits: SftLimits | None = None,
) -> Progression:
    """Train; the policy ends as the best point on the development set (or the last, without evaluations)."""
    limits = limits or SftLimits()
    sequences = sft_sequences(context.labelled, context.renderer, max_tokens=context.engine.decoder.max_context_tokens)
    sequences += await replay_sequences(context, backend, name, stage.replay_rows)
    per_epoch = max(1, len(sequences) // stage.rows_per_step)
    epochs = limits.max_epochs or stage.epochs
    total = per_epoch * epochs
    schedule = Schedule(stage.lr, total, warmup_steps=round(stage.warmup_frac * total), decay=stage.schedule)
    objective = SFT()
    progression = Progression(context, backend, name)
    start = progression.resume()
    if limits.max_seconds is not None and start == 0:
        await progression.consider(0)  # a control may keep its parent, as the stage it is held against may
    for step in range(start, total):
        started = time.monotonic()
        rows = [sequences[i] for i in _rows_of_step(context.recipe.seed, name, step, per_epoch, len(sequences))]
        output = backend.forward_backward(rows, objective, step_denominators(rows))
        lr = schedule.at(step)
        grad_norm = backend.optim_step(lr)
        seconds = time.monotonic() - started
        metrics = output.metrics | {
            "loss": output.loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "epoch": (step + 1) / per_epoch,
        }
        metrics |= {"tokens_trained": output.num_trained_tokens, "train_s": seconds, "step_s": seconds}
        context.emit(events.StepMetrics(name, step + 1, {k: float(v) for k, v in (metrics | context.memory()).items()}))
        context.emit(events.Progress(name, "training", step + 1, total, "steps"))
        every = stage.evaluate_every_steps
        if every and ((step + 1) % every == 0 or step + 1 == total):
            if await progression.consider(step + 1, patience=stage.patience):
                break
        if context.out_of_time() or (limits.max_seconds and progression.elapsed_s > limits.max_seconds):
            break
        progression.save_if_due(step + 1)
    progression.take_best()
    return progression


def _rows_of_step(seed: int, stage: str, step: int, per_epoch: int, count: int) -> list[int]:
    """Row numbers of a step: consecutive pieces of the epoch's permutation; the remainder joins the last piece."""
    epoch, piece = divmod(step, per_epoch)
    order = generator(seed, "sft.shuffle", stage, epoch).permutation(count)
    pieces = np.array_split(order, per_epoch)
    return [int(i) for i in pieces[piece]]
