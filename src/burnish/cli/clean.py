"""`burnish clean`: checkpoints that nothing needs."""

from __future__ import annotations

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit, table


@click.command("clean")
@click.option("--apply", is_flag=True, help="Delete what is listed.")
@json_option
def command(apply: bool, as_json: bool) -> None:
    """List what may go and why; promoted checkpoints, the last of each run and live runs always stay."""
    from burnish.core.codec import to_plain
    from burnish.observe.disk import format_bytes
    from burnish.registry.cleaning import clean
    from burnish.registry.registry import Registry

    plan = clean(Registry(), apply=apply)
    rows = [(item.kind, item.run_id, format_bytes(item.num_bytes), item.why, item.path) for item in plan.delete]
    total = format_bytes(plan.num_bytes)
    if not rows:
        text = "nothing to delete"
    else:
        done = f"deleted {total}" if apply else f"{total} would be freed; burnish clean --apply deletes them"
        text = f"{table(('what', 'run', 'size', 'why', 'folder'), rows)}\n{done}"
    data = {
        "applied": apply,
        "num_bytes": plan.num_bytes,
        "delete": to_plain(plan.delete),
        "keep": to_plain(plan.keep),
    }
    emit("clean", data, text, as_json=as_json)
