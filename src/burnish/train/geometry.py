"""What follows from a recipe before anything runs: sizes, tokens, time and memory.

    recipe -> Geometry (counts) -> seconds by part, bytes by use -> dry_run_text

Counts are upper bounds: a run may stop early or draw fewer prompts, and beginnings that replies share are
computed once. Leaves out measuring the model and the machine (`train.machine`) and the formula of the loss
(`objectives`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from burnish.core.errors import ResourceError
from burnish.evals.guard_suites import MAX_TOKENS
from burnish.evals.guards import DEFAULT_GUARDS
from burnish.train.recipe import Recipe, is_file_domain
from burnish.train.recipe_stages import GrpoStage, SftStage

GIB = 2**30
ROW_TOKENS, ROWS_AT_ONCE = 512, 2
"""A micro-batch is so many packed rows of so many tokens: products at full speed, little memory."""
MICRO_BATCH_TOKENS = ROW_TOKENS * ROWS_AT_ONCE
FIRST_ROUND = 12
"""Development tasks a domain on which every few-shot candidate is tried."""
SECOND_ROUND = 48
"""Development tasks a domain on which the best are compared: a standard error of about 7 points."""
REPLAYED_A_STEP, REPLAYED_TOKENS = 8, 130
"""Replayed answers in a step of RL (`train.replay`), and the tokens of one with its prompt."""
PROGRAM_BYTES = int(0.9 * GIB)
"""Interpreter, libraries and data, before any model."""
SURVIVORS = 4
"""One few-shot candidate in so many goes on to the second round."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Mean tokens of a prompt, of one worked example and of a reply.

    `shared`: the beginning that the prompts of a domain have in common, which the engine computes once. The
    defaults are the means of the built-in domains under the default model's tokenizer (November 2026).
    """

    prompt: float = 110.0
    example: float = 135.0
    reply: float = 30.0
    shared: float = 50.0

    @property
    def fresh(self) -> float:
        """Tokens of a prompt that are its own."""
        return self.prompt - self.shared


@dataclass(frozen=True, slots=True)
class MachineRates:
    """How fast a machine runs one model.

    Tokens a second of wall time: sampling, computing prompts, training (forward and backward).
    """

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    train_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large a model is.

    `kv_bytes_per_token`: keys and values of all layers; `activation_bytes_per_token`: kept for the backward
    pass; `bytes_per_weight`: of the training dtype; `trainable_frac`: 1 unless adapters are trained.
    """

    params: int
    kv_bytes_per_token: int
    activation_bytes_per_token: int
    bytes_per_weight: int = 4
    trainable_frac: float = 1.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a run in tokens: prompts computed, tokens sampled, tokens trained on."""

    name: str
    text: str
    prefill_tokens: float = 0.0
    sampled_tokens: float = 0.0
    trained_tokens: float = 0.0
    num_replies: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that follow from a recipe, part by part in the order of the run.

    `controlled`: the part whose wall time a control run gets again, or ''.
    """

    phases: tuple[Phase, ...]
    longest_tokens: float
    max_sequences: int
    has_reference: bool
    controlled: str = ""

    @property
    def num_replies(self) -> int:
        """Replies sampled, over all parts."""
        return sum(phase.num_replies for phase in self.phases)


def derive_geometry(recipe: Recipe, lengths: TokenLengths | None = None) -> Geometry:
    """The sizes of a recipe; replies are never counted longer than `sampling.max_tokens`."""
    lengths = lengths or TokenLengths()
    lengths = replace(lengths, reply=min(lengths.reply, recipe.sampling.max_tokens))
    phases = [_baseline(recipe, lengths)]
    for index, stage in enumerate(recipe.stages):
        name = f"stages[{index}] {stage.kind}"
        if isinstance(stage, SftStage):
            phases.append(_sft(name, recipe, stage, lengths))
        else:
            phases.append(_grpo(name, recipe, stage, lengths))
        phases.append(_judged(f"gate after {name}", recipe, lengths))
    phases.append(_final(recipe, lengths))
    shots = recipe.few_shot.shots * lengths.example if recipe.few_shot.candidates else 0.0
    return Geometry(
        tuple(phases),
        longest_tokens=lengths.prompt + shots + recipe.sampling.max_tokens,
        controlled="" if recipe.control is None else _first_grpo(recipe),
        max_sequences=recipe.engine.max_sequences,
        has_reference=any(isinstance(stage, GrpoStage) and stage.kl_coefficient > 0 for stage in recipe.stages),
    )


def _first_grpo(recipe: Recipe) -> str:
    return next(f"stages[{i}] grpo" for i, stage in enumerate(recipe.stages) if isinstance(stage, GrpoStage))


