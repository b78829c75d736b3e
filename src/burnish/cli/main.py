"""The `burnish` command: its verbs, loaded one at a time, and the boundary where errors become exit codes.

    0 ok   1 the run failed   2 bad config or input   3 the gate refused   130 interrupted

Importing this file loads click and nothing heavier, so that `burnish --help` answers at once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from types import TracebackType

import click

from burnish import __version__
from burnish.core.errors import BurnishError, ExitCode

VERBS: dict[str, str] = {
    "init": "Write a starter folder: recipe, tasks, verifier.",
    "run": "Take a model through its stages and gates to a report.",
    "eval": "Measure a model on one set of a recipe's tasks.",
    "gate": "Judge a checkpoint against its parent and the few-shot base.",
    "compare": "Hold two runs' released models against each other.",
    "promote": "Make a checkpoint the live one.",
    "rollback": "Make the checkpoint that was live before live again.",
    "runs": "List the runs.",
    "lineage": "Show what was made from what, and how it was judged.",
    "chat": "Talk to a model.",
    "preflight": "Check data and chat template before any training.",
    "verify": "Score a file of replies, one JSON verdict a row.",
    "check": "Run a verifier's cases, or check a domain's tasks.",
    "rescore": "Apply a mended verifier to the stored trajectories of a run.",
    "doctor": "Say what this machine can do.",
    "report": "Draw the report of a finished run again.",
    "clean": "List checkpoints that nothing needs; --apply deletes them.",
}
"""Verb -> its line in the help, in the order of a person's way through."""


class Verbs(click.Group):
    """The verbs, each imported from `burnish.cli.VERB` when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"burnish.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="burnish")
def burnish() -> None:
    """Post-training that proves the checkpoint is better, or says that it is not."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Without `args`, it is this process's own command line."""
    given = sys.argv[1:] if args is None else list(args)
    if args is None and not os.environ.get("BURNISH_DEBUG"):
        sys.excepthook = _write_crash_file
    try:
        return int(burnish.main(given or ["--help"], prog_name="burnish", standalone_mode=False) or 0)
    except BurnishError as error:
        _tell(error, as_json="--json" in given)
        return int(error.exit_code)
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx is not None else "burnish --help"
        _tell(
            BurnishError(error.format_message(), where="the command line", fix=f"see {hint}"),
            "--json" in given,
        )
        return int(ExitCode.BAD_INPUT)
    except click.Abort:  # what click makes of an interrupt from the keyboard
        sys.stderr.write("interrupted\n")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone (`burnish runs | head`); what is still buffered has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)


def _tell(error: BurnishError, as_json: bool) -> None:
    text = json.dumps({"schema": "burnish/error/1", **error.to_json()}) if as_json else str(error)
    sys.stderr.write(text + "\n")


def _write_crash_file(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What no one foresaw: one line for the person, the traceback in a file for whoever mends it."""
    import tempfile
    import traceback

    from burnish.observe.redaction import redact_text, secret_values

    text = "".join(traceback.format_exception(kind, error, trace))
    with tempfile.NamedTemporaryFile(
        "w", prefix="burnish-crash-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(redact_text(f"burnish {__version__}, Python {sys.version}\n{text}", secret_values()))
    said = redact_text(f"{kind.__name__}: {error}", secret_values()).splitlines()[0]
    sys.stderr.write(f"burnish crashed: {said}; the traceback is in {file.name}\n")


if __name__ == "__main__":
    sys.exit(main())
