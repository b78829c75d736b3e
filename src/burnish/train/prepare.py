"""Everything that is checked and built before a run folder exists: model, template, tasks, machine.

Whatever is wrong with the user's input is found here, so that nothing is overwritten and nothing half done.
Leaves out training (`sft`, `grpo`) and the order of things (`pipeline`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.core.errors import ConfigError, DataError, ResourceError
from burnish.core.protocols import Verifier
from burnish.core.seeds import derive_seed
from burnish.core.types import Message, Role, Split
from burnish.data.preflight import PreflightReport, preflight
from burnish.data.sources import Conversation, LoadedTask, load_tasks
from burnish.domains.base import Contents, Domain, Example, assert_disjoint, check_gold
from burnish.domains.bfcl import NotAvailable, load_bfcl
from burnish.domains.files import FileDomain
from burnish.domains.registry import get_domain
from burnish.evals.guard_suites import UserGuardSuite, user_suite
from burnish.models.load import resolve_model
from burnish.observe.resources import machine_facts
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import TextTokenizer, load_tokenizer
from burnish.train.recipe import Recipe, UserGuard, is_file_domain
from burnish.train.recipe_stages import GrpoStage
from burnish.train.reward import require_components
from burnish.verify.registry import get_verifier

RunLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end in an event loop, as `asyncio.run` and `asyncio.Runner.run` do."""

EVALUATION_SEED = 20_240
"""Seed of every evaluation set, in every run: sets stay the same across runs and training seeds, so that
results pair and a model's answers can be found again. Any constant would do."""

COPIES_ON_DISK = 5
"""Model copies a run may hold at once: a checkpoint with two optimiser moments, a candidate, a promoted one."""


@dataclass(frozen=True, slots=True)
class TaskSets:
    """The sets of all domains pooled, in the order of domains. `labelled` may be shown to the model; `components`
    are the names of partial credits that the verifiers report."""

    labelled: tuple[Example, ...]
    development: tuple[Example, ...]
    gate: tuple[Example, ...]
    final: tuple[Example, ...]
    components: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recipe's parts, checked."""

    recipe: Recipe
    base_folder: Path
    tokenizer: TextTokenizer
    renderer: Renderer
    domains: tuple[Domain, ...]
    verifiers: dict[str, Verifier]
    sets: TaskSets
    preflight: PreflightReport
    external: tuple[Example, ...]
    not_run: dict[str, str]
    user_guards: tuple[UserGuardSuite, ...]


def prepare(recipe: Recipe, recipe_folder: Path, *, run: RunLoop = asyncio.run) -> Prepared:
    """Build and check what a run needs; paths in a recipe are relative to its folder. `run` drives the event loop in
    which golds are held against their verifiers.

    Raises: InputError of some kind for anything that is wrong with model, template, tasks or machine.
    """
    base = resolve_model(_model_source(recipe, recipe_folder))
    tokenizer = load_tokenizer(base)
    renderer = Renderer(tokenizer)
    verifiers = load_verifiers(recipe, recipe_folder)
    domains = tuple(_domain(name, recipe, recipe_folder) for name in recipe.tasks.domains)
    require_prompts(recipe, domains)
    require_names(domains)
    guards = tuple(_user_guard(g, recipe, recipe_folder) for g in recipe.guards if isinstance(g, UserGuard))
    sets = task_sets(recipe, domains, verifiers, run=run)
    check_gold(_guard_examples(guards), verifiers, run=run)
    for index, stage in enumerate(recipe.stages):
        if isinstance(stage, GrpoStage):
            require_components(stage.partial_credit, sets.components, where=f"stages[{index}].partial_credit")
    report = check_labelled(sets.labelled, renderer, context_tokens(base))
    external, not_run = _external(recipe)
    return Prepared(
        recipe=recipe,
        base_folder=base,
        tokenizer=tokenizer,
        renderer=renderer,
        domains=domains,
        verifiers=verifiers,
        sets=sets,
        preflight=report,
        external=external,
        not_run=not_run,
        user_guards=tuple(suite for suite, _ in guards),
    )


def _model_source(recipe: Recipe, folder: Path) -> str:
    beside = folder / recipe.model.source
    return str(beside) if beside.exists() else recipe.model.source


def _domain(name: str, recipe: Recipe, folder: Path) -> Domain:
    if not is_file_domain(name):
        return get_domain(name)
    assert recipe.tasks.verifier is not None  # the recipe refuses files without a verifier
    return FileDomain(_beside(name, folder), recipe.tasks.verifier)


