"""`burnish runs`: what has been run."""

from __future__ import annotations

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit, table


@click.command("runs")
@click.option("--name", help="Only runs whose name contains this.")
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the runs, newest first."""
    from burnish.core.codec import to_plain
    from burnish.observe.run_folder import in_use
    from burnish.registry.records import RunStatus
    from burnish.registry.registry import Registry

    records = Registry().runs(name=name)
    states = {
        record.run_id: "stopped"
        if record.status is RunStatus.RUNNING and not in_use(record.folder)
        else record.status.value
        for record in records
    }
    rows = [(r.run_id, r.name, states[r.run_id], r.base_model, r.seed, r.folder) for r in records]
    text = table(("run", "name", "state", "base model", "seed", "folder"), rows) if rows else "no runs yet"
    data = {"runs": to_plain(records), "states": states}
    emit("runs", data, text, as_json=as_json)
