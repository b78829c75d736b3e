"""One run in one process: its parts opened, and its state on disk.

`state.json` says which parts are finished and what each handed on; it is written after each part, in one
rename, so a killed run resumes from the last finished part (and, within a stage, from the stage's last
training checkpoint).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnish.core.codec import decode, encode
from burnish.core.types import content_id
from burnish.domains.base import Example, split_digest
from burnish.evals.guard_suites import GuardRunner
from burnish.evals.suite import Suite, SuiteRunner
from burnish.models.digest import weights_digest
from burnish.models.dtype import choose_dtype
from burnish.models.policy import Policy
from burnish.observe.disk import atomic_write
from burnish.observe.events import FinalSetOpened, IdentityProof
from burnish.observe.run_folder import RunFolder
from burnish.registry.code import source_hash
from burnish.registry.registry import Registry
from burnish.rollout.driver import Driver
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import IdentityProver
from burnish.train.context import Context, split_of
from burnish.train.prepare import Prepared, contents_of
from burnish.train.recipe import Recipe

NUM_PROBES = 4
PROBE_TOKENS = 48
"""Probes of the identity proof: the first tokens of labelled conversations. 4 x 48 log-probabilities cost
half a second with a 135M model on two cores, and any change of the weights moves some of them."""


@dataclass(frozen=True, slots=True)
class StageState:
    """A finished stage: its candidate (None where it was refused) and what the gate said."""

    name: str
    kind: str
    path: str
    digest: str
    parent: str
    parent_path: str
    promoted: bool
    seconds: float
    reason: str
    formula: str
    gate: dict[str, Any] | None = None
    best_step: int | None = None
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """What is finished. `dtype` is the sampler's; `few_shot` maps a domain to the chosen candidate's number (-1: the
    plain prompt); `final_models` are the digests that the final set was last opened for; `pending` is trained and not
    yet judged."""

    base_digest: str = ""
    dtype: str = ""
    few_shot: dict[str, int] = field(default_factory=dict)
    few_shot_rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    stages: tuple[StageState, ...] = ()
    pending: StageState | None = None
    promoted_path: str = ""
    promoted_digest: str = ""
    promoted_stage: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    tokens_sampled: int = 0
    tokens_computed: int = 0
    tokens_trained: int = 0
    openings: dict[str, int] = field(default_factory=dict)
    opened_by_others: dict[str, int] = field(default_factory=dict)
    final_models: tuple[str, ...] = ()

    def next_stage(self, recipe: Recipe) -> str:
        """Name of the first unfinished stage, or "final"."""
        done = len(self.stages)
        return stage_name(recipe, done) if done < len(recipe.stages) else "final"


def stage_name(recipe: Recipe, index: int) -> str:
    """A stage's name: its kind, numbered where the recipe has several of that kind."""
    kinds = [stage.kind for stage in recipe.stages]
    kind = kinds[index]
    return kind if kinds.count(kind) == 1 else f"{kind}-{kinds[: index + 1].count(kind)}"


@dataclass(slots=True)
class Session:
    """A run's parts. `policies` are loaded by the stages; the engine holds its own copy of some weights."""

    prepared: Prepared
    folder: RunFolder
    registry: Registry
    context: Context
    guards: GuardRunner
    gate_suite: Suite
    final_suite: Suite
    state: RunState
    config_digest: str
    data_digests: dict[str, str]
    machine: dict[str, Any]
    _started_s: float

    @property
    def elapsed_s(self) -> float:
        """Seconds since this process opened the run."""
        return time.monotonic() - self._started_s

    def save(self, **changes: Any) -> None:
        """Change the state and write it, in one rename."""
        engine = self.context.engine
        self.state = replace(
            self.state,
            tokens_sampled=self.state.tokens_sampled + engine.tokens_sampled,
            tokens_computed=self.state.tokens_computed + engine.decoder.num_computed_tokens,
            **changes,
        )
        engine.tokens_sampled = engine.decoder.num_computed_tokens = 0
        text = json.dumps(encode(self.state), ensure_ascii=True, allow_nan=False, indent=1)
        atomic_write(self.folder.path / "state.json", text.encode("ascii"))

    def spent(self, part: str, seconds: float) -> dict[str, float]:
        """The seconds table with so much more for a part."""
        return {**self.state.seconds, part: self.state.seconds.get(part, 0.0) + seconds}

    async def show_engine(self, policy: Policy, *, stage: str, step: int) -> str:
        """Put a policy's weights into the engine, proved; returns their digest."""
        await self.context.sync(policy, stage=stage, step=step)
        self.context.held = weights_digest(policy.sampler_state())
        return self.context.held

    def open_final(self, models: Sequence[str], digest: str, reason: str) -> None:
        """Count one opening of every domain's final set, before the first task is shown to one of these models.

        Going on with an interrupted evaluation of the same models, or drawing its report again, is no second one.
        """
        if self.state.final_models == tuple(models):
            return
        openings, others = dict(self.state.openings), dict(self.state.opened_by_others)
        by = f"{recipe_digest(self.prepared.recipe)} with code {source_hash()}"
        for domain, set_digest in final_digests(self.prepared.sets.final).items():
            openings[domain] = openings.get(domain, 0) + 1
            others[domain] = self.registry.open_final_set(set_digest, domain=domain, by=by, models=models)
            self.context.emit(FinalSetOpened(domain, openings[domain], digest, reason))
            if others[domain]:
                self.context.warn(opened_before(domain, others[domain]))
        self.save(openings=openings, opened_by_others=others, final_models=tuple(models))

    def identity_summary(self) -> dict[str, float]:
        """How many proofs, the largest gap, how many undetectable, over the whole run."""
        proofs = [e for e in self.folder.read_events().events if isinstance(e, IdentityProof)]
        return {
            "proofs": float(len(proofs)),
            "largest_gap_nats": max((p.logp_gap_max for p in proofs), default=0.0),
            "undetectable": float(sum(p.result == "undetectable" for p in proofs)),
        }


