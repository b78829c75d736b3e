"""The end of a run: the sealed final set opened once, every model on it, and what the report is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from burnish.core.codec import decode
from burnish.core.types import Decision, Split
from burnish.evals.gate import GateDecision, compare
from burnish.evals.power import describe_sample
from burnish.evals.report_data import CONTROL, Cost, LabelledComparison, ModelEntry, ReportData, Sample, StageEntry
from burnish.evals.results import SuiteResult
from burnish.evals.suite import Suite, pass_rates
from burnish.observe import events
from burnish.observe.curves import plot_curves
from burnish.observe.events import metric_rows
from burnish.observe.resources import peak_rss_bytes
from burnish.train.context import split_of
from burnish.train.session import Session, StageState
from burnish.train.stages import hold, prompted, stage_states

SAMPLES = 10
"""Trajectories a domain that the report shows of each model."""


async def final_evaluation(session: Session) -> ReportData:
    """Every model on the final set, in one opening, and the data of the report."""
    began = time.monotonic()
    base, state = session.prepared.base_folder, session.state
    candidates = stage_states(session)
    digests = [state.base_digest, *(s.digest for s in candidates)]
    session.open_final(digests, state.promoted_digest, "final evaluation after the last stage")
    models: list[ModelEntry] = []
    samples: list[Sample] = []
    entries = [("base", "", str(base), state.base_digest, "plain", False)]
    few_shot_suite, prompt = prompted(session, session.final_suite)
    if prompt != "plain":
        entries.append(("base, few-shot", "", str(base), state.base_digest, prompt, False))
    entries += [(s.name, s.name, s.path, s.digest, "plain", s.promoted) for s in candidates]
    for label, stage, path, digest, how, promoted in entries:
        suite = session.final_suite if how == "plain" else few_shot_suite
        entry, shown = await _evaluate(session, label, stage, Path(path), digest, how, promoted, suite)
        models.append(entry)
        samples += shown
    session.save(seconds=session.spent("final", time.monotonic() - began))
    return _data(session, models, _comparisons(session, models), samples)


async def _evaluate(
    session: Session,
    label: str,
    stage: str,
    path: Path,
    digest: str,
    prompt: str,
    promoted: bool,
    suite: Suite,
) -> tuple[ModelEntry, list[Sample]]:
    context = session.context
    external = split_of(session.prepared.external, Split.FINAL, "bfcl")
    # BFCL's schemas are long: base and what is released, no more (each run of 200 costs as much as 600 tasks).
    wants_external = (
        bool(external.items) and prompt == "plain" and (stage == "" or stage == session.state.promoted_stage)
    )
    if not context.runner.has(suite, context.greedy, model_digest=digest, prompt=prompt) or wants_external:
        await hold(session, path, digest)
    run = await context.evaluate(suite, digest=digest, stage="final", prompt=prompt, keep=SAMPLES)
    outside: dict[str, SuiteResult] = {}
    if wants_external:
        outside["bfcl"] = (await context.evaluate(external, digest=digest, stage="final")).result
    guards = {}
    if session.guards.has(digest) and prompt == "plain":
        guards = {name: values.mean for name, values in (await session.guards.measure(digest)).items()}
    entry = ModelEntry(label, stage, digest, prompt, promoted, run.result, outside, guards, run.from_cache)
    tasks = {task.id: task for task, _ in suite.items}
    return entry, [Sample(label, tasks[t.task_id], t) for t in run.trajectories]


def _comparisons(session: Session, models: Sequence[ModelEntry]) -> list[LabelledComparison]:
    """Each stage against the base, the few-shot base, its parent, and RL against its control; pooled and by domain."""
    by_label = {model.label: model for model in models}
    # A stage that kept its parent has its digest: the name is the one that came first.
    by_digest = {model.digest: model.label for model in reversed(models) if model.prompt == "plain"}
    config = session.prepared.recipe.gate_config()
    seed = session.prepared.recipe.seed
    wanted: list[tuple[str, str]] = []
    for stage in stage_states(session):
        references = ["base", "base, few-shot", by_digest.get(stage.parent, "base")]
        wanted += [(stage.name, r) for r in dict.fromkeys(references) if r in by_label and r != stage.name]
    controls = [s.name for s in stage_states(session, "continued_sft")]
    wanted += [(s.name, control) for s in stage_states(session, "grpo") for control in controls]
    out = []
    for candidate, reference in dict.fromkeys(wanted):
        a, b = by_label[candidate].result, by_label[reference].result
        out.append(LabelledComparison(candidate, reference, "", compare(a, b, reference, config, seed)))
        for domain in a.domains:
            pair = compare(a.of_domain(domain), b.of_domain(domain), reference, config, seed)
            out.append(LabelledComparison(candidate, reference, domain, pair))
    return out


def _data(
    session: Session,
    models: Sequence[ModelEntry],
    comparisons: Sequence[LabelledComparison],
    samples: Sequence[Sample],
) -> ReportData:
    state, prepared, folder = session.state, session.prepared, session.folder
    log = folder.read_events()
    rows = metric_rows(log.records)
    # The last stage decides how the run ended: where it reached no gate, an earlier one does not speak for it.
    stage = next((s for s in reversed(state.stages) if s.kind != CONTROL), None)
    last = decode(GateDecision, stage.gate) if stage is not None and stage.gate is not None else None
    unjudged = (stage.reason,) if stage is not None else ("no stage ran",)
    started = next((r.event for r in log.records if isinstance(r.event, events.RunStarted)), None)
    drawn = sum(row.metrics.get("prompts_drawn", 0.0) for row in rows)
    trained = sum(row.metrics.get("tokens_trained", 0.0) for row in rows)
    first = {row.stage: row.metrics for row in rows if row.step == 0 and "pass_at_k" in row.metrics}
    return ReportData(
        run_id=folder.run_id,
        name=folder.name,
        created_utc=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        seed=prepared.recipe.seed,
        base_model=prepared.recipe.model.source,
        base_digest=state.base_digest,
        code=started.code_digest if started is not None else "",
        recipe_yaml=(folder.path / "config.yaml").read_text("utf-8"),
        decision=last.decision if last else Decision.INCONCLUSIVE,
        reasons=last.reasons if last else unjudged,
        promoted_label=state.promoted_stage or "base",
        promoted_path=state.promoted_path,
        stages=tuple(_stage_entry(s) for s in state.stages),
        models=tuple(models),
        comparisons=tuple(comparisons),
        samples=tuple(samples),
        cost=Cost(
            seconds=dict(state.seconds),
            tokens_sampled=state.tokens_sampled,
            tokens_computed=state.tokens_computed,
            tokens_trained=int(trained),
            peak_memory_bytes=peak_rss_bytes(),
            labels=len(prepared.sets.labelled),
            verified_prompts=int(drawn),
        ),
        openings=dict(state.openings),
        opened_by_others=dict(state.opened_by_others),
        not_run=dict(prepared.not_run),
        identity=session.identity_summary(),
        undecided={m.label: sum(r.num_decided == 0 for r in m.result.records) for m in models},
        few_shot={
            "chosen": dict(state.few_shot),
            "first_round": {k: list(v) for k, v in state.few_shot_rates.items()},
        },
        pass_at_k={stage: metrics["pass_at_k"] for stage, metrics in first.items()},
        power=power_lines(session),
        warnings=tuple(r.event.message for r in log.records if isinstance(r.event, events.Warning_)),
        machine=dict(session.machine),
    )


def _stage_entry(state: StageState) -> StageEntry:
    return StageEntry(
        name=state.name,
        kind=state.kind,
        parent=state.parent,
        digest=state.digest,
        promoted=state.promoted,
        seconds=state.seconds,
        reason=state.reason,
        formula=state.formula,
        gate=decode(GateDecision, state.gate) if state.gate else None,
        best_step=state.best_step,
        points=state.points,
    )


def power_lines(session: Session) -> tuple[str, ...]:
    """What the gate and the final set can find, from their sizes and clusters."""
    confidence = session.prepared.recipe.gate.confidence
    suites = {"gate": session.gate_suite, "final": session.final_suite}
    return tuple(
        f"{name}: {describe_sample([(t.domain, t.cluster) for t, _ in suite.items], confidence=confidence)}"
        for name, suite in suites.items()
    )


def register_evaluation(session: Session, model: ModelEntry, report: Path) -> None:
    """A model's final results in the registry, where `burnish lineage` shows them."""
    result = model.result
    session.registry.add_evaluation(
        model.digest,
        suite="target",
        split=str(Split.FINAL),
        num_tasks=len(result.records),
        num_undecided=sum(r.num_decided == 0 for r in result.records),
        results=pass_rates(result),
        report=str(report),
        run_id=session.folder.run_id,
    )


def write_curves(session: Session) -> list[Path]:
    """PNG curves beside the report."""
    rows = metric_rows(session.folder.read_events().records)
    return plot_curves(rows, session.folder.report)
