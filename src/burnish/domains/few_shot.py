"""Few-shot prompts: what a fine-tuned checkpoint has to beat is the untouched model under its best prompt.

Candidates come from training examples only. Leaves out which candidate is best (`evals`, on the development
set).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from random import Random

from burnish.core.errors import DataError
from burnish.core.seeds import python_random
from burnish.core.types import Message, Role, Split, Task
from burnish.domains.base import Domain, Example

FEW_SHOT_TAG = "few_shot"

RULES = ("balanced", "random", "shortest", "longest_reply")
"""How a candidate's examples are chosen; candidates go through the rules in turn, each with its own draw."""

_POOL_FRAC = 0.25  # `shortest` and `longest_reply` draw from this share of the training examples


def few_shot_candidates(
    domain: Domain, train_examples: Sequence[Example], *, count: int = 8, shots: int = 4, seed: int = 0
) -> list[tuple[Message, ...]]:
    """`count` distinct prefixes of `shots` user and assistant messages, each from `train_examples`.

    Raises: DataError where an example is of another domain or split, or where there are too few.
    """
    _check_examples(domain, train_examples, shots)
    made: list[tuple[Message, ...]] = []
    attempt = 0
    while len(made) < count:
        random = python_random(seed, "few_shot", domain.name, attempt)
        chosen = _choose(RULES[attempt % len(RULES)], train_examples, shots, random)
        prefix = tuple(message for example in chosen for message in _turns(example))
        if prefix not in made:
            made.append(prefix)
        attempt += 1
        if attempt > 20 * count:  # a few examples have only so many orders
            raise DataError(
                f"{len(train_examples)} training examples give {len(made)} distinct few-shot prompts, {count} wanted",
                where=domain.name,
                fix="give more training examples, or ask for fewer candidates",
            )
    return made


def with_few_shot(task: Task, prefix: Sequence[Message]) -> Task:
    """The task with the prefix between its system messages and the rest; same id, tagged `few_shot`.

    The id stays, because it is the same question: paired comparisons match by it.
    """
    num_system = sum(message.role is Role.SYSTEM for message in task.prompt)
    prompt = (*task.prompt[:num_system], *prefix, *task.prompt[num_system:])
    return replace(task, prompt=prompt, tags=(*task.tags, FEW_SHOT_TAG))


def _check_examples(domain: Domain, examples: Sequence[Example], shots: int) -> None:
    for example in examples:
        task = example.task
        if task.split is not Split.TRAIN or task.domain != domain.name:
            raise DataError(
                f"a prompt for {domain.name} may not show a {task.split.value} task of {task.domain}",
                where=f"task {task.id}",
                fix="pass training examples of the domain only",
            )
    if not 0 < shots <= len(examples):
        raise DataError(
            f"shots={shots} cannot be chosen from {len(examples)} training examples",
            where=domain.name,
            fix="set shots between 1 and the number of training examples",
        )


def _choose(rule: str, examples: Sequence[Example], shots: int, random: Random) -> list[Example]:
    if rule == "balanced":
        return _balanced(examples, shots, random)
    if rule == "random":
        return random.sample(list(examples), shots)
    size = max(shots, round(_POOL_FRAC * len(examples)))
    if rule == "shortest":
        ordered = sorted(examples, key=lambda e: sum(len(message.text) for message in _turns(e)))
    else:
        ordered = sorted(examples, key=lambda e: -len(e.demonstration.text))
    return random.sample(ordered[:size], shots)


def _balanced(examples: Sequence[Example], shots: int, random: Random) -> list[Example]:
    """One example of each kind (last tag) in turn, kinds in random order."""
    kinds: dict[str, list[Example]] = {}
    for example in random.sample(list(examples), len(examples)):
        kinds.setdefault(example.task.tags[-1] if example.task.tags else "", []).append(example)
    rounds = zip_longest(*kinds.values())
    return [example for one_round in rounds for example in one_round if example is not None][:shots]


def _turns(example: Example) -> tuple[Message, ...]:
    asked = tuple(message for message in example.task.prompt if message.role is not Role.SYSTEM)
    return (*asked, example.demonstration)
