"""A run from a recipe to a report: the order of things, and what survives a kill.

    prepare -> baseline -> (stage -> gate)* -> sealed final evaluation -> report

Every stage starts from the last promoted checkpoint. What a finished part found is in the run folder
(`state.json`, `evals/`, `checkpoints/`), so resuming reads it and goes on with the first unfinished part.
Leaves out how a stage trains (`sft`, `grpo`) and how a page is drawn (`evals.report`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from burnish.core.errors import BurnishError, ExitCode
from burnish.core.types import Decision
from burnish.evals.power import describe_sample
from burnish.evals.report import write_report
from burnish.observe import events
from burnish.observe.event_log import Subscriber
from burnish.observe.resources import machine_facts
from burnish.observe.run_folder import RunFolder, is_run_folder
from burnish.registry.code import code_digest, short_code
from burnish.registry.records import RunStatus
from burnish.registry.registry import Registry
from burnish.train.final import final_evaluation, power_lines, register_evaluation
from burnish.train.geometry import derive_geometry, dry_run_text, estimate_bytes, estimate_seconds, require_fit
from burnish.train.machine import measure_size, recipe_rates
from burnish.train.prepare import describe_machine, prepare, require_disk
from burnish.train.recipe import LoadedRecipe, Recipe, load_recipe
from burnish.train.room import require_room
from burnish.train.session import Session, open_session
from burnish.train.stages import formula_of, run_baseline, run_stages

log = logging.getLogger(__name__)

RUNS_FOLDER = Path("runs")
"""Where a run without --out gets its folder."""

RECIPE_FOLDER = "(recipe folder)"
"""Key among a run's origins under which the folder of its recipe is kept."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a run. `decision` is the last stage's gate's, INCONCLUSIVE where that stage reached none."""

    run_id: str
    folder: Path
    decision: Decision
    reasons: tuple[str, ...]
    exit_code: int
    report_path: Path


def run(
    recipe: str | Path | Recipe | dict[str, Any],
    *,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    on_event: Subscriber | None = None,
) -> RunResult:
    """Run a recipe; with `resume`, go on with the run in `out`.

    `on_event` is called with each `observe.events.EventRecord` as it is written. A recipe with `seeds` runs
    once for each, in folders beside each other; the result is the last one's, and the exit code the worst.

    Raises: InputError where recipe, model, data or machine are at fault, before anything is written; RunError
    where the run goes wrong, after its state is saved.
    """
    loaded = load_recipe(recipe, overrides)
    beside = _beside(recipe, out if resume else None)
    loaded = LoadedRecipe(loaded.recipe, {**loaded.origins, RECIPE_FOLDER: str(beside)})
    if not loaded.recipe.seeds:
        return _run_one(loaded, beside, _folder(loaded.recipe, out), resume=resume, on_event=on_event)
    parent = _folder(loaded.recipe, out)
    results = []
    for seed in loaded.recipe.seeds:
        one = LoadedRecipe(loaded.recipe.for_seed(seed), loaded.origins)
        folder = parent / f"seed-{seed}"
        results.append(
            _run_one(
                one,
                beside,
                folder,
                resume=resume and is_run_folder(folder),
                on_event=on_event,
                cache=parent / "evals",
            )
        )
    worst = max(result.exit_code for result in results)
    last = results[-1]
    return RunResult(last.run_id, parent, last.decision, last.reasons, worst, last.report_path)


def dry_run(recipe: str | Path | Recipe | dict[str, Any], overrides: Iterable[str] = ()) -> str:
    """Geometry, time and memory of a recipe, and the formula of each stage's loss; nothing is written."""
    loaded = load_recipe(recipe, overrides)
    prepared = prepare(loaded.recipe, _beside(recipe, None))
    require_room(prepared)
    geometry = derive_geometry(loaded.recipe)
    num_bytes = estimate_bytes(geometry, measure_size(prepared.base_folder, loaded.recipe))
    fits = sum(num_bytes.values()) <= machine_facts(Path.cwd()).memory_available_bytes
    seconds = estimate_seconds(geometry, recipe_rates(prepared.base_folder, loaded.recipe)) if fits else None
    formulas = [f"loss of stages[{i}] {s.kind}\n{formula_of(s)}" for i, s in enumerate(loaded.recipe.stages)]
    gate_power = describe_sample(
        [(e.task.domain, e.task.cluster) for e in prepared.sets.gate], confidence=loaded.recipe.gate.confidence
    )
    return "\n".join([dry_run_text(loaded.recipe, geometry, seconds, num_bytes, gate_power=gate_power), *formulas])


def _beside(recipe: object, run_folder: str | Path | None) -> Path:
    """The folder that relative paths in a recipe count from: where the recipe lay when the run began."""
    if run_folder is not None and is_run_folder(Path(run_folder)):
        return recipe_folder_of(RunFolder.open(Path(run_folder)))
    return Path(recipe).parent.absolute() if isinstance(recipe, (str, Path)) else Path.cwd()


