"""`burnish chat`: a conversation with a model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from burnish.cli.options import find_model
from burnish.core.errors import GateRefusedError

if TYPE_CHECKING:
    from burnish.registry.registry import Registry


@click.command("chat")
@click.argument("model")
@click.option("--system", help="A system message.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="Longest reply.")
@click.option("--unpromoted", is_flag=True, help="Talk to a checkpoint that no gate has promoted.")
def command(model: str, system: str | None, max_tokens: int, unpromoted: bool) -> None:
    """Talk to MODEL (a folder, file, hub name, package:NAME or checkpoint digest).

    One message a line; where stdin is no terminal, its lines are the messages and the replies are printed.
    """
    from burnish.registry.registry import Registry
    from burnish.train.verbs import open_chat

    chat = open_chat(find_model(model), system=system, max_tokens=max_tokens)
    if why := _unpromoted(Registry(), chat.digest):
        if not unpromoted:
            raise GateRefusedError(
                f"{model} is a checkpoint that {why}",
                where=model,
                fix="add --unpromoted to talk to it all the same",
            )
        click.echo(f"unpromoted: this checkpoint {why}", err=True)
    asks = sys.stdin.isatty()
    while (text := _next_message(asks)) is not None:
        if text.strip():
            click.echo(chat.say(text))


def _next_message(asks: bool) -> str | None:
    if asks:
        click.echo("> ", nl=False, err=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _unpromoted(registry: Registry, digest: str) -> str:
    """Why a checkpoint may not be shown as it is; '' for promoted ones and models from elsewhere."""
    from burnish.core.errors import ConfigError
    from burnish.core.types import Decision

    try:
        entry = registry.lineage(digest)[-1]
    except ConfigError:
        return ""  # not registered: no run of ours made it
    if not entry.checkpoint.ref.parent or entry.live_in:
        return ""
    if not entry.decisions:
        return "no gate has judged"
    said = entry.decisions[-1].decision
    return "" if said is Decision.PROMOTE else f"its latest gate answered with {said.value.upper()}"
