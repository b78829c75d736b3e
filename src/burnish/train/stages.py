"""The parts of a run before its end: the baseline, and each stage with its gate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from burnish.core.codec import encode
from burnish.core.errors import IntegrityError, RefusedError
from burnish.core.seeds import derive_seed
from burnish.core.types import CheckpointRef
from burnish.evals.gate import GateDecision, decide
from burnish.evals.guard_suites import GuardValues
from burnish.evals.report_data import CONTROL
from burnish.evals.results import SuiteResult
from burnish.evals.suite import Suite
from burnish.models.policy import Policy
from burnish.objectives.sft import SFT
from burnish.observe import events
from burnish.train.backend import LocalBackend
from burnish.train.best import Progression, clear_stage
from burnish.train.few_shot import candidate_prompts, choose_prompt, under_best_prompt
from burnish.train.grpo import describe_grpo, run_grpo
from burnish.train.recipe_stages import GrpoStage, SftStage
from burnish.train.session import Session, StageState, stage_name
from burnish.train.sft import TimeBudget, run_sft

KEPT_PARENT = "no point on the development set was above the parent's: the parent was kept, and nothing is judged"


# --- baseline ---------------------------------------------------------------------------------------


async def run_baseline(session: Session) -> None:
    """The untouched model: its digest, and the best few-shot prompt of each domain."""
    if session.state.base_digest:
        return
    began = time.monotonic()
    policy = session.context.load_policy(session.prepared.base_folder)
    digest = await session.show_engine(policy, stage="baseline", step=0)
    session.context.emit(events.StageStarted("baseline", "baseline", parent_digest=digest))
    chosen: dict[str, int] = {}
    rates: dict[str, tuple[float, ...]] = {}
    for domain in session.prepared.domains:
        chosen[domain.name], rates[domain.name] = await choose_few_shot(session, domain.name, digest)
    ref = CheckpointRef(str(session.prepared.base_folder), digest, "base", 0)
    # The base lies in the model cache, not in the run: it is registered by digest, without files to check.
    session.registry.add_checkpoint(ref, session.folder.run_id, files={})
    session.context.emit(events.StageFinished("baseline", time.monotonic() - began, digest))
    session.save(
        base_digest=digest,
        few_shot=chosen,
        few_shot_rates=rates,
        promoted_path=str(session.prepared.base_folder),
        promoted_digest=digest,
        seconds=session.spent("baseline", time.monotonic() - began),
    )


async def choose_few_shot(session: Session, domain: str, digest: str) -> tuple[int, tuple[float, ...]]:
    """A domain's best few-shot prompt for the base model (see `few_shot.choose_prompt`)."""

    async def evaluate(tasks: Suite, prompt: str) -> SuiteResult:
        return (await session.context.evaluate(tasks, digest=digest, stage="baseline", prompt=prompt)).result

    development = session.context.development.of_domain(domain)
    return await choose_prompt(domain, candidate_prompts(session.prepared, domain), development, evaluate)


def prompted(session: Session, suite: Suite) -> tuple[Suite, str]:
    """A suite under each domain's best few-shot prompt, and the name of that prompt."""
    return under_best_prompt(session.prepared, suite, session.state.few_shot)


# --- stages -----------------------------------------------------------------------------------------


async def run_stages(session: Session) -> None:
    """Every unfinished stage, each from the last promoted checkpoint, each with its gate."""
    recipe = session.prepared.recipe
    for index in range(len(session.state.stages), len(recipe.stages)):
        await _run_stage(session, index)
    grpo = next((s for s in session.state.stages if s.kind == "grpo" and s.digest), None)
    has_control = any(s.kind == CONTROL for s in session.state.stages)
    if recipe.control is not None and grpo is not None and not has_control:
        if session.context.out_of_time() and session.state.pending is None:
            session.context.emit(events.StageSkipped(CONTROL, "limits.max_seconds is used up"))
        else:
            await _run_control(session, grpo)


def formula_of(stage: SftStage | GrpoStage) -> str:
    """The loss of a stage as text, with its coefficients and denominators."""
    return SFT().describe() if isinstance(stage, SftStage) else describe_grpo(stage)