def recipe_folder_of(folder: RunFolder) -> Path:
    """The folder of the recipe that a run was started from."""
    return Path(folder.origins.get(RECIPE_FOLDER, "."))


def _folder(recipe: Recipe, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    return RUNS_FOLDER / f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _run_one(
    loaded: LoadedRecipe,
    beside: Path,
    path: Path,
    *,
    resume: bool,
    on_event: Callable[[events.EventRecord], None] | None,
    cache: Path | None = None,
) -> RunResult:
    with asyncio.Runner() as runner:  # one event loop from the first check: a verifier may keep a client open
        return _run_in(runner, loaded, beside, path, resume=resume, on_event=on_event, cache=cache)


def _run_in(
    runner: asyncio.Runner,
    loaded: LoadedRecipe,
    beside: Path,
    path: Path,
    *,
    resume: bool,
    on_event: Callable[[events.EventRecord], None] | None,
    cache: Path | None,
) -> RunResult:
    recipe = loaded.recipe
    prepared = prepare(recipe, beside, run=runner.run)
    require_room(prepared)
    size = measure_size(prepared.base_folder, recipe)
    needed = estimate_bytes(derive_geometry(recipe), size)
    require_fit(recipe, needed, machine_facts(path).memory_available_bytes, where="engine.memory_gib")
    require_disk(path, size.params * size.bytes_per_weight)
    if recipe.deterministic:
        torch.use_deterministic_algorithms(True)
    if resume:
        folder = RunFolder.resume(path)
    else:
        folder = RunFolder.create(path, loaded.resolved(), name=recipe.name, origins=loaded.origins)
    with folder:
        if on_event is not None:
            folder.events.subscribe(on_event)
        registry = Registry()
        session = open_session(prepared, folder, registry, cache=cache or folder.evals)
        _announce(session, resume)
        try:
            return runner.run(_play(session))
        except BurnishError as error:
            folder.events.append(events.RunFailed(type(error).__name__, error.what, error.where, error.fix))
            registry.finish_run(folder.run_id, RunStatus.FAILED, error.what)
            raise
        except KeyboardInterrupt:
            folder.events.append(events.RunInterrupted("interrupted by Ctrl-C or SIGTERM"))
            registry.finish_run(folder.run_id, RunStatus.INTERRUPTED, "interrupted by Ctrl-C or SIGTERM")
            raise
        except Exception as error:  # a fault in the code, ours or a user's: never a run that seems to go on
            what = f"{type(error).__name__}: {error}"
            folder.events.append(
                events.RunFailed(type(error).__name__, what, "see the traceback", "mend it, then --resume")
            )
            registry.finish_run(folder.run_id, RunStatus.FAILED, what)
            raise


def _announce(session: Session, resume: bool) -> None:
    prepared, folder = session.prepared, session.folder
    machine = describe_machine(folder.path)
    session.machine.update(machine)
    code = code_digest()
    before = session.registry.code_of(folder.run_id)
    session.registry.add_run(
        folder.run_id,
        name=folder.name,
        folder=folder.path,
        config_digest=session.config_digest,
        code_digest=code,
        data_digests=session.data_digests,
        seed=prepared.recipe.seed,
        base_model=prepared.recipe.model.source,
    )
    if resume:
        if session.state.pending or session.state.next_stage(prepared.recipe) == "final":  # a stage says it itself
            session.context.emit(events.Resumed("gate" if session.state.pending else "final", 0))
        if before and before != code:
            session.context.warn(f"resumed with other code ({short_code(code)}) than before ({short_code(before)})")
        return
    session.context.emit(
        events.RunStarted(
            run_id=folder.run_id,
            name=folder.name,
            seed=prepared.recipe.seed,
            config_digest=session.config_digest,
            code_digest=code,
            base_model=prepared.recipe.model.source,
            machine=machine,
            power=power_lines(session),
        )
    )
    if prepared.recipe.external.bfcl is not False:
        for name, reason in prepared.not_run.items():
            session.context.warn(f"{name} is not run: {reason}")


async def _play(session: Session) -> RunResult:
    """The run itself, part by part."""
    await run_baseline(session)
    await run_stages(session)
    data = await final_evaluation(session)
    path = write_report(session.folder.path, data)
    for model in data.models:
        if model.prompt == "plain":
            register_evaluation(session, model, path)
    promoted = data.decision is Decision.PROMOTE
    reason = "; ".join(data.reasons)
    session.context.emit(events.RunFinished(session.elapsed_s, session.state.promoted_digest, reason))
    session.registry.finish_run(session.folder.run_id, RunStatus.FINISHED, reason)
    return RunResult(
        run_id=session.folder.run_id,
        folder=session.folder.path,
        decision=data.decision,
        reasons=data.reasons,
        exit_code=int(ExitCode.OK if promoted else ExitCode.GATE_REFUSED),
        report_path=path,
    )
