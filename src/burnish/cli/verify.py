"""`burnish verify`: a file of replies, one JSON verdict a row."""

from __future__ import annotations

import json
from pathlib import Path

import click

from burnish.cli.output import tagged
from burnish.core.errors import ConfigError


@click.command("verify")
@click.argument("verifier")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--deadline", "deadline_s", type=float, help="Seconds that one verdict may take.")
@click.option("--json", expose_value=False, is_flag=True, help="Errors as JSON too; verdicts are JSON anyway.")
def command(verifier: str, file: Path, deadline_s: float | None) -> None:
    """Score FILE, rows of `gold` and `reply` (or `task` and `reply`), with VERIFIER.

    VERIFIER is a name (burnish check verifier lists them), module:name or file.py:function.
    """
    from burnish.verify.registry import get_verifier
    from burnish.verify.runner import DEFAULT_DEADLINE_S
    from burnish.verify.score_file import score_file

    if deadline_s is not None and not deadline_s > 0:
        raise ConfigError(f"--deadline {deadline_s} is not above 0", where="the command line", fix="give seconds")
    for verdict in score_file(get_verifier(verifier), file, deadline_s=deadline_s or DEFAULT_DEADLINE_S):
        click.echo(_line(verdict))


def _line(verdict: dict[str, object]) -> str:
    # A lone surrogate in a model's text becomes \udXXX, which is also how JSON writes it.
    text = json.dumps(tagged("verify", verdict), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
