"""Supervised fine-tuning: one readable loop.

    shuffle -> pack -> loss over the tokens of the whole step -> clip -> step -> (evaluate, keep the best)

Shuffling is a function of (seed, stage, epoch), so a step's rows follow from its number alone.
"""

from __future__ import annotations

import itertools
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

TICKS = 1000
"""Parts of a wall-time budget that the learning rate tells apart."""


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Wall time in place of epochs: a control gets the seconds of the stage it is held against, warms up and
    decays over them, and is evaluated as often."""

    seconds: float
    evaluations: int

    def share(self, elapsed_s: float) -> float:
        """Share of the time that is used, 0 to 1."""
        return min(1.0, elapsed_s / self.seconds)

    def tick(self, elapsed_s: float) -> int:
        """The same, as a step of a schedule of `TICKS` steps."""
        return min(TICKS - 1, int(TICKS * self.share(elapsed_s)))

    def due(self, elapsed_s: float, evaluated: int) -> bool:
        """Whether an evaluation is due after so many; the last one is due when the time is used up."""
        return self.share(elapsed_s) * self.evaluations >= evaluated + 1


def sft_sequences(examples: Sequence[Example], renderer: Renderer, *, max_tokens: int) -> list[TrainSequence]:
    """Demonstrations as sequences, trained on their own tokens and end token only: assistant turns that are part of a
    prompt are context.

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
        messages = (*example.task.prompt, example.demonstration)
        rendered = renderer.examples(messages, example.task.tools)[-1]
        trained = (rendered.use == TokenUse.TRAINED) & (rendered.message_index == len(messages) - 1)
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
    budget: TimeBudget | None = None,
) -> Progression:
    """Train; the policy ends as the best point on the development set (or the last, without evaluations).

    With a budget the stage lasts its seconds instead of `epochs`, and may keep its parent.
    """
    sequences = sft_sequences(context.labelled, context.renderer, max_tokens=context.engine.decoder.max_context_tokens)
    sequences += await replay_sequences(context, backend, name, stage.replay_rows, Sampling(REPLAY_TOKENS))
    per_epoch = max(1, len(sequences) // stage.rows_per_step)
    total = per_epoch * stage.epochs
    points = TICKS if budget else total
    schedule = Schedule(stage.lr, points, warmup_steps=round(stage.warmup_frac * points), decay=stage.schedule)
    objective = SFT()
    progression = Progression(context, backend, name)
    start = progression.resume()
    if budget and start == 0:
        await progression.consider(0)  # as the stage it is held against may
    has_curve = budget is not None or stage.evaluate_every_steps > 0
    for step in itertools.count(start):
        started = time.monotonic()
        rows = [sequences[i] for i in rows_of_step(context.recipe.seed, name, step, per_epoch, len(sequences))]
        output = backend.forward_backward(rows, objective, step_denominators(rows))
        lr = schedule.at(budget.tick(progression.elapsed_s) if budget else step)
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
        if budget:
            elapsed = progression.elapsed_s
            context.emit(events.Progress(name, "training", round(elapsed), round(budget.seconds), "s"))
            done = budget.share(elapsed) == 1.0
            due, patience = done or budget.due(elapsed, len(progression.points) - 1), None
        else:
            context.emit(events.Progress(name, "training", step + 1, total, "steps"))
            done = step + 1 == total
            every, patience = stage.evaluate_every_steps, stage.patience
            due = bool(every) and (done or (step + 1) % every == 0)
        late = context.out_of_time()
        due = due or (late and has_curve)  # what was trained since the last evaluation may be the best
        if due and await progression.consider(step + 1, patience=patience):
            break
        if late and not done:
            context.warn("limits.max_seconds is used up; the stage ends here", stage=name, step=step + 1)
        if done or late:
            break
        progression.save_if_due(step + 1)
    progression.take_best()
    return progression
