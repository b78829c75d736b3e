"""`burnish compare`: two finished runs on the final set that they share."""

from __future__ import annotations

import click

from burnish.cli.options import find_run, json_option
from burnish.cli.output import emit


@click.command("compare")
@click.argument("run_a")
@click.argument("run_b")
@json_option
def command(run_a: str, run_b: str, as_json: bool) -> None:
    """Hold the released models of RUN_A and RUN_B (folders or run ids) against each other, task by task."""
    from burnish.core.codec import decode
    from burnish.evals.gate import Comparison
    from burnish.train.verbs import compare

    data = compare(find_run(run_a), find_run(run_b))
    lines = [f"{data['a']} against {data['b']}"]
    for domain, plain in data["comparisons"].items():
        lines.append(f"  {domain}: {decode(Comparison, plain).explain()}")
    emit("compare", data, "\n".join(lines), as_json=as_json)
