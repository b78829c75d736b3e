"""Runs the guards on whatever the engine holds: one value an item, for the base and for each candidate.

The items are Burnish's own (`domains.guards`) or a user's file; what the values mean and when a guard holds
is in `guards`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from burnish.core.codec import decode, encode
from burnish.core.gold import Gold
from burnish.core.outcomes import OUTCOME_TABLE, Outcome
from burnish.core.protocols import Sampling
from burnish.core.types import Task, Trajectory, content_id
from burnish.domains.guards import guard_examples, held_out_passages
from burnish.evals.guards import DEFAULT_GUARDS, GuardResult, GuardSpec, guard_result
from burnish.observe.disk import atomic_write
from burnish.rollout.driver import Driver, Job

MAX_TOKENS = {"instruction_format": 64, "refusal_harmful": 32, "refusal_harmless": 32, "response_length": 96}
"""Tokens a guard's reply may have: enough to see the format, the refusal's first words, and a change of length. Half
of the prompts for length ask for one sentence: their replies (about 27 tokens by the base model) can be seen to grow,
where most of the others are cut and can only be seen to shrink."""

PERPLEXITY = "held_out_text_nll"

SPECS = {spec.name: spec for spec in DEFAULT_GUARDS}


@dataclass(frozen=True, slots=True)
class GuardValues:
    """Values of one guard under one model: item id -> value, None where undecided."""

    name: str
    values: dict[str, float | None]

    @property
    def mean(self) -> float:
        """Mean of decided values; NaN without any."""
        decided = [value for value in self.values.values() if value is not None]
        return sum(decided) / len(decided) if decided else math.nan


@dataclass(frozen=True, slots=True)
class UserGuardSuite:
    """A guard of the user's: its spec and its tasks."""

    spec: GuardSpec
    items: tuple[tuple[Task, Gold], ...]
    max_tokens: int


class GuardRunner:
    """Measures guards on one driver; `names` are those of `evals.guards.DEFAULT_GUARDS` that the recipe wants."""

    def __init__(
        self,
        driver: Driver,
        names: Sequence[str],
        user: Sequence[UserGuardSuite] = (),
        *,
        cache: Path | None = None,
    ) -> None:
        self._driver = driver
        self._names = tuple(names)
        self._user = tuple(user)
        self._cache = cache

    @property
    def names(self) -> tuple[str, ...]:
        """Guards that are measured, built-in ones first."""
        return (*self._names, *(suite.spec.name for suite in self._user))

    def _path(self, name: str, model_digest: str) -> Path | None:
        """Where the values of a guard under a model are kept; the name holds all that decides them."""
        if self._cache is None:
            return None
        engine = self._driver.engine.capabilities()
        items, max_tokens = self._asked(name)
        verifiers = sorted({task.verifier for task, _ in items})
        key = content_id(
            items=[(task, gold.digest) for task, gold in items],
            passages=held_out_passages() if name == PERPLEXITY else {},
            max_tokens=max_tokens,
            model=model_digest,
            engine=f"{engine.name}/{engine.dtype}",
            rendering=self._driver.renderer.describe(),
            verifiers=[f"{verifier}@{self._driver.verifier(verifier).version}" for verifier in verifiers],
        )
        return self._cache / f"guard-{name}-{key}.json"

    def _asked(self, name: str) -> tuple[Sequence[tuple[Task, Gold]], int]:
        """A guard's tasks and how many tokens a reply may have; none for the perplexity of texts."""
        for suite in self._user:
            if suite.spec.name == name:
                return suite.items, suite.max_tokens
        if name == PERPLEXITY:
            return (), 0
        return tuple((example.task, example.gold) for example in guard_examples(name)), MAX_TOKENS[name]

    def has(self, model_digest: str) -> bool:
        """Whether the cache holds every guard of a model."""
        paths = [self._path(name, model_digest) for name in self.names]
        return all(path is not None and path.is_file() for path in paths)

    async def measure(self, model_digest: str) -> dict[str, GuardValues]:
        """Values of every guard under the engine's present weights, by guard name."""
        out: dict[str, GuardValues] = {}
        missing = []
        for name in self.names:
            path = self._path(name, model_digest)
            if path is not None and path.is_file():
                out[name] = decode(GuardValues, json.loads(path.read_text("utf-8")), where=str(path))
            else:
                missing.append(name)
        if PERPLEXITY in missing:  # scored alone: an engine scores only while nothing is in flight
            missing.remove(PERPLEXITY)
            out[PERPLEXITY] = await self._perplexity()
            self._keep(out[PERPLEXITY], model_digest)
        # The others at once: the engine batches what is submitted together.
        for values in await asyncio.gather(*(self._measure_one(name) for name in missing)):
            out[values.name] = values
            self._keep(values, model_digest)
        return {name: out[name] for name in self.names}

    def _keep(self, values: GuardValues, model_digest: str) -> None:
        path = self._path(values.name, model_digest)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(encode(values)).encode("utf-8"))

    async def _measure_one(self, name: str) -> GuardValues:
        items, max_tokens = self._asked(name)
        return await self._replies(name, items, max_tokens)

    async def _perplexity(self) -> GuardValues:
        passages = held_out_passages()
        encode_text = self._driver.renderer.tokenizer.encode
        ids = [np.array(encode_text(text), dtype=np.int32) for text in passages.values()]
        scored = await self._driver.engine.score(ids)
        means = [float(-logp[1:].mean()) for logp in scored]
        return GuardValues(PERPLEXITY, dict(zip(passages, means, strict=True)))

    async def _replies(self, name: str, items: Sequence[tuple[Task, Gold]], max_tokens: int) -> GuardValues:
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        jobs = [Job(task, gold, 1) for task, gold in items]
        groups = await self._driver.run(jobs, sampling, stage=f"guard/{name}", step=0)
        value = _log_length if name == "response_length" else _passed
        return GuardValues(name, {task.id: value(group[0]) for (task, _), group in zip(items, groups, strict=True)})

    def results(self, base: dict[str, GuardValues], new: dict[str, GuardValues]) -> list[GuardResult]:
        """Each guard's items under both models."""
        specs = SPECS | {suite.spec.name: suite.spec for suite in self._user}
        found = []
        for name, values in new.items():
            before = base[name].values
            ids = sorted(values.values)
            found.append(guard_result(specs[name], ids, [before.get(i) for i in ids], [values.values[i] for i in ids]))
        return found


def _passed(trajectory: Trajectory) -> float | None:
    verdict = trajectory.main
    if verdict is None or verdict.outcome is Outcome.UNDECIDED:
        return None
    return 1.0 if verdict.outcome is Outcome.PASS else 0.0


def _log_length(trajectory: Trajectory) -> float | None:
    if not OUTCOME_TABLE[trajectory.ending].in_lengths or trajectory.num_sampled == 0:
        return None
    return math.log(trajectory.num_sampled)


def user_suite(name: str, margin: float, items: Sequence[tuple[Task, Gold]], max_tokens: int) -> UserGuardSuite:
    """A user's guard: pass rate on their tasks, with their margin."""
    spec = GuardSpec(name, "pass rate", margin, len(items))
    return UserGuardSuite(spec, tuple(items), max_tokens)