def _judged(name: str, recipe: Recipe, lengths: TokenLengths) -> Phase:
    """The gate's tasks and one round of guards."""
    tasks = len(recipe.tasks.domains) * recipe.tasks.gate
    chosen = [spec for spec in DEFAULT_GUARDS if spec.name in recipe.guards]
    guards = sum(spec.num_items for spec in chosen)
    guard_tokens = sum(spec.num_items * MAX_TOKENS.get(spec.name, 0) for spec in chosen)
    return Phase(
        name,
        f"{len(recipe.tasks.domains)} domains x {recipe.tasks.gate} gate tasks + {guards} guard items",
        (tasks + guards) * lengths.fresh,
        tasks * lengths.reply + guard_tokens,
        0.0,
        tasks + guards,
    )


def _baseline(recipe: Recipe, lengths: TokenLengths) -> Phase:
    """Few-shot prompts in two rounds, then the base and its best prompt on the gate's tasks."""
    few_shot, domains = recipe.few_shot, len(recipe.tasks.domains)
    plain = _judged("baseline", recipe, lengths)
    if few_shot.candidates == 0:
        return plain
    first, second = (min(tasks, recipe.tasks.development) for tasks in (FIRST_ROUND, SECOND_ROUND))
    survivors = max(1, few_shot.candidates // SURVIVORS)
    shown = domains * (few_shot.candidates * first + survivors * second + recipe.tasks.gate)
    examples = domains * few_shot.candidates * few_shot.shots * lengths.example  # a prompt's examples once
    num = shown + domains * second
    return Phase(
        "baseline",
        f"{few_shot.candidates} few-shot prompts of {few_shot.shots} examples on {domains} x {first} "
        f"development tasks, {survivors} and the plain one on {second} each; {plain.text}, also prompted",
        plain.prefill_tokens + num * lengths.fresh + examples,
        plain.sampled_tokens + num * lengths.reply,
        0.0,
        plain.num_replies + num,
    )


def _curve(recipe: Recipe, lengths: TokenLengths, steps: int, every: int) -> tuple[int, float, float]:
    """Replies, prompt tokens and sampled tokens of a stage's curve, its start included."""
    replies = (1 + steps // every) * len(recipe.tasks.domains) * recipe.tasks.curve if every else 0
    return replies, replies * lengths.fresh, replies * lengths.reply


def _sft(name: str, recipe: Recipe, stage: SftStage, lengths: TokenLengths) -> Phase:
    labels = recipe.tasks.train_labels * len(recipe.tasks.domains)
    rows = labels + stage.replay_rows
    steps = stage.epochs * max(1, rows // stage.rows_per_step)
    epochs = "epoch" if stage.epochs == 1 else "epochs"
    tokens = lengths.prompt + lengths.reply
    micro = math.ceil(stage.rows_per_step * tokens / MICRO_BATCH_TOKENS)
    replies, prefill, sampled = _curve(recipe, lengths, steps, stage.evaluate_every_steps)
    replayed = f" ({stage.replay_rows} replayed)" if stage.replay_rows else ""
    text = (
        f"{rows} rows{replayed} x {stage.epochs} {epochs} in steps of {stage.rows_per_step} -> {steps} steps "
        f"-> {micro} micro-batches a step, {replies:,} replies for the curve"
    )
    return Phase(name, text, prefill, sampled, steps * stage.rows_per_step * tokens, replies)


def _grpo(name: str, recipe: Recipe, stage: GrpoStage, lengths: TokenLengths) -> Phase:
    draws = stage.max_prompt_draws or stage.prompts_per_step
    rollouts = stage.prompts_per_step * stage.group_size
    step_tokens = stage.prompts_per_step * (lengths.prompt + stage.group_size * lengths.reply)
    replayed = min(stage.replay_rows, REPLAYED_A_STEP) * REPLAYED_TOKENS
    micro = math.ceil(step_tokens / MICRO_BATCH_TOKENS)
    replies, prefill, replied = _curve(recipe, lengths, stage.steps, stage.evaluate_every_steps)
    drawn = f" (at most {draws} prompts drawn)" if draws > stage.prompts_per_step else ""
    text = (
        f"{stage.prompts_per_step} prompts x {stage.group_size} samples -> {rollouts} rollouts "
        f"-> {micro} micro-batches{drawn}, {stage.steps} steps -> {stage.steps * rollouts:,} rollouts "
        f"trained on, {replies:,} replies for the curve"
    )
    sampled = stage.steps * draws * stage.group_size
    # The reference's forward pass costs about a third of a forward and backward pass.
    passes = stage.updates_per_step + (1 / 3 if stage.kl_coefficient > 0 else 0)
    return Phase(
        name,
        text,
        stage.steps * draws * lengths.fresh + prefill,
        sampled * lengths.reply + replied,
        stage.steps * (step_tokens * passes + replayed * stage.updates_per_step),
        sampled + replies,
    )


def _final(recipe: Recipe, lengths: TokenLengths) -> Phase:
    domains, tasks, few_shot = len(recipe.tasks.domains), recipe.tasks.final, recipe.few_shot
    plain = domains * tasks * (1 + len(recipe.stages))
    prompted = domains * tasks if few_shot.candidates else 0
    models = f"base, {'few-shot base, ' if prompted else ''}{len(recipe.stages)} stages"
    return Phase(
        "final",
        f"{models} on {domains} x {tasks} final tasks",
        (plain + prompted) * lengths.fresh,
        (plain + prompted) * lengths.reply,
        0.0,
        plain + prompted,
    )


def estimate_seconds(geometry: Geometry, rates: MachineRates) -> dict[str, float]:
    """Wall time of a run by phase, at these rates."""
    seconds = {
        phase.name: phase.prefill_tokens / rates.prefill_tokens_per_s
        + phase.sampled_tokens / rates.decode_tokens_per_s
        + phase.trained_tokens / rates.train_tokens_per_s
        for phase in geometry.phases
    }
    if geometry.controlled:
        seconds["control"] = seconds[geometry.controlled]
    return seconds


def estimate_bytes(geometry: Geometry, size: ModelSize) -> dict[str, float]:
    """Memory of a run at its fullest moment, by use."""
    weights = float(size.params * size.bytes_per_weight)
    trained = size.params * size.trainable_frac
    return {
        "program": float(PROGRAM_BYTES),
        "weights": weights * (2 if geometry.has_reference else 1),
        "sampler": weights + geometry.max_sequences * geometry.longest_tokens * size.kv_bytes_per_token,
        "gradients": trained * size.bytes_per_weight,
        "optimiser": trained * 8.0,  # AdamW: two float32 moments
        "activations": float(MICRO_BATCH_TOKENS * size.activation_bytes_per_token),
    }


def largest_params(available_bytes: float) -> dict[str, float]:
    """Parameters of the largest model that fits into this memory, by use; a gibibyte is left for the rest."""
    room = max(0.0, available_bytes - GIB)
    # float32: weights and the sampler's copy; to train all of them also gradients and two AdamW moments.
    return {"full training": room / 20, "adapters (lora)": room / 8, "evaluation": room / 4}


def require_fit(recipe: Recipe, num_bytes: Mapping[str, float], available_bytes: float, *, where: str) -> None:
    """Checks the estimate against `engine.memory_gib`, or else against what is available.

    Raises: ResourceError with what is needed, what may be used, and what to change.
    """
    limit = available_bytes if recipe.engine.memory_gib is None else recipe.engine.memory_gib * GIB
    if (needed := sum(num_bytes.values())) > limit:
        raise ResourceError(
            f"the run needs about {needed / GIB:.1f} GiB of memory and may use {limit / GIB:.1f}",
            where=where,
            fix="lower engine.max_sequences or sampling.max_tokens, set model.lora, or use a smaller model",
        )


def dry_run_text(
    recipe: Recipe,
    geometry: Geometry,
    seconds: Mapping[str, float] | None = None,
    num_bytes: Mapping[str, float] | None = None,
    *,
    gate_power: str = "",
) -> str:
    """What `burnish run --dry-run` prints: every part with its sizes, then power, time and memory where known."""
    tasks = recipe.tasks
    width = max(len(phase.name) for phase in geometry.phases)
    kinds = ["file" if is_file_domain(name) else name for name in tasks.domains]
    lines = [
        f"{recipe.name}: {recipe.model.source}, {len(recipe.seeds) or 1} run(s)",
        f"tasks: {', '.join(kinds)}; a domain {tasks.train_labels} labels, {tasks.development} development, "
        f"{tasks.gate} gate, {tasks.final} final",
    ]
    for phase in geometry.phases:
        took = f"  [{_duration(seconds[phase.name])}]" if seconds else ""
        lines.append(f"  {phase.name:<{width}}  {phase.text}{took}")
    if geometry.controlled:
        took = f"  [{_duration(seconds['control'])}]" if seconds else ""
        lines.append(f"  {'control':<{width}}  {recipe.control} for the wall time of {geometry.controlled}{took}")
    sampled = sum(phase.sampled_tokens for phase in geometry.phases)
    trained = sum(phase.trained_tokens for phase in geometry.phases)
    lines.append(f"at most {geometry.num_replies:,} replies, {sampled:,.0f} tokens sampled, {trained:,.0f} trained")
    if gate_power:
        lines.append(f"gate   {gate_power}")
    if seconds:
        lines.append(f"time   about {_duration(sum(seconds.values()))}")
    elif num_bytes:
        lines.append("time   not measured: less memory is available than the run needs")
    if num_bytes:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in num_bytes.items())
        lines.append(f"memory about {sum(num_bytes.values()) / GIB:.1f} GiB ({parts})")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
