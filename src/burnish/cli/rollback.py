"""`burnish rollback`: what was live before is live again."""

from __future__ import annotations

import click

from burnish.cli.options import channel_option, json_option, user_name
from burnish.cli.output import emit


@click.command("rollback")
@channel_option
@click.option("--to", metavar="DIGEST", help="An earlier promotion; default: the one before.")
@click.option("--reason", default="", help="Why.")
@json_option
def command(channel: str, to: str | None, reason: str, as_json: bool) -> None:
    """Go back to the promotion before the live one."""
    from burnish.core.codec import to_plain
    from burnish.registry.registry import Registry

    record = Registry().rollback(by=user_name(), reason=reason, channel=channel, to=to)
    text = f"{record.digest[:12]} is live in channel {record.channel!r}: {record.statement}"
    emit("rollback", to_plain(record), text, as_json=as_json)
