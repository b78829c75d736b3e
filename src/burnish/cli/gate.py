"""`burnish gate`: is a checkpoint better than its parent and than the few-shot base?"""

from __future__ import annotations

from pathlib import Path

import click

from burnish.cli.options import find_model, json_option, recipe_option, set_option
from burnish.cli.output import emit
from burnish.core.errors import ExitCode


@click.command("gate")
@click.argument("candidate")
@click.option("--parent", required=True, help="The model that the candidate was trained from.")
@recipe_option
@click.option("--split", default="gate", show_default=True, help="gate, development or final.")
@set_option
@json_option
def command(candidate: str, parent: str, recipe: Path, split: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Judge CANDIDATE; exit code 3 unless the answer is PROMOTE.

    The answer is written into the registry where the candidate is registered there and, unless it is a rejection,
    the recipe and the parent are those of its run.
    """
    from burnish.cli.progress import Progress
    from burnish.core.codec import to_plain
    from burnish.registry.registry import Registry
    from burnish.train.verbs import gate_checkpoints, why_not_recorded

    with Progress() as progress:
        decision = gate_checkpoints(
            find_model(candidate),
            find_model(parent),
            recipe,
            overrides=overrides,
            split=split,
            on_progress=progress.report,
        )
    plain = to_plain(decision)
    not_recorded = why_not_recorded(decision, recipe, overrides)
    if not not_recorded:
        Registry().record_decision(decision.candidate_digest, plain, decision.decision, decision.reasons)
    text = decision.explain()
    if not_recorded:
        text += f"\n  not recorded: {not_recorded}"
    data = {"decision": decision.decision.value, "recorded": not not_recorded, "gate": plain}
    emit("gate", data, text, as_json=as_json)
    return int(ExitCode.OK if decision.promoted else ExitCode.GATE_REFUSED)
