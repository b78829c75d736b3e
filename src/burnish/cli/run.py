"""`burnish run`: a recipe from base model to report."""

from __future__ import annotations

import shlex
import signal
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click

from burnish.cli.options import json_option, set_option
from burnish.cli.output import emit
from burnish.core.errors import ConfigError, ExitCode


@click.command("run")
@click.argument("recipe", required=False, type=click.Path(path_type=Path))
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run; default: runs/NAME-TIME.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--dry-run", is_flag=True, help="Print sizes, time, memory and losses; write nothing.")
@json_option
def command(
    recipe: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Take the model of RECIPE from its baseline through stages and gates to a report.

    With --resume, RECIPE may be left out: the run's own is used.
    """
    if resume and out is None:
        raise ConfigError("--resume without --out", where="the command line", fix="name the run's folder by --out")
    if recipe is None:
        if not resume or out is None:
            raise ConfigError("no recipe given", where="the command line", fix="burnish run RECIPE")
        recipe = out / "config.yaml"
    if dry_run:
        return _dry_run(recipe, overrides, as_json)
    return _run(recipe, overrides, out or _new_folder(recipe, overrides), resume, as_json)


def _dry_run(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> int:
    from burnish.train.pipeline import dry_run

    text = dry_run(recipe, overrides)
    emit("dry-run", {"recipe": str(recipe), "text": text}, text, as_json=as_json)
    return 0


def _new_folder(recipe: Path, overrides: tuple[str, ...]) -> Path:
    """The folder is chosen here, so that it is known when the run is interrupted."""
    from burnish.train.recipe import load_recipe

    return Path("runs") / f"{load_recipe(recipe, overrides).recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    """What `docker stop`, systemd and batch queues send ends a run as Ctrl-C does: written down, ready to resume.

    An event loop handles Ctrl-C by cancelling its main task, so whatever is in place for that is called.
    """
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _run(recipe: Path, overrides: tuple[str, ...], out: Path, resume: bool, as_json: bool) -> int:
    from burnish.cli.progress import Progress
    from burnish.observe.run_folder import is_run_folder
    from burnish.train.pipeline import run

    before = signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        with Progress() as progress:
            result = run(recipe, overrides=overrides, out=out, resume=resume, on_event=progress)
    except KeyboardInterrupt:
        if not (is_run_folder(out) or any(map(is_run_folder, out.glob("seed-*")))):
            click.echo("interrupted before the run began: nothing was written", err=True)
            return int(ExitCode.INTERRUPTED)
        sets = "".join(f" --set {shlex.quote(text)}" for text in overrides)
        again = f"burnish run {shlex.quote(str(recipe))}{sets} --out {shlex.quote(str(out))} --resume"
        click.echo(f"saved; go on with: {again}", err=True)
        return int(ExitCode.INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
    data = {
        "run_id": result.run_id,
        "folder": str(result.folder),
        "decision": result.decision.value,
        "reasons": list(result.reasons),
        "report": str(result.report_path),
        "exit_code": result.exit_code,
    }
    text = f"{result.decision.value.upper()}: {'; '.join(result.reasons)}\nreport: {result.report_path}"
    emit("run", data, text, as_json=as_json)
    return result.exit_code
