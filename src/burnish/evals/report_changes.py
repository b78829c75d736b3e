"""What changed between two models on the final set: by family of templates, and by single template.

Leaves out intervals: with the few tasks of one template they say little, and the pooled ones decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.core.errors import RunError
from burnish.evals.report_data import ModelEntry, ReportData
from burnish.evals.report_format import words
from burnish.evals.report_tables import is_released
from burnish.evals.results import paired

_MOST_CLUSTERS = 8  # largest gains, and losses, shown by template


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """Tasks of one cluster or family: how many, passes before and after, tasks won and lost.

    Passes are sums of pass rates over tasks that both models decided.
    """

    domain: str
    name: str
    tasks: int
    before: float
    after: float
    won: int
    lost: int

    @property
    def change(self) -> float:
        """Passes gained, less passes lost."""
        return self.after - self.before

    @property
    def share(self) -> float:
        """Change over tasks, in [-1, 1]."""
        return self.change / self.tasks


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two models, by family of templates and by single template."""

    before: str
    after: str
    families: tuple[ClusterRow, ...]
    gains: tuple[ClusterRow, ...]
    losses: tuple[ClusterRow, ...]
    unchanged: int
    problem: str = ""


def base_of(data: ReportData) -> ModelEntry | None:
    """The untouched base under its plain prompt."""
    return next((m for m in data.models if not m.stage and m.result.prompt == "plain"), None)


def newest_of(data: ReportData) -> ModelEntry | None:
    """The released model; where nothing was promoted, the last one trained."""
    trained = [m for m in data.models if m.stage]
    released = [m for m in trained if is_released(data, m)]
    return (released or trained)[-1] if trained else None


def changes(data: ReportData) -> Changes | None:
    """Tasks gained and lost between the untouched base and the released model, or the last one trained.

    None where there are not two such models.
    """
    before, after = base_of(data), newest_of(data)
    if before is None or after is None:
        return None
    try:
        pairs = paired(after.result, before.result)
    except RunError as error:
        return Changes(before.label, after.label, (), (), (), 0, problem=error.what)
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for domain, cluster, new, old in zip(pairs.domains, pairs.clusters, pairs.a, pairs.b, strict=True):
        rows.setdefault((domain, cluster.removeprefix(f"{domain}/")), []).append((float(old), float(new)))
    families: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (domain, cluster), tasks in rows.items():
        families.setdefault((domain, cluster.partition("/")[0]), []).extend(tasks)
    by_cluster = _cluster_rows(rows)
    gains = [row for row in by_cluster if row.change > 0]
    losses = [row for row in reversed(by_cluster) if row.change < 0]
    return Changes(
        before=before.label,
        after=after.label,
        families=_cluster_rows(families),
        gains=tuple(gains[:_MOST_CLUSTERS]),
        losses=tuple(losses[:_MOST_CLUSTERS]),
        unchanged=len(by_cluster) - len(gains) - len(losses),
    )


def _cluster_rows(groups: dict[tuple[str, str], list[tuple[float, float]]]) -> tuple[ClusterRow, ...]:
    """Largest gain first; equal changes in order of name."""
    rows = [
        ClusterRow(
            domain=words(domain),
            name=words(name),
            tasks=len(tasks),
            before=sum(old for old, _ in tasks),
            after=sum(new for _, new in tasks),
            won=sum(new > old for old, new in tasks),
            lost=sum(new < old for old, new in tasks),
        )
        for (domain, name), tasks in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.change, row.domain, row.name)))