def _beside(name: str, folder: Path) -> Path:
    path = Path(name).expanduser()
    return path if path.is_absolute() else folder / path


def load_verifiers(recipe: Recipe, folder: Path) -> dict[str, Verifier]:
    """Verifiers that the recipe names, by the name it uses; `file.py:function` is looked for beside the recipe.

    Raises: ConfigError where one is unknown or cannot be loaded.
    """
    names = [guard.verifier for guard in recipe.guards if isinstance(guard, UserGuard)]
    if recipe.tasks.verifier is not None:
        names.append(recipe.tasks.verifier)
    found = {}
    for name in names:
        file, colon, attribute = name.rpartition(":")
        is_file = bool(colon) and file.endswith(".py")
        found[name] = get_verifier(f"{_beside(file, folder)}:{attribute}" if is_file else name)
    return found


def require_prompts(recipe: Recipe, domains: tuple[Domain, ...]) -> None:
    """Every step of RL needs as many different training prompts as it trains on.

    Raises: DataError where a domain with an end has too few.
    """
    for index, stage in enumerate(recipe.stages):
        if not isinstance(stage, GrpoStage):
            continue
        share = -(-stage.prompts_per_step // len(domains))
        for domain in domains:
            limit = domain.limit(Split.TRAIN)
            if limit is not None and limit < share:
                raise DataError(
                    f"{domain.name} has {limit} training tasks, and a step draws {share} from each domain",
                    where=f"stages[{index}].prompts_per_step={stage.prompts_per_step}",
                    fix=f"add rows, or set prompts_per_step to at most {limit * len(domains)}",
                )


def require_names(domains: Sequence[Domain]) -> None:
    """Domains have different names: results, few-shot prompts and curves are kept by name.

    Raises: ConfigError naming two of one name.
    """
    for index, domain in enumerate(domains):
        if domain.name in {other.name for other in domains[:index]}:
            raise ConfigError(
                f"two domains are named {domain.name!r} (a file's name is that of its domain)",
                where="tasks.domains",
                fix="rename one of the files, or put their rows into one file",
            )


def task_sets(
    recipe: Recipe, domains: tuple[Domain, ...], verifiers: Mapping[str, Verifier], *, run: RunLoop = asyncio.run
) -> TaskSets:
    """Every set of every domain; disjoint, and every gold usable by its own verifier, those of all rows that RL may
    draw included where a domain has an end.

    Raises: DataError where a domain cannot give so many tasks or sets share content; VerifierError.
    """
    tasks = recipe.tasks
    wanted = {
        Split.TRAIN: (tasks.train_labels, derive_seed(recipe.seed, "labels")),
        Split.DEVELOPMENT: (tasks.development, EVALUATION_SEED),
        Split.GATE: (tasks.gate, EVALUATION_SEED),
        Split.FINAL: (tasks.final, EVALUATION_SEED),
    }
    made: dict[Split, list[Example]] = {split: [] for split in wanted}
    drawn: list[Example] = []
    for domain in domains:
        own = {
            split: domain.labelled(count, seed) if split is Split.TRAIN else domain.generate(split, count, seed)
            for split, (count, seed) in wanted.items()
        }
        assert_disjoint({str(split): examples for split, examples in own.items()})
        for split, examples in own.items():
            made[split].extend(examples)
        limit = domain.limit(Split.TRAIN)
        if limit is not None and recipe.has_stage("grpo"):
            drawn += domain.generate(Split.TRAIN, limit, 0)
    labelled, development, gate, final = (tuple(made[split]) for split in wanted)
    components = check_gold((*labelled, *development, *gate, *final, *drawn), verifiers, run=run)
    return TaskSets(labelled, development, gate, final, components)


def contents_of(sets: TaskSets, domains: Sequence[Domain]) -> dict[str, Contents]:
    """What the sets are made of, by domain: prompts that RL draws later are held against it."""
    named = {
        Split.TRAIN: sets.labelled,
        Split.DEVELOPMENT: sets.development,
        Split.GATE: sets.gate,
        Split.FINAL: sets.final,
    }
    found = {domain.name: Contents() for domain in domains}
    for split, examples in named.items():
        for example in examples:
            found[example.task.domain].claim(str(split), (example,))
    return found


def check_labelled(examples: tuple[Example, ...], renderer: Renderer, max_tokens: int) -> PreflightReport:
    """Preflight over the labelled rows, or over one probe conversation where there are none.

    Raises: TemplateError or DataError for what makes training wrong.
    """
    report = _preflight(examples, renderer, max_tokens)
    report.raise_if_failed()
    return report


def preflight_recipe(recipe: Recipe, recipe_folder: Path, *, max_tokens: int | None = None) -> PreflightReport:
    """The preflight of a recipe as a report, faults included; `max_tokens` None is the model's context.

    Raises: InputError where model, template or tasks cannot be read at all.
    """
    base = resolve_model(_model_source(recipe, recipe_folder))
    renderer = Renderer(load_tokenizer(base))
    domains = tuple(_domain(name, recipe, recipe_folder) for name in recipe.tasks.domains)
    labelled = task_sets(recipe, domains, load_verifiers(recipe, recipe_folder)).labelled
    return _preflight(labelled, renderer, max_tokens or context_tokens(base))


def _preflight(examples: tuple[Example, ...], renderer: Renderer, max_tokens: int) -> PreflightReport:
    rows = [
        Conversation((*e.task.prompt, e.demonstration), f"task {e.task.id} ({e.task.source})", e.task.tools)
        for e in examples
        if e.demonstration.parts
    ]
    probe = (Message.of(Role.USER, "Say yes."), Message.of(Role.ASSISTANT, "yes"))
    return preflight(rows or [Conversation(probe, "a probe conversation")], renderer, max_tokens=max_tokens)


def context_tokens(folder: Path) -> int:
    """Positions that a model folder's configuration allows."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return int(config.get("text_config", config)["max_position_embeddings"])


def _external(recipe: Recipe) -> tuple[tuple[Example, ...], dict[str, str]]:
    if recipe.external.bfcl is False:
        return (), {"bfcl": "left out by the recipe (external.bfcl: false)"}
    loaded = load_bfcl()
    if isinstance(loaded, NotAvailable):
        if recipe.external.bfcl is True:
            raise ResourceError(
                f"external.bfcl is true, but {loaded.reason}",
                where="external.bfcl",
                fix="set BURNISH_SHARED_DATA to the folder that holds bfcl/, or external.bfcl to auto",
            )
        return (), {"bfcl": loaded.reason}
    return tuple(loaded), {}


Guard = tuple[UserGuardSuite, list[LoadedTask]]


def _user_guard(guard: UserGuard, recipe: Recipe, folder: Path) -> Guard:
    """A user's guard and the rows that it is made of.

    Raises: DataError where it has too few rows for its interval.
    """
    path = _beside(guard.tasks, folder)
    rows = list(load_tasks(path, verifier=guard.verifier, domain=f"guard.{guard.name}", split=Split.GATE))
    clusters = len({task.cluster for task, _, _ in rows})
    if clusters < (least := recipe.gate_config().min_clusters):
        raise DataError(
            f"the guard {guard.name!r} has {clusters} rows (or clusters); its interval needs {least}",
            where=str(path),
            fix="add rows: a guard that cannot be judged lets no checkpoint through",
        )
    suite = user_suite(guard.name, guard.margin, [(t, g) for t, g, _ in rows], recipe.sampling.max_tokens)
    return suite, rows


def _guard_examples(guards: Sequence[Guard]) -> list[Example]:
    """The rows of guards, to be checked as those of tasks are."""
    rows = [row for _, rows in guards for row in rows]
    return [Example(task, gold, demonstration or Message(Role.ASSISTANT, ())) for task, gold, demonstration in rows]


def require_disk(folder: Path, model_bytes: int) -> None:
    """Room for the checkpoints of a run.

    Raises: ResourceError with both figures.
    """
    parent = folder if folder.exists() else next(p for p in folder.absolute().parents if p.exists())
    free, need = shutil.disk_usage(parent).free, COPIES_ON_DISK * model_bytes
    if free < need:
        raise ResourceError(
            f"a run of this model needs about {need / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free",
            where=str(parent),
            fix="free some space, or choose another disk with --out",
        )


def describe_machine(folder: Path) -> dict[str, Any]:
    """Machine facts for reports: no names of hosts or paths."""
    facts = machine_facts(folder)
    return {
        "cpu": facts.cpu_model,
        "cores": facts.cores,
        "memory_gib": round(facts.memory_total_bytes / 2**30, 1),
        "flags": list(facts.cpu_flags),
        "gpus": [gpu.name for gpu in facts.gpus],
    }
