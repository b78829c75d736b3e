"""`burnish promote`: make a checkpoint the live one."""

from __future__ import annotations

import click

from burnish.cli.options import channel_option, json_option, user_name
from burnish.cli.output import emit


@click.command("promote")
@click.argument("digest")
@channel_option
@click.option("--reason", default="", help="Why; needed with --unpromoted.")
@click.option("--unpromoted", is_flag=True, help="Also where no gate promoted it; the record says so.")
@json_option
def command(digest: str, channel: str, reason: str, unpromoted: bool, as_json: bool) -> None:
    """Make the checkpoint DIGEST (four or more characters) the live one of a channel."""
    from burnish.core.codec import to_plain
    from burnish.registry.registry import Registry

    record = Registry().promote(digest, by=user_name(), reason=reason, channel=channel, unpromoted_ok=unpromoted)
    text = f"{record.digest[:12]} is live in channel {record.channel!r}: {record.statement}"
    emit("promote", to_plain(record), text, as_json=as_json)
