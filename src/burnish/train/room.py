"""Whether everything that a run will show to its model can be rendered, and leaves room for what follows.

    every task's prompt + sampling.max_tokens, each few-shot prompt before the longest of them, every demonstration

Found before a run folder exists: met at a gate or in the final evaluation it would cost all that was trained. Leaves
out prompts that RL draws from domains without an end, and what environments say later.
"""

from __future__ import annotations

from burnish.core.errors import ConfigError, DataError, TemplateError
from burnish.core.types import Split, Task
from burnish.domains.few_shot import with_few_shot
from burnish.render.renderer import Renderer
from burnish.train.few_shot import candidate_prompts
from burnish.train.prepare import Prepared, context_tokens
from burnish.train.sft import sft_sequences


def require_room(prepared: Prepared) -> None:
    """Checks all prompts and demonstrations of a run against the model's context.

    Raises: DataError naming a task that cannot be rendered or does not fit; ConfigError for few-shot prompts.
    """
    sets, context = prepared.sets, context_tokens(prepared.base_folder)
    room = context - prepared.recipe.sampling.max_tokens
    drawn = [
        example
        for domain in prepared.domains
        if (limit := domain.limit(Split.TRAIN)) is not None
        for example in domain.generate(Split.TRAIN, limit, 0)
    ]
    guards = [task for suite in prepared.user_guards for task, _ in suite.items]
    shown = (*sets.labelled, *drawn, *prepared.external)
    for task in (*(example.task for example in shown), *guards):
        _require_room(task, num_prompt_tokens(task, prepared.renderer), room)
    evaluated = (*sets.development, *sets.gate, *sets.final)
    for domain in prepared.domains:
        own = [example.task for example in evaluated if example.task.domain == domain.name]
        lengths = [num_prompt_tokens(task, prepared.renderer) for task in own]
        longest = own[lengths.index(max(lengths))]
        _require_room(longest, max(lengths), room)
        for index, prefix in enumerate(candidate_prompts(prepared, domain.name)):
            tokens = num_prompt_tokens(with_few_shot(longest, prefix), prepared.renderer)
            if tokens > room:
                raise ConfigError(
                    f"few-shot prompt {index} of {domain.name} takes {tokens} tokens with the longest task, and "
                    f"{room} leave room for a reply in the model's {context}",
                    where="few_shot.shots",
                    fix="lower few_shot.shots or sampling.max_tokens, or set few_shot.candidates to 0",
                )
    if prepared.recipe.has_stage("sft"):
        sft_sequences(sets.labelled, prepared.renderer, max_tokens=context)


def num_prompt_tokens(task: Task, renderer: Renderer) -> int:
    """Tokens of a task's prompt.

    Raises: DataError naming the task where the template refuses it.
    """
    try:
        text = renderer.text(task.prompt, task.tools, generation_prompt=True).text
    except (TemplateError, DataError) as error:
        where = f"task {task.id} ({task.domain}, {task.split}, {task.source})"
        raise DataError(error.what, where=where, fix=error.fix) from error
    return len(renderer.tokenizer.encode(text))


def _require_room(task: Task, tokens: int, room: int) -> None:
    if tokens > room:
        raise DataError(
            f"a prompt of {tokens} tokens leaves no room for a reply of sampling.max_tokens: at most {room} do",
            where=f"task {task.id} ({task.domain}, {task.split}, {task.source})",
            fix="shorten or remove the row, lower sampling.max_tokens, or choose a model with a longer context",
        )