async def _run_stage(session: Session, index: int) -> None:
    """Train a candidate, unless an earlier process did and was killed in the gate; then judge it."""
    recipe, state = session.prepared.recipe, session.state
    stage, name = recipe.stages[index], stage_name(recipe, index)
    candidate = state.pending
    if candidate is None:
        candidate = await _make_candidate(session, stage, name)
    clear_stage(session.folder.checkpoints / name)
    if not candidate.digest or candidate.digest == candidate.parent:  # refused, or it kept its parent
        session.save(stages=(*session.state.stages, candidate), pending=None)
        return
    began = time.monotonic()
    await hold(session, Path(candidate.path), candidate.digest)
    decision = await run_gate(session, candidate.digest, candidate.parent, Path(candidate.parent_path))
    _record(session, name, candidate.digest, candidate.parent, decision)
    done = replace(
        candidate,
        promoted=decision.promoted,
        reason="; ".join(decision.reasons),
        gate=encode(decision),
    )
    promotion = {"promoted_path": done.path, "promoted_digest": done.digest, "promoted_stage": name}
    session.save(
        stages=(*session.state.stages, done),
        pending=None,
        seconds=session.spent("gates", time.monotonic() - began),
        **(promotion if decision.promoted else {}),
    )


async def _make_candidate(session: Session, stage: SftStage | GrpoStage, name: str) -> StageState:
    """The trained stage, kept as pending until its gate; without a digest where the stage was refused."""
    context = session.context
    parent_path, parent = session.state.promoted_path, session.state.promoted_digest
    steps = stage.steps if isinstance(stage, GrpoStage) else 0
    state = StageState(name, stage.kind, "", "", parent, parent_path, False, 0.0, "", formula_of(stage))
    if context.out_of_time():
        reason = f"limits.max_seconds={session.prepared.recipe.limits.max_seconds:g} was used up before this stage"
        context.emit(events.StageSkipped(name, reason))
        return replace(state, reason=reason)
    context.emit(events.StageStarted(name, stage.kind, steps, parent))
    try:
        progression, path = await _train(session, stage, name, Path(parent_path))
    except RefusedError as error:
        context.emit(events.StageSkipped(name, error.what))
        return replace(state, reason=str(error))
    return await _keep_candidate(session, state, progression, path)


async def _keep_candidate(session: Session, state: StageState, progression: Progression, path: Path) -> StageState:
    """Register what a stage made, and save it as pending; one whose best point is its parent is not a candidate."""
    context, seconds, best = session.context, progression.elapsed_s, progression.best
    digest = await session.show_engine(progression.backend.policy, stage=state.name, step=0)
    state = replace(
        state,
        path=str(path),
        digest=digest,
        seconds=seconds,
        best_step=best[0] if best else None,
        points=tuple(progression.points),
    )
    if digest == state.parent:
        state = replace(state, reason=KEPT_PARENT)
    else:
        ref = CheckpointRef(str(path), digest, state.name, best[0] if best else 0, state.parent)
        session.registry.add_checkpoint(ref, session.folder.run_id, {"dev_pass_rate": best[1]} if best else {})
        context.emit(events.CheckpointSaved(ref, _size(path)))
    context.emit(events.StageFinished(state.name, seconds, digest))
    session.save(seconds=session.spent(state.name, seconds), pending=state)
    return state


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def _train(
    session: Session, stage: SftStage | GrpoStage, name: str, parent: Path, budget: TimeBudget | None = None
) -> tuple[Progression, Path]:
    """Train from the parent; returns the evaluations (with the policy) and the candidate's folder."""
    context = session.context
    policy = context.load_policy(parent)
    backend = LocalBackend(
        policy,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        sampling=context.sampling if isinstance(stage, GrpoStage) else None,
    )
    if isinstance(stage, SftStage):
        progression = await run_sft(context, stage, name, backend, budget=budget)
    else:
        # In the policy's own arithmetic: rounding is no divergence.
        reference = Policy.load(parent, autocast=context.autocast) if stage.kl_coefficient else None
        progression = await run_grpo(context, stage, name, backend, reference)
    path = session.folder.checkpoints / name / "model"
    policy.save(path)
    return progression, path


