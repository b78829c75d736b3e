"""What the command line's verbs do beyond parsing: evaluate, gate, compare, rescore, chat.

The same functions serve from Python. Everything here starts from paths and recipes and returns plain objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.codec import encode
from burnish.core.errors import ConfigError, DataError
from burnish.core.gold import Gold
from burnish.core.protocols import Completion, GenerateRequest, Sampling
from burnish.core.seeds import derive_seed
from burnish.core.types import Artifacts, Decision, Message, Role, Split, Task, Trajectory, content_id
from burnish.evals.gate import GateConfig, GateDecision, decide
from burnish.evals.gate import compare as compare_results
from burnish.evals.guard_suites import GuardRunner
from burnish.evals.report import read_report
from burnish.evals.results import SuiteResult
from burnish.evals.suite import Suite, SuiteRunner
from burnish.models.digest import weights_digest
from burnish.models.dtype import choose_dtype
from burnish.models.load import resolve_model
from burnish.models.policy import Policy
from burnish.observe.disk import atomic_write
from burnish.observe.run_folder import RunFolder
from burnish.observe.trajectories import TrajectoryReader
from burnish.registry.registry import Registry
from burnish.render.renderer import Extension, Renderer
from burnish.render.tokenizer import load_tokenizer
from burnish.rollout.driver import Driver
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import WeightUpdate
from burnish.train.context import split_of
from burnish.train.few_shot import candidate_prompts, choose_prompt, under_best_prompt
from burnish.train.grpo import redraw_prompts
from burnish.train.pipeline import recipe_folder_of
from burnish.train.prepare import Prepared, prepare
from burnish.train.recipe import load_recipe
from burnish.train.recipe_stages import GrpoStage
from burnish.train.session import config_digest, final_digests, stage_name
from burnish.verify.registry import get_verifier
from burnish.verify.runner import verify_one

Progress = Callable[[str, int, int], None]

EXTERNAL_SUITES = ("bfcl",)
"""Public checks that `burnish eval --split NAME` runs by themselves; never trained on, no gate reads them."""


@dataclass(slots=True)
class _Bench:
    """An engine with a driver on it, for evaluations outside a run."""

    prepared: Prepared
    engine: LocalEngine
    driver: Driver
    runner: SuiteRunner
    digest: str = ""

    async def hold(self, source: str) -> str:
        """Have the engine hold this model; returns its digest."""
        policy = Policy.load(_of_one_tokenizer(self.prepared, source))
        state = policy.sampler_state()
        await self.engine.load_weights(WeightUpdate(state, self.engine.version + 1))
        self.digest = weights_digest(state)
        return self.digest


def _bench(recipe: str | Path, overrides: Iterable[str], model: str) -> _Bench:
    loaded = load_recipe(recipe, overrides).recipe
    prepared = prepare(loaded, Path(recipe).parent)
    dtype, _ = choose_dtype(loaded.model.dtype)
    policy = Policy.load(_of_one_tokenizer(prepared, model))
    engine = LocalEngine(policy.model, prepared.tokenizer, dtype=dtype, max_sequences=loaded.engine.max_sequences)
    driver = Driver(engine, prepared.renderer, run_seed=loaded.seed, verifiers=prepared.verifiers)
    runner = SuiteRunner(driver, cache=None, max_undecided_frac=loaded.faults.max_undecided_frac)
    return _Bench(prepared, engine, driver, runner, weights_digest(policy.sampler_state()))


def _of_one_tokenizer(prepared: Prepared, model: str) -> Path:
    """The folder of a model that reads tokens as the recipe's model does.

    Raises: ConfigError where it has another tokenizer or chat template.
    """
    folder = resolve_model(model)
    if load_tokenizer(folder).digest != prepared.tokenizer.digest:
        raise ConfigError(
            f"{model} has another tokenizer or chat template than the recipe's model, {prepared.recipe.model.source}",
            where="MODEL",
            fix=f"evaluate it with a recipe of its own: --set model.source={model}",
        )
    return folder


def _suite(prepared: Prepared, name: str) -> Suite:
    """One of the recipe's own sets, by the name of its split."""
    sets = {
        Split.DEVELOPMENT: prepared.sets.development,
        Split.GATE: prepared.sets.gate,
        Split.FINAL: prepared.sets.final,
    }
    for split, examples in sets.items():
        if name == split.value:
            return split_of(examples, split, "target")
    raise ConfigError(
        f"there is no set {name!r} here", where="--split", fix="choose development, gate, final, or for eval also bfcl"
    )


