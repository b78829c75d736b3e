"""What every stage of a run shares: the engine and its proof, suites, events, and the current policy.

Leaves out what a stage does (`sft`, `grpo`) and in which order stages come (`pipeline`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.protocols import Sampling
from burnish.core.seeds import derive_seed
from burnish.core.types import Split
from burnish.domains.base import Contents, Domain, Example
from burnish.evals.suite import Suite, SuiteRun, SuiteRunner, mean_pass_rate, pass_rates
from burnish.models.policy import LoraSpec, Policy
from burnish.observe import events
from burnish.observe.resources import peak_rss_bytes
from burnish.observe.run_folder import RunFolder
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import TextTokenizer
from burnish.rollout.driver import Driver
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import IdentityProver, ProbePower, WeightUpdate
from burnish.train.recipe import Recipe


@dataclass(slots=True)
class Context:
    """One run's shared parts. `version` counts weight syncs; `held` is the digest of the model that the engine was
    given whole, '' while a stage is training; `earlier_s` is what earlier processes spent on this run."""

    recipe: Recipe
    folder: RunFolder
    tokenizer: TextTokenizer
    renderer: Renderer
    engine: LocalEngine
    driver: Driver
    runner: SuiteRunner
    prover: IdentityProver
    domains: Sequence[Domain]
    contents: Mapping[str, Contents]
    labelled: Sequence[Example]
    development: Suite
    dtype: torch.dtype
    autocast: bool
    deadline_s: float = math.inf
    earlier_s: float = 0.0
    version: int = 0
    held: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.monotonic)

    # --- events -------------------------------------------------------------------------------------

    def emit(self, event: events.Event) -> None:
        """Append one event."""
        self.folder.events.append(event)

    def warn(self, message: str, *, stage: str = "", step: int | None = None) -> None:
        """Something a person should know."""
        self.emit(events.Warning_(message, stage=stage, step=step))

    def progress(self, stage: str, activity: str, unit: str = "") -> ProgressReporter:
        """A callback for (done, total) that emits at most four events a second."""
        return ProgressReporter(self, stage, activity, unit)

    def out_of_time(self) -> bool:
        """Whether `limits.max_seconds` is used up, over all processes that worked on this run."""
        return self.earlier_s + time.monotonic() - self._started_s > self.deadline_s

    # --- policies -----------------------------------------------------------------------------------

    def load_policy(self, folder: Path) -> Policy:
        """A trainable policy as the recipe wants it."""
        torch.manual_seed(derive_seed(self.recipe.seed, "lora", folder.name))  # adapters begin at random
        return Policy.load(folder, dtype=self.dtype, lora=lora_spec(self.recipe), autocast=self.autocast)

    async def sync(self, policy: Policy, *, stage: str, step: int) -> None:
        """Hand the policy's weights to the sampler and prove that it speaks for them.

        Raises: PolicyMismatchError.
        """
        began = time.monotonic()
        self.held = ""
        state: Mapping[str, Tensor] = policy.sampler_state()
        self.version += 1
        await self.engine.load_weights(WeightUpdate(state, self.version))
        proof = await self.prover.prove(
            self.engine,
            state,
            policy.score(self.prover.probes),
            self.version,
            reference=lambda: policy.reference_scores(
                self.prover.probes, self.engine.dtype, stream=self.engine.stream_dtype
            ),
        )
        self.seconds["sync"] = self.seconds.get("sync", 0.0) + time.monotonic() - began
        self.emit(
            events.IdentityProof(
                stage=stage,
                step=step,
                policy_version=self.version,
                digest_matches=proof.digest_sampler == proof.digest_trainer,
                logp_gap_max=proof.gap,
                tolerance=proof.tolerance,
                result="undetectable" if proof.power is ProbePower.UNDETECTABLE else "proved",
                version_gap_max=0.0 if math.isnan(proof.signal) else proof.signal,
                logp_gap_mean=proof.gap_mean,
                noise_ratio=None if math.isnan(proof.noise_ratio) else proof.noise_ratio,
            )
        )

    # --- evaluation ---------------------------------------------------------------------------------

    @property
    def greedy(self) -> Sampling:
        """The decoding of every pass@1."""
        return Sampling(max_tokens=self.recipe.sampling.max_tokens, temperature=0.0)

    @property
    def sampling(self) -> Sampling:
        """The decoding of rollouts."""
        config = self.recipe.sampling
        return Sampling(config.max_tokens, config.temperature, config.top_p, config.top_k)

    async def evaluate(
        self, suite: Suite, *, digest: str, stage: str, prompt: str = "plain", keep: int = 0
    ) -> SuiteRun:
        """Greedy pass@1 of whatever the engine holds now, with its event."""
        began = time.monotonic()
        self.driver.on_done = self.progress(stage, f"evaluating {suite.name} ({suite.split})", "tasks")
        run = await self.runner.run(suite, self.greedy, model_digest=digest, prompt=prompt, keep=keep)
        self.driver.on_done = None
        result = run.result
        elapsed = time.monotonic() - began
        self.seconds["evaluate"] = self.seconds.get("evaluate", 0.0) + elapsed
        self.emit(
            events.EvalFinished(
                stage=stage,
                suite=suite.name if prompt == "plain" else f"{suite.name} [{prompt}]",
                split=str(suite.split),
                checkpoint_digest=digest,
                num_tasks=len(result.records),
                num_undecided=sum(r.num_decided == 0 for r in result.records),
                results=pass_rates(result),
                seconds=elapsed,
            )
        )
        return run

    async def curve_point(self, policy: Policy, *, stage: str, step: int) -> float:
        """Pass rate on the curve's development tasks, from the policy as it is now."""
        await self.sync(policy, stage=stage, step=step)
        suite = self.development.head(self.recipe.tasks.curve)
        run = await self.evaluate(suite, digest=f"{stage}@{step}/v{self.version}/{self.folder.run_id}", stage=stage)
        rate = mean_pass_rate(run.result)
        self.emit(events.StepMetrics(stage, step, {"dev_pass_rate": rate}))
        return rate

    # --- metrics ------------------------------------------------------------------------------------

    def memory(self) -> dict[str, float]:
        """Peak memory of this process, as a metric."""
        return {"peak_memory_bytes": float(peak_rss_bytes())}


class ProgressReporter:
    """Turns (done, total) into events, not more than a few a second."""

    def __init__(self, context: Context, stage: str, activity: str, unit: str) -> None:
        self._context, self._stage, self._activity, self._unit = context, stage, activity, unit
        self._next_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next_s or done == total:
            self._next_s = now + 0.25
            self._context.emit(events.Progress(self._stage, self._activity, done, total, self._unit))


def lora_spec(recipe: Recipe) -> LoraSpec | None:
    """The adapters that a recipe trains, or None where it trains all weights."""
    lora = recipe.model.lora
    return None if lora is None else LoraSpec(lora.rank, lora.alpha, tuple(lora.target_modules))


def length_metrics(lengths: NDArray[np.int64]) -> dict[str, float]:
    """The reply-length distribution, tokens."""
    if len(lengths) == 0:
        return {}
    p10, p50, p90 = np.quantile(lengths, [0.1, 0.5, 0.9])
    return {
        "reply_tokens_mean": float(lengths.mean()),
        "reply_tokens_p10": float(p10),
        "reply_tokens_p50": float(p50),
        "reply_tokens_p90": float(p90),
        "reply_tokens_max": float(lengths.max()),
    }


def split_of(examples: Sequence[Example], split: Split, name: str) -> Suite:
    """Examples as a suite."""
    return Suite(name, split, tuple((example.task, example.gold) for example in examples))