async def run_gate(session: Session, digest: str, parent: str, parent_path: Path) -> GateDecision:
    """Judge what the engine holds now against its parent and the few-shot base, on the gate set."""
    context, state = session.context, session.state
    candidate = (await context.evaluate(session.gate_suite, digest=digest, stage="gate")).result
    guards = await session.guards.measure(digest)
    references = await reference_results(session, session.gate_suite, parent, parent_path)
    base_guards = await base_guard_values(session)
    return decide(
        candidate,
        references[0],
        references[1],
        session.guards.results(base_guards, guards),
        session.prepared.recipe.gate_config(),
        derive_seed(session.prepared.recipe.seed, "gate", digest, state.base_digest),
    )


async def reference_results(
    session: Session, suite: Suite, parent: str, parent_path: Path
) -> tuple[SuiteResult, SuiteResult]:
    """The parent under the plain prompt, and the base under its best prompt; cached by digest."""
    plain = await evaluate_model(session, suite, parent_path, parent, "plain")
    suite, prompt = prompted(session, suite)
    base = await evaluate_model(session, suite, session.prepared.base_folder, session.state.base_digest, prompt)
    return plain, base


async def evaluate_model(session: Session, suite: Suite, path: Path, digest: str, prompt: str) -> SuiteResult:
    """A model's result on a suite: from the cache, or by loading it into the engine."""
    context = session.context
    if not session.context.runner.has(suite, context.greedy, model_digest=digest, prompt=prompt):
        await hold(session, path, digest)
    return (await context.evaluate(suite, digest=digest, stage="gate", prompt=prompt)).result


async def hold(session: Session, path: Path, digest: str) -> None:
    """Have the engine hold a model on disk.

    Raises: IntegrityError where the folder no longer has the digest that was recorded.
    """
    if session.context.held == digest:
        return
    policy = Policy.load(path)
    found = await session.show_engine(policy, stage="load", step=0)
    if found != digest:
        raise IntegrityError(
            f"the weights have digest {found[:12]}, {digest[:12]} was recorded",
            where=str(path),
            fix="restore the folder from a copy, or run the stage again",
        )


async def base_guard_values(session: Session) -> dict[str, GuardValues]:
    """The base model's guard values; cached by digest."""
    digest = session.state.base_digest
    if not session.guards.has(digest):
        await hold(session, session.prepared.base_folder, digest)
    return await session.guards.measure(digest)


def _record(session: Session, name: str, digest: str, parent: str, decision: GateDecision) -> None:
    session.context.emit(events.GateDecided(name, digest, parent, decision.decision, decision.reasons))
    session.registry.record_decision(digest, encode(decision), decision.decision, decision.reasons)
    if decision.promoted:
        channel = f"run/{session.folder.run_id}"
        session.registry.promote(digest, channel=channel, by="gate", reason="; ".join(decision.reasons))
        session.context.emit(events.CheckpointPromoted(digest, channel, "gate", "; ".join(decision.reasons)))


async def _run_control(session: Session, grpo: StageState) -> None:
    """Continued SFT from the RL stage's parent: same labels, same wall time, as many evaluations, the best counts.

    The recipe's own learning rate, warm-up and decay, over that time.
    """
    recipe, context = session.prepared.recipe, session.context
    sft = next(stage for stage in recipe.stages if isinstance(stage, SftStage))
    context.emit(events.StageStarted(CONTROL, CONTROL, 0, grpo.parent))
    budget = TimeBudget(grpo.seconds, max(1, sum(step > 0 for step, _ in grpo.points)))
    entry = StageState(CONTROL, CONTROL, "", "", grpo.parent, grpo.parent_path, False, 0.0, "", formula_of(sft))
    pending = session.state.pending
    if pending is None:
        progression, path = await _train(session, sft, CONTROL, Path(grpo.parent_path), budget)
        pending = await _keep_candidate(session, entry, progression, path)
    entry = pending
    clear_stage(session.folder.checkpoints / CONTROL)
    reason = f"control: {entry.seconds:.0f} s of continued SFT against {grpo.seconds:.0f} s of RL"
    if entry.digest == entry.parent:
        reason += f"; {KEPT_PARENT}"
    session.save(stages=(*session.state.stages, replace(entry, reason=reason)), pending=None)


def stage_states(session: Session, *kinds: str) -> Sequence[StageState]:
    """Finished stages that made a candidate, of these kinds (all without any)."""
    return [s for s in session.state.stages if s.digest and (not kinds or s.kind in kinds)]