def _external_suite(prepared: Prepared, name: str) -> Suite:
    if name in prepared.not_run:
        fix = "set BURNISH_SHARED_DATA to the folder that holds bfcl/, and external.bfcl to auto or true"
        raise ConfigError(f"{name} cannot be run: {prepared.not_run[name]}", where="--split", fix=fix)
    return split_of(prepared.external, Split.FINAL, name)


def _count_opening(prepared: Prepared, split: Split, models: Sequence[str], verb: str) -> None:
    """A look at the sealed set outside a run counts as much as one inside: later reports say so."""
    if split is Split.FINAL:
        registry, by = Registry(), f"{verb} {content_id(models=sorted(models))}"
        for domain, digest in final_digests(prepared.sets.final).items():
            registry.open_final_set(digest, domain=domain, by=by, models=models)


def evaluate(
    model: str,
    recipe: str | Path,
    *,
    split: str = "development",
    overrides: Iterable[str] = (),
    num_samples: int = 1,
    keep: int = 0,
    on_progress: Progress | None = None,
) -> tuple[SuiteResult, tuple[Trajectory, ...]]:
    """Evaluate a model on one split of a recipe's tasks: greedy for one sample, else the recipe's sampling.

    `split`: development, gate, final, or the name of an external suite ("bfcl").

    Raises: InputError for a wrong recipe, model or split.
    """
    bench = _bench(recipe, overrides, model)
    loaded = bench.prepared.recipe
    if split in EXTERNAL_SUITES:
        chosen = _external_suite(bench.prepared, split)
    else:
        chosen = _suite(bench.prepared, split)
        _count_opening(bench.prepared, chosen.split, [bench.digest], "burnish eval")
    greedy = Sampling(loaded.sampling.max_tokens, temperature=0.0)
    sampled = Sampling(
        loaded.sampling.max_tokens, loaded.sampling.temperature, loaded.sampling.top_p, loaded.sampling.top_k
    )
    if on_progress is not None:
        bench.driver.on_done = lambda done, total: on_progress("evaluating", done, total)
    run = asyncio.run(
        bench.runner.run(
            chosen,
            greedy if num_samples == 1 else sampled,
            model_digest=bench.digest,
            num_samples=num_samples,
            keep=keep,
        )
    )
    return run.result, run.trajectories


def gate_checkpoints(
    candidate: str,
    parent: str,
    recipe: str | Path,
    *,
    overrides: Iterable[str] = (),
    split: str = "gate",
    on_progress: Progress | None = None,
) -> GateDecision:
    """Judge a candidate against its parent, and against the recipe's base model under its best few-shot prompt,
    which is chosen on the development set as a run chooses it (see `few_shot`).

    Raises: InputError for a wrong recipe, model or split.
    """
    bench = _bench(recipe, overrides, candidate)
    loaded, prepared = bench.prepared.recipe, bench.prepared
    suite = _suite(prepared, split)
    _count_opening(prepared, suite.split, [bench.digest], "burnish gate")
    greedy = Sampling(loaded.sampling.max_tokens, temperature=0.0)
    if on_progress is not None:
        bench.driver.on_done = lambda done, total: on_progress("evaluating", done, total)
    builtin = tuple(n for n in loaded.guard_names if n not in {s.spec.name for s in prepared.user_guards})
    guards = GuardRunner(bench.driver, builtin, prepared.user_guards)

    async def of_base(tasks: Suite, prompt: str) -> SuiteResult:
        return (await bench.runner.run(tasks, greedy, model_digest=bench.digest, prompt=prompt)).result

    async def main() -> GateDecision:
        found = (await bench.runner.run(suite, greedy, model_digest=bench.digest)).result
        new = await guards.measure(bench.digest)
        digest = await bench.hold(parent)
        before = (await bench.runner.run(suite, greedy, model_digest=digest)).result
        digest = await bench.hold(str(prepared.base_folder))
        development = _suite(prepared, Split.DEVELOPMENT.value)
        chosen = {}
        for domain in prepared.domains:
            own, prompts = development.of_domain(domain.name), candidate_prompts(prepared, domain.name)
            chosen[domain.name], _ = await choose_prompt(domain.name, prompts, own, of_base)
        prompted, prompt = under_best_prompt(prepared, suite, chosen)
        base = (await bench.runner.run(prompted, greedy, model_digest=digest, prompt=prompt)).result
        old = await guards.measure(digest)
        seed = derive_seed(loaded.seed, "gate", found.model_digest, digest)
        return decide(found, before, base, guards.results(old, new), loaded.gate_config(), seed)

    return asyncio.run(main())