FINAL_HEAD = 20
"""So many of its first tasks identify a final set."""


def recipe_digest(recipe: Recipe) -> str:
    """The settings of a recipe, whatever its seed."""
    return content_id(recipe=recipe.model_dump(mode="json", exclude={"seed", "seeds"}))


def final_digests(final: Sequence[Example]) -> dict[str, str]:
    """The identity of each domain's final set: its beginning, which a smaller and a larger draw of it share."""
    domains = sorted({example.task.domain for example in final})
    own = {domain: [e for e in final if e.task.domain == domain] for domain in domains}
    return {domain: split_digest(examples[:FINAL_HEAD]) for domain, examples in own.items()}


def opened_before(domain: str, others: int) -> str:
    """What a person should know about a final set that others have seen."""
    times = "once" if others == 1 else f"{others} times"
    return (
        f"the final set of {domain} was opened on this machine before, {times} by another recipe, code or verb: "
        "where settings were chosen after looking at those numbers, these are no longer blind"
    )


def config_digest(recipe: Recipe) -> str:
    """What a run is registered under: a digest of everything that its recipe says."""
    return content_id(recipe=recipe.model_dump(mode="json"))


def open_session(prepared: Prepared, folder: RunFolder, registry: Registry, *, cache: Path) -> Session:
    """Load the base model into the engine and read the state that an earlier process left."""
    recipe = prepared.recipe
    path = folder.path / "state.json"
    state = decode(RunState, json.loads(path.read_text("utf-8")), where=str(path)) if path.is_file() else RunState()
    dtype, autocast = choose_dtype(state.dtype or recipe.model.dtype)  # resumed elsewhere, it computes as it began
    state = replace(state, dtype=str(dtype).removeprefix("torch."))
    base = Policy.load(prepared.base_folder)
    engine = LocalEngine(base.model, prepared.tokenizer, dtype=dtype, max_sequences=recipe.engine.max_sequences)
    driver = Driver(engine, prepared.renderer, run_seed=recipe.seed, verifiers=prepared.verifiers)
    runner = SuiteRunner(driver, cache=cache, max_undecided_frac=recipe.faults.max_undecided_frac)
    sets = prepared.sets
    context = Context(
        recipe=recipe,
        folder=folder,
        tokenizer=prepared.tokenizer,
        renderer=prepared.renderer,
        engine=engine,
        driver=driver,
        runner=runner,
        prover=IdentityProver(_probes(prepared), dtype),
        domains=prepared.domains,
        contents=contents_of(sets, prepared.domains),
        labelled=sets.labelled,
        development=split_of(sets.development, sets.development[0].task.split, "target"),
        dtype=torch.float32,  # trained weights, whatever the sampler computes in (see `models.dtype`)
        autocast=autocast,
        deadline_s=recipe.limits.max_seconds or float("inf"),
        earlier_s=sum(state.seconds.values()),
    )
    builtin = tuple(name for name in recipe.guard_names if name not in {s.spec.name for s in prepared.user_guards})
    named = {
        "labelled": sets.labelled,
        "development": sets.development,
        "gate": sets.gate,
        "final": sets.final,
    }
    return Session(
        prepared=prepared,
        folder=folder,
        registry=registry,
        context=context,
        guards=GuardRunner(driver, builtin, prepared.user_guards, cache=cache),
        gate_suite=split_of(sets.gate, sets.gate[0].task.split, "target"),
        final_suite=split_of(sets.final, sets.final[0].task.split, "target"),
        state=state,
        config_digest=config_digest(recipe),
        data_digests={name: split_digest(examples) for name, examples in named.items()},
        machine={},
        _started_s=time.monotonic(),
    )


def _probes(prepared: Prepared) -> list[NDArray[np.int32]]:
    examples = (prepared.sets.labelled or prepared.sets.development)[:NUM_PROBES]
    return [prepared.renderer.prompt(example.task.prompt).ids[:PROBE_TOKENS] for example in examples]
