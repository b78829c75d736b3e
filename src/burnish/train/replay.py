"""Replay: a policy's own everyday talk, trained along so that a gain on tasks is not paid for in it.

The prompts belong to no guard (`domains.guards.replay_examples`); the answers are sampled from the stage's first
policy, token by token as they are trained. Leaves out the formulas (`objectives`).

Source: Robins, "Catastrophic forgetting, rehearsal and pseudorehearsal", Connection Science 7 (1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from burnish.core.protocols import Sampling
from burnish.core.seeds import generator
from burnish.core.types import TokenUse
from burnish.domains.guards import replay_examples
from burnish.rollout.driver import Job
from burnish.train.backend import LocalBackend, TrainSequence
from burnish.train.context import Context

REPLAY_TOKENS = 96
"""Tokens of a replayed answer: as many as the response-length guard looks at."""


async def replay_sequences(
    context: Context, backend: LocalBackend, name: str, count: int, sampling: Sampling
) -> list[TrainSequence]:
    """`count` everyday prompts with the answers of the policy as it is now; call before any step or resume.

    An answer that the limit of `REPLAY_TOKENS` cut teaches no end token.
    """
    if count == 0:
        return []
    await context.sync(backend.policy, stage=name, step=0)
    jobs = [Job(example.task, example.gold, 1) for example in replay_examples(count)]
    sampling = replace(sampling, max_tokens=REPLAY_TOKENS)
    groups = await context.driver.run(jobs, sampling, stage=f"{name}/replay", step=0)
    return [
        TrainSequence(t.ids, t.use == TokenUse.TRAINED, group=-1 - index)
        for index, (t,) in enumerate(groups)
        if t.num_trained
    ]


def with_reference(backend: LocalBackend, sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    """The sequences with the policy's log-probabilities as it is now: what `objectives.Rehearsal` holds it to."""
    logp = backend.forward(sequences) if sequences else []
    return [replace(s, logp_ref=values) for s, values in zip(sequences, logp, strict=True)]


def rows_of_step(seed: int, stage: str, step: int, per_epoch: int, count: int) -> list[int]:
    """Row numbers of a step: consecutive pieces of the epoch's permutation; the remainder joins the last piece."""
    epoch, piece = divmod(step, per_epoch)
    order = generator(seed, "sft.shuffle", stage, epoch).permutation(count)
    return [int(i) for i in np.array_split(order, per_epoch)[piece]]
