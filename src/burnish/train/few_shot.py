"""The best few-shot prompt of the untouched model: what every gate holds a checkpoint against, besides its parent.

Candidates come from the labelled tasks alone and are compared on the development set, in two rounds: all of them
on a few tasks, the best of those and the plain prompt on more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from burnish.core.seeds import derive_seed
from burnish.core.types import Message
from burnish.domains.few_shot import few_shot_candidates
from burnish.evals.results import SuiteResult
from burnish.evals.suite import Suite, mean_pass_rate, with_prefixes
from burnish.train.geometry import FIRST_ROUND, SECOND_ROUND, SURVIVORS
from burnish.train.prepare import Prepared

PLAIN = -1
"""The number of the plain prompt, beside those of the candidates."""

Prompt = tuple[Message, ...]
Evaluate = Callable[[Suite, str], Awaitable[SuiteResult]]
"""Greedy pass@1 of the base model on a suite, under the prompt of this name."""


def candidate_prompts(prepared: Prepared, domain_name: str) -> list[Prompt]:
    """A domain's candidates; the same in every process that prepares the same recipe."""
    config = prepared.recipe.few_shot
    if config.candidates == 0:
        return []
    domain = next(d for d in prepared.domains if d.name == domain_name)
    own = [e for e in prepared.sets.labelled if e.task.domain == domain_name and e.demonstration.parts]
    seed = derive_seed(prepared.recipe.seed, "few_shot")
    return few_shot_candidates(domain, own, count=config.candidates, shots=config.shots, seed=seed)


async def choose_prompt(
    domain: str, candidates: Sequence[Prompt], development: Suite, evaluate: Evaluate
) -> tuple[int, tuple[float, ...]]:
    """The best candidate's number, `PLAIN` where none beats the plain prompt, and each one's first-round pass rate.

    `development`: the domain's own development tasks.
    """
    if not candidates:
        return PLAIN, ()

    async def rate(index: int, tasks: Suite) -> float:
        if index == PLAIN:
            return mean_pass_rate(await evaluate(tasks, "plain"))
        return mean_pass_rate(
            await evaluate(with_prefixes(tasks, {domain: candidates[index]}), prompt_name({domain: index}))
        )

    # All candidates at once: the engine batches what is submitted together, and each alone is a small batch.
    first = await asyncio.gather(*(rate(i, development.head(FIRST_ROUND)) for i in range(len(candidates))))
    ranked = sorted(range(len(candidates)), key=lambda i: (-first[i], i))
    finalists = [*ranked[: max(1, len(ranked) // SURVIVORS)], PLAIN]
    rates = await asyncio.gather(*(rate(i, development.head(SECOND_ROUND)) for i in finalists))
    second = dict(zip(finalists, rates, strict=True))
    return max(second, key=lambda i: (second[i], -i)), tuple(first)


def prompt_name(chosen: Mapping[str, int]) -> str:
    """What results are kept under: "plain", or the candidate of each domain that has one."""
    name = ",".join(f"{domain}-{index}" for domain, index in sorted(chosen.items()) if index != PLAIN)
    return f"few_shot:{name}" if name else "plain"


def under_best_prompt(prepared: Prepared, suite: Suite, chosen: Mapping[str, int]) -> tuple[Suite, str]:
    """A suite under each domain's chosen prompt, and the name of that prompt."""
    prefixes = {
        domain: candidate_prompts(prepared, domain)[index] for domain, index in chosen.items() if index != PLAIN
    }
    return (with_prefixes(suite, prefixes) if prefixes else suite), prompt_name(chosen)
