"""`burnish rescore`: a mended verifier on a run's stored trajectories."""

from __future__ import annotations

from pathlib import Path

import click

from burnish.cli.options import find_run, json_option
from burnish.cli.output import emit


@click.command("rescore")
@click.argument("run")
@click.option("--verifier", "names", multiple=True, help="Verifier to apply; default: those of the run's domains.")
@json_option
def command(run: str, names: tuple[str, ...], as_json: bool) -> None:
    """Judge the stored trajectories of RUN (a folder or run id) again.

    Old verdicts stay; the new ones are written beside them, each with its verifier's version.
    """
    from burnish.core.codec import to_plain
    from burnish.train.verbs import rescore

    folder = find_run(run)
    summaries = [rescore(folder, name) for name in names or _verifiers_of(folder)]
    lines = []
    for summary in summaries:
        old = ", ".join(summary.old_versions)
        lines.append(f"{summary.verifier}: version {old} -> {summary.new_version}, {summary.num_trajectories} replies")
        lines += [f"  {change}: {count}" for change, count in sorted(summary.changed.items())]
        lines += [f"    {example}" for example in summary.examples]
        lines.append("  no outcome changed" if not summary.changed else f"  kept in {summary.output}")
    emit("rescore", {"run": str(folder), "verifiers": to_plain(summaries)}, "\n".join(lines), as_json=as_json)


def _verifiers_of(folder: Path) -> list[str]:
    """The verifiers of a run's domains, each once."""
    from burnish.domains.registry import get_domain
    from burnish.observe.run_folder import RunFolder
    from burnish.train.recipe import is_file_domain, load_recipe

    tasks = load_recipe(RunFolder.open(folder).config()).recipe.tasks
    found = [tasks.verifier if is_file_domain(name) else get_domain(name).verifier for name in tasks.domains]
    return list(dict.fromkeys(name for name in found if name is not None))