def why_not_recorded(decision: GateDecision, recipe: str | Path, overrides: Iterable[str] = ()) -> str:
    """Why a decision may not stand in the registry beside those of runs; '' where it may.

    A rejection may always. Anything milder must be what the checkpoint's own run would say: the gate set, the
    parent that is on record, and the run's recipe, whose margins and guards no later hand has changed.
    """
    registry = Registry()
    try:
        known = registry.checkpoint(decision.candidate_digest)
    except ConfigError:
        return "no run registered this checkpoint"
    if decision.decision is Decision.REJECT:
        return ""
    if decision.split is not Split.GATE:
        return f"it was judged on the {decision.split} set, not on the gate set"
    if decision.parent_digest != known.ref.parent:
        return f"its parent on record is {known.ref.parent[:12] or 'none'}, not {decision.parent_digest[:12]}"
    run = registry.run(known.run_id)
    loaded = load_recipe(recipe, overrides).recipe
    if run.config_digest not in {config_digest(loaded), config_digest(loaded.for_seed(run.seed))}:
        return f"run {run.run_id} trained it under another recipe: gate with {run.folder / 'config.yaml'}"
    return ""


@dataclass(frozen=True, slots=True)
class RescoreSummary:
    """What a mended verifier changed: counts of verdicts by (old outcome, new outcome), and where it was kept."""

    verifier: str
    old_versions: tuple[str, ...]
    new_version: str
    num_trajectories: int
    changed: dict[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    output: str = ""


def rescore(run_folder: str | Path, verifier: str) -> RescoreSummary:
    """Apply a verifier to the stored trajectories of a run; writes `rescored-NAME-VERSION.jsonl` beside them.

    Stored verdicts are never overwritten: both stand side by side, each with its verifier's version.
    """
    folder = RunFolder.open(Path(run_folder))
    mended = get_verifier(verifier)
    reader = TrajectoryReader(folder.trajectories)
    tasks = _stored_tasks(folder, reader)
    changed: dict[str, int] = {}
    examples: list[str] = []
    versions: set[str] = set()
    lines: list[str] = []

    async def main() -> int:
        count = 0
        for trajectory in reader:
            if trajectory.task_id not in tasks:
                continue
            task, gold = tasks[trajectory.task_id]
            old = trajectory.verdicts["main"]
            if old.verifier != mended.name and task.verifier != verifier:
                continue
            new = await verify_one(mended, task, gold, trajectory, Artifacts())
            versions.add(old.version)
            count += 1
            lines.append(json.dumps({"trajectory": trajectory.id, "task": task.id, "verdict": encode(new)}))
            if new.outcome is not old.outcome:
                key = f"{old.outcome} -> {new.outcome}"
                changed[key] = changed.get(key, 0) + 1
                if len(examples) < 5:
                    examples.append(f"{trajectory.id}: {key}: {new.reason}")
        return count

    count = asyncio.run(main())
    if count == 0:
        raise DataError(
            f"no stored trajectory of this run was judged by {mended.name!r}",
            where=str(folder.path),
            fix="name the verifier of one of the run's domains",
        )
    path = folder.trajectories / f"rescored-{mended.name}-{mended.version}.jsonl"
    atomic_write(path, ("\n".join(lines) + "\n").encode("utf-8"))
    return RescoreSummary(
        mended.name, tuple(sorted(versions)), mended.version, count, changed, tuple(examples), str(path)
    )


def _stored_tasks(folder: RunFolder, reader: TrajectoryReader) -> dict[str, tuple[Task, Gold]]:
    """The tasks of every stored trajectory with their gold, drawn again from the run's own recipe and seed.

    Gold is never written into a run folder; a task's id is a hash of its content, so a wrong one cannot match.
    """
    recipe = load_recipe(folder.config()).recipe
    prepared = prepare(recipe, recipe_folder_of(folder))
    stages = {stage_name(recipe, i): stage for i, stage in enumerate(recipe.stages)}
    found: dict[str, tuple[Task, Gold]] = {}
    for name, step in reader.index:
        stage = stages.get(name)
        if not isinstance(stage, GrpoStage):
            continue
        wanted = {trajectory.task_id for trajectory in reader.read(name, step)}
        most = stage.max_prompt_draws or stage.prompts_per_step
        for example in redraw_prompts(prepared.domains, recipe.seed, name, step - 1, wanted, most):
            found[example.task.id] = (example.task, example.gold)
    return found


def compare(run_a: str | Path, run_b: str | Path) -> dict[str, Any]:
    """The released models of two finished runs on the final set they share, paired.

    Raises: RunError where the runs were evaluated on different tasks or by different verifiers.
    """
    a, b = read_report(Path(run_a)), read_report(Path(run_b))
    entry_a = next(m for m in a.models if m.label == a.promoted_label)
    entry_b = next(m for m in b.models if m.label == b.promoted_label)
    config = GateConfig()
    out: dict[str, Any] = {
        "a": f"{a.name}/{entry_a.label}",
        "b": f"{b.name}/{entry_b.label}",
        "comparisons": {},
    }
    for domain in ("", *entry_a.result.domains):
        left = entry_a.result.of_domain(domain) if domain else entry_a.result
        right = entry_b.result.of_domain(domain) if domain else entry_b.result
        out["comparisons"][domain or "all"] = encode(compare_results(left, right, out["b"], config, a.seed))
    return out


class ChatSession:
    """A conversation with a model, kept as the ids that were sampled.

    `unpromoted`: the checkpoint carries no promotion; whoever shows it says so.
    """

    def __init__(
        self, model: str, *, system: str | None = None, max_tokens: int = 256, temperature: float = 0.7
    ) -> None:
        folder = resolve_model(model)
        self.tokenizer = load_tokenizer(folder)
        self.renderer = Renderer(self.tokenizer)
        policy = Policy.load(folder)
        dtype, _ = choose_dtype("auto")
        self.digest = weights_digest(policy.sampler_state())
        self._engine = LocalEngine(policy.model, self.tokenizer, dtype=dtype, max_sequences=1)
        self._sampling = Sampling(max_tokens, temperature)
        self._messages: list[Message] = [Message.of(Role.SYSTEM, system)] if system else []
        self._ids: Any = None
        self._turn = 0

    def say(self, text: str) -> str:
        """The model's reply to one more user message."""
        message = Message.of(Role.USER, text)
        if self._ids is None:
            ids = self.renderer.prompt([*self._messages, message]).ids
        else:
            extension = self.renderer.extend(self._ids, self._messages, [message])
            if isinstance(extension, Extension):
                ids = np.concatenate([self._ids, extension.ids])
            else:  # a template that rewrites earlier turns: the whole conversation is rendered anew
                ids = self.renderer.prompt([*self._messages, message]).ids
        request = GenerateRequest("chat", ids, self._sampling, (derive_seed(0, "chat", self._turn),))

        async def main() -> Completion:
            return await anext(aiter(self._engine.generate(request)))

        completion = asyncio.run(main())
        reply, _ = self.renderer.parse_reply(completion.text)
        self._ids = np.concatenate([ids, completion.ids])
        self._messages += [message, reply]
        self._turn += 1
        return completion.text


def open_chat(model: str, **options: Any) -> ChatSession:
    """A conversation with a model (see `ChatSession`)."""
    return ChatSession(model, **options)
