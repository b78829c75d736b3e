"""Supervised fine-tuning: one readable loop.

    shuffle -> pack -> loss over the tokens of the whole step -> clip -> step -> (evaluate, keep the best)

Shuffling is a function of (seed, stage, epoch), so a step's rows follow from its number alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.core.errors import DataError
from burnish.core.protocols import Sampling
from burnish.core.types import TokenUse
from burnish.domains.base import Example
from burnish.objectives.sft import SFT
from burnish.observe import events
from burnish.render.renderer import Renderer
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators
from burnish.train.best import Progression
from burnish.train.context import Context
from burnish.train.recipe_stages import SftStage
from burnish.train.replay import REPLAY_TOKENS, replay_sequences, rows_of_step
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
    sequences += await replay_sequences(context, backend, name, stage.replay_rows, Sampling(REPLAY_TOKENS))
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
        rows = [sequences[i] for i in rows_of_step(context.recipe.seed, name, step, per_epoch, len(sequences))]
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
