"""Which checkpoint is live in a channel, and the rules for changing that.

A channel is a stack: a promotion puts a checkpoint on top, a rollback takes off until its target is on top.
The table keeps every change; the stack is replayed from it. Leaves out checking files, which is slow and
comes first.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select

from burnish.core.errors import ConfigError, GateRefusedError, IntegrityError
from burnish.core.types import Decision
from burnish.registry.records import PromotionKind, PromotionRecord
from burnish.registry.rows import checkpoint_of, promotion_record
from burnish.registry.schema import DECISIONS, PROMOTIONS


def history(connection: Connection, channel: str | None) -> list[PromotionRecord]:
    """Every change, oldest first."""
    query = select(PROMOTIONS).order_by(PROMOTIONS.c.id)
    if channel is not None:
        query = query.where(PROMOTIONS.c.channel == channel)
    return [promotion_record(row) for row in connection.execute(query)]


def current(connection: Connection, channel: str) -> PromotionRecord | None:
    """The latest change of a channel, which says what is live."""
    changes = history(connection, channel)
    return changes[-1] if changes else None


def live_digests(connection: Connection) -> dict[str, tuple[str, ...]]:
    """Digest -> the channels in which it is live."""
    live: dict[str, str] = {change.channel: change.digest for change in history(connection, None)}
    return {digest: tuple(sorted(c for c, d in live.items() if d == digest)) for digest in live.values()}


def latest_decision(connection: Connection, digest: str) -> Decision | None:
    """What the latest gate said about a checkpoint, or None where none judged it."""
    query = select(DECISIONS.c.decision).where(DECISIONS.c.checkpoint_digest == digest)
    answer = connection.execute(query.order_by(DECISIONS.c.id.desc()).limit(1)).scalar_one_or_none()
    return None if answer is None else Decision(answer)


def require_kept(connection: Connection, digest: str, channel: str) -> None:
    """Raises: IntegrityError where the files of a checkpoint were cleaned away."""
    if checkpoint_of(connection, digest).deleted_utc is not None:
        raise IntegrityError(
            f"the files of {digest[:12]} were cleaned away",
            where=f"channel {channel!r}",
            fix="train it again",
        )


def promote(
    connection: Connection, digest: str, channel: str, by: str, reason: str, unpromoted_ok: bool, utc: str
) -> PromotionRecord:
    """Puts a checkpoint on top of a channel (see `Registry.promote`)."""
    live = current(connection, channel)
    if live is not None and live.digest == digest:
        return live
    answer = latest_decision(connection, digest)
    said = "no gate has judged it" if answer is None else f"its latest gate said {answer.value}"
    forced = answer is not Decision.PROMOTE
    if forced and not unpromoted_ok:
        raise GateRefusedError(
            f"{digest[:12]} is not promoted: {said}",
            where=f"channel {channel!r}",
            fix="run `burnish gate` on it, or promote it with --unpromoted and a reason",
        )
    if forced and not reason.strip():
        raise ConfigError(f"promoting {digest[:12]} although {said} needs a reason", where="--reason", fix="say why")
    require_kept(connection, digest, channel)
    statement = f"FORCED although {said}: {reason}" if forced else f"promoted by its gate: {reason}"
    previous = live.digest if live is not None else ""
    return _add(connection, channel, PromotionKind.PROMOTE, digest, previous, by, reason, forced, statement, utc)


def rollback_target(connection: Connection, channel: str, wanted: str | None) -> str:
    """The digest that a rollback would make live.

    Raises: ConfigError where there is none.
    """
    stack = _stack(connection, channel)
    below = stack[:-1]
    where = f"channel {channel!r}"
    if not stack:
        raise ConfigError("nothing was ever promoted here", where=where, fix="promote a checkpoint first")
    if not below:
        raise ConfigError(
            f"{stack[-1][:12]} is the first promotion; there is none to go back to",
            where=where,
            fix="promote another checkpoint instead",
        )
    if wanted is None:
        return below[-1]
    if wanted not in below:
        shown = ", ".join(digest[:12] for digest in reversed(below))
        raise ConfigError(
            f"{wanted[:12]} is not an earlier promotion", where=where, fix=f"choose one of these: {shown}"
        )
    return wanted


def rollback(connection: Connection, channel: str, target: str, by: str, reason: str, utc: str) -> PromotionRecord:
    """Takes off until `target` is on top (see `Registry.rollback`)."""
    rollback_target(connection, channel, target)  # again: another process may have changed the channel
    previous = _stack(connection, channel)[-1]
    statement = f"rolled back from {previous[:12]} to {target[:12]}: {reason}"
    return _add(connection, channel, PromotionKind.ROLLBACK, target, previous, by, reason, False, statement, utc)


def _stack(connection: Connection, channel: str) -> list[str]:
    stack: list[str] = []
    for change in history(connection, channel):
        if change.kind is PromotionKind.PROMOTE:
            stack.append(change.digest)
        else:
            stack.pop()
            while stack[-1] != change.digest:
                stack.pop()
    return stack


def _add(
    connection: Connection,
    channel: str,
    kind: PromotionKind,
    digest: str,
    previous: str,
    by: str,
    reason: str,
    forced: bool,
    statement: str,
    utc: str,
) -> PromotionRecord:
    values: dict[str, Any] = {
        "channel": channel,
        "kind": kind.value,
        "digest": digest,
        "previous_digest": previous,
        "by": by,
    }
    values |= {"reason": reason, "forced": forced, "statement": statement, "created_utc": utc}
    connection.execute(insert(PROMOTIONS).values(**values))
    return history(connection, channel)[-1]
