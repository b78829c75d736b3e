"""`burnish lineage`: what was made from what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit, percent

if TYPE_CHECKING:
    from burnish.registry.records import LineageEntry, TreeNode


@click.command("lineage")
@click.argument("digest", required=False)
@json_option
def command(digest: str | None, as_json: bool) -> None:
    """Show the way from the base model to the checkpoint DIGEST; without it, every checkpoint as a tree."""
    from burnish.core.codec import to_plain
    from burnish.registry.registry import Registry

    registry = Registry()
    if digest is None:
        tree = registry.tree()
        lines = list(_tree_lines(tree, ""))
        emit("lineage", {"tree": to_plain(tree)}, "\n".join(lines) or "no checkpoints yet", as_json=as_json)
        return
    way = registry.lineage(digest)
    lines = [line for entry in way for line in _entry_lines(entry)]
    emit("lineage", {"way": to_plain(way)}, "\n".join(lines), as_json=as_json)


def _live(channels: tuple[str, ...]) -> str:
    return f"  LIVE in {', '.join(channels)}" if channels else ""


def _tree_lines(nodes: Sequence[TreeNode], indent: str) -> Iterator[str]:
    for node in nodes:
        ref = node.checkpoint.ref
        said = f"  {node.decision.value}" if node.decision else ""
        yield f"{indent}{ref.digest[:12]}  {ref.stage} {ref.step}{said}{_live(node.live_in)}"
        yield from _tree_lines(node.children, indent + "  ")


def _entry_lines(entry: LineageEntry) -> Iterator[str]:
    ref = entry.checkpoint.ref
    gone = "  (files deleted)" if entry.checkpoint.deleted_utc else ""
    yield f"{ref.digest[:12]}  {ref.stage} {ref.step}  run {entry.run.run_id}{_live(entry.live_in)}{gone}"
    yield f"    {ref.path}"
    for evaluation in entry.evaluations:
        rates = ", ".join(f"{k} {percent(v)}" for k, v in evaluation.results.items() if isinstance(v, float))
        yield f"    {evaluation.suite} ({evaluation.split}, {evaluation.num_tasks} tasks): {rates}"
    for decision in entry.decisions:
        yield f"    gate: {decision.decision.value.upper()}: {'; '.join(decision.reasons)}"
