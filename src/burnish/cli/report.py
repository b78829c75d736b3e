"""`burnish report`: the page of a finished run, drawn again."""

from __future__ import annotations

import click

from burnish.cli.options import find_run, json_option
from burnish.cli.output import emit


@click.command("report")
@click.argument("run")
@json_option
def command(run: str, as_json: bool) -> None:
    """Draw the report of RUN (a folder or run id) again, from what is on disk."""
    from burnish.evals.report import rebuild_report

    folder = find_run(run)
    page = rebuild_report(folder)
    data = {"run": str(folder), "page": str(page), "data": str(page.with_suffix(".json"))}
    emit("report", data, str(page), as_json=as_json)
