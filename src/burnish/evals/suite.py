"""Running a suite of tasks on an engine, with a cache keyed by everything that decides the answer.

Greedy decoding of the same weights, prompts and engine gives the same replies, so a result is computed once
and found again by digest: of the weights, of the tasks with their prompts, of the sampling, of engine and
dtype, and of the verifiers' versions. What came from the cache says so.

Leaves out statistics (`stats`), decisions (`gate`) and what a set is for (the caller opens it).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.core.codec import decode, encode
from burnish.core.gold import Gold
from burnish.core.protocols import EngineCapabilities, Sampling
from burnish.core.types import Message, Split, Task, Trajectory, content_id
from burnish.evals.results import SuiteResult, TaskRecord
from burnish.observe.disk import atomic_write
from burnish.rollout.driver import Driver, Job, check_fault_budget

Items = Sequence[tuple[Task, Gold]]


@dataclass(frozen=True, slots=True)
class Suite:
    """Named tasks of one split, with their sealed gold."""

    name: str
    split: Split
    items: tuple[tuple[Task, Gold], ...]

    def head(self, per_domain: int) -> Suite:
        """The first so many tasks of each domain."""
        kept: list[tuple[Task, Gold]] = []
        seen: dict[str, int] = {}
        for task, gold in self.items:
            if seen.get(task.domain, 0) < per_domain:
                seen[task.domain] = seen.get(task.domain, 0) + 1
                kept.append((task, gold))
        return Suite(self.name, self.split, tuple(kept))

    def of_domain(self, domain: str) -> Suite:
        """The tasks of one domain."""
        return Suite(self.name, self.split, tuple(item for item in self.items if item[0].domain == domain))

    def digest(self) -> str:
        """Content hash of tasks (as prompted) and gold."""
        return content_id(items=[(task, gold.digest) for task, gold in self.items])


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A result, some trajectories to look at (none where the result came from the cache), and its origin."""

    result: SuiteResult
    trajectories: tuple[Trajectory, ...]
    from_cache: bool


def describe_sampling(sampling: Sampling, num_samples: int) -> str:
    """The canonical text of a decoding setting: equal texts mean equal decoding."""
    if sampling.temperature == 0.0:
        how = "greedy"
    else:
        how = f"temperature={sampling.temperature:g},top_p={sampling.top_p:g},top_k={sampling.top_k}"
    stops = f",stop={list(sampling.stop_strings)}" if sampling.stop_strings else ""
    return f"{how},max_tokens={sampling.max_tokens},samples={num_samples}{stops}"


class SuiteRunner:
    """Runs suites on one driver. `cache` is a folder, or None for none."""

    def __init__(self, driver: Driver, *, cache: Path | None, max_undecided_frac: float) -> None:
        self._driver = driver
        self._cache = cache
        self._max_undecided_frac = max_undecided_frac

    def has(self, suite: Suite, sampling: Sampling, *, model_digest: str, prompt: str, num_samples: int = 1) -> bool:
        """Whether the cache holds this result already."""
        path = self._path(suite, sampling, model_digest, prompt, num_samples)
        return path is not None and path.is_file()

    async def run(
        self,
        suite: Suite,
        sampling: Sampling,
        *,
        model_digest: str,
        prompt: str = "plain",
        num_samples: int = 1,
        keep: int = 0,
        on_done: Callable[[int, int], None] | None = None,
    ) -> SuiteRun:
        """Evaluate; `keep` trajectories a domain are returned to look at.

        Raises: FaultBudgetError where too many verdicts are undecided.
        """
        path = self._path(suite, sampling, model_digest, prompt, num_samples)
        if path is not None and path.is_file():
            data = json.loads(path.read_text("utf-8"))
            kept = tuple(decode(Trajectory, item, where=str(path)) for item in data["trajectories"])
            if len(kept) >= min(keep, 1):
                return SuiteRun(decode(SuiteResult, data["result"], where=str(path)), kept, from_cache=True)
        began = time.monotonic()
        jobs = [Job(task, gold, num_samples) for task, gold in suite.items]
        groups = await self._driver.run(jobs, sampling, stage=f"eval/{suite.name}/{suite.split}", step=0)
        check_fault_budget(groups, self._max_undecided_frac, where=f"suite {suite.name} ({suite.split})")
        records = tuple(_record(task, group) for (task, _), group in zip(suite.items, groups, strict=True))
        result = SuiteResult(
            suite=suite.name,
            split=suite.split,
            model_digest=model_digest,
            prompt=prompt,
            sampling=describe_sampling(sampling, num_samples),
            records=records,
            num_tokens=sum(t.num_sampled for group in groups for t in group),
            duration_s=time.monotonic() - began,
        )
        kept = _some_of_each(groups, keep)
        if path is not None:
            body = {"result": encode(result), "trajectories": [encode(t) for t in kept]}
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(body, ensure_ascii=True).encode("ascii"))
        return SuiteRun(result, kept, from_cache=False)

    def _path(self, suite: Suite, sampling: Sampling, model_digest: str, prompt: str, num_samples: int) -> Path | None:
        if self._cache is None:
            return None
        engine: EngineCapabilities = self._driver.engine.capabilities()
        names = sorted({task.verifier for task, _ in suite.items})
        key = content_id(
            suite=suite.digest(),
            name=suite.name,
            split=suite.split,
            sampling=sampling,
            num_samples=num_samples,
            prompt=prompt,
            model=model_digest,
            engine=f"{engine.name}/{engine.dtype}",
            rendering=self._driver.renderer.describe(),
            verifiers=[f"{name}@{self._driver.verifier(name).version}" for name in names],
            # Sampled decoding depends on the run's seed; greedy does not.
            seed=0 if sampling.temperature == 0.0 else self._driver.run_seed,
        )
        return self._cache / f"{suite.name}-{suite.split}-{key}.json"


def _record(task: Task, group: Sequence[Trajectory]) -> TaskRecord:
    verdicts = [trajectory.verdicts["main"] for trajectory in group]
    return TaskRecord(
        task_id=task.id,
        domain=task.domain,
        cluster=task.cluster,
        outcomes=tuple(v.outcome for v in verdicts),
        scores=tuple(v.score for v in verdicts),
        reply_tokens=tuple(t.num_sampled for t in group),
        stop_reasons=tuple(t.stop_reason for t in group),
        verifier=verdicts[0].verifier,
        version=verdicts[0].version,
    )


def mean_pass_rate(result: SuiteResult) -> float:
    """Mean over tasks of passes over decided samples; NaN where no task is decided."""
    rates = [record.pass_rate for record in result.records if record.pass_rate is not None]
    return sum(rates) / len(rates) if rates else math.nan


def pass_rates(result: SuiteResult) -> dict[str, float]:
    """The mean pass rate of all tasks and of each domain, as far as any of them is decided."""
    rates = {"pass_rate": mean_pass_rate(result)}
    rates |= {f"pass_rate/{domain}": mean_pass_rate(result.of_domain(domain)) for domain in result.domains}
    return {name: rate for name, rate in rates.items() if math.isfinite(rate)}


def _some_of_each(groups: Sequence[Sequence[Trajectory]], keep: int) -> tuple[Trajectory, ...]:
    """`keep` trajectories of each domain: those whose verdict carries a flag, which somebody should look at, then the
    first, since the order of tasks is random already."""
    kept: list[Trajectory] = []
    seen: dict[str, int] = {}
    for group in sorted(groups, key=lambda group: not (group[0].main is not None and group[0].main.flags)):
        domain = group[0].domain
        if seen.get(domain, 0) < keep:
            seen[domain] = seen.get(domain, 0) + 1
            kept.append(group[0])
    return tuple(kept)


def with_prefixes(suite: Suite, prefixes: dict[str, tuple[Message, ...]]) -> Suite:
    """The suite with a few-shot prefix before each prompt, by domain."""
    from burnish.domains.few_shot import with_few_shot

    items = tuple(
        (with_few_shot(task, prefixes[task.domain]) if task.domain in prefixes else task, gold)
        for task, gold in suite.items
    )
    return Suite(suite.name, suite.split, items)
