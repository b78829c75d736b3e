"""The base of text checkers: gold opened, null and oversized replies failed, faults caught, time taken.

`check` says what it found; everything that all checkers owe is here. Leaves out deadlines and retries
(`runner`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.outcomes import Ending, Outcome
from burnish.core.protocols import VerifierCase
from burnish.core.types import Artifacts, ParseState, Task, ToolCallPart, Trajectory, Verdict
from burnish.verify.gold import open_gold
from burnish.verify.text import is_null_reply, shown

T = TypeVar("T")

NEUTRAL_REPLY = "I do not know."
"""The control of every fault: what also fails on this text was not provoked by the reply."""

PROVOKED_FLAG = "provoked"

MAX_REPLY_CHARS = 65_536
"""Longest reply that a text checker reads: four times the longest answer in the public sets that we check,
and short enough that every check here ends within a second."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a checker reads of a trajectory: the final message's text and calls, never its reasoning.

    `malformed_call`: the renderer found a tool call that it could not parse.
    """

    text: str
    tool_calls: tuple[ToolCallPart, ...] = ()
    malformed_call: bool = False

    @classmethod
    def of(cls, trajectory: Trajectory) -> Reply:
        """The reply of a trajectory."""
        sampled = [turn for turn in trajectory.turns if turn.sampled]
        malformed = bool(sampled) and sampled[-1].parse_state is ParseState.UNPARSEABLE
        return cls(trajectory.reply.text, trajectory.reply.tool_calls, malformed)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict before it is signed with verifier, version and duration."""

    outcome: Outcome
    score: float | None
    reason: str
    components: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    ending: Ending = Ending.VERIFIED

    def signed(self, verifier: str, version: str, duration_s: float = 0.0) -> Verdict:
        """The verdict."""
        return Verdict(
            self.outcome,
            self.score,
            self.reason,
            verifier,
            version,
            components=dict(self.components),
            evidence=dict(self.evidence),
            flags=self.flags,
            ending=self.ending,
            duration_s=duration_s,
        )


def passed(reason: str, *, components: Mapping[str, float] | None = None, **evidence: Any) -> Finding:
    """PASS with score 1."""
    return Finding(Outcome.PASS, 1.0, reason, components or {}, evidence)


def failed(reason: str, *, components: Mapping[str, float] | None = None, **evidence: Any) -> Finding:
    """FAIL with score 0."""
    return Finding(Outcome.FAIL, 0.0, reason, components or {}, evidence)


def unparseable(reason: str, *, components: Mapping[str, float] | None = None, **evidence: Any) -> Finding:
    """FAIL with score 0, because the reply holds no answer in the declared form."""
    return Finding(Outcome.FAIL, 0.0, reason, components or {}, evidence, ending=Ending.UNPARSEABLE)


def undecided(reason: str, ending: Ending, *, flags: tuple[str, ...] = (), **evidence: Any) -> Finding:
    """UNDECIDED: no score."""
    return Finding(Outcome.UNDECIDED, None, reason, {}, evidence, flags, ending)


def fault(error: Exception, reply: str, *, provoked: bool) -> Finding:
    """What an exception of a verifier becomes; `provoked` where a neutral reply raises none."""
    what = error.what if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
    if not provoked:
        return undecided(f"the verifier failed: {shown(what)}", Ending.VERIFIER_ERROR)
    reason = f"the verifier failed on this text and not on a neutral one: {shown(what)}"
    return undecided(reason, Ending.VERIFIER_PROVOKED, flags=(PROVOKED_FLAG,), reply=shown(reply))


async def contained(call: Awaitable[T]) -> T | Exception:
    """The verifier boundary: what the call gives, or the exception that it raises, for the verdict to
    record."""
    try:
        return await call
    except Exception as error:
        return error


def require_object(payload: Any, verifier: str, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The gold payload, where it is an object with exactly these keys.

    Raises: DataError naming the missing or unknown keys (never their values: gold is not quoted).
    """
    if not isinstance(payload, dict):
        raise DataError(
            f"{verifier}: gold is a {type(payload).__name__}, not an object",
            fix=f"give the keys {', '.join(keys)}",
        )
    missing = [key for key in keys if key not in payload]
    unknown = sorted(set(payload) - set(keys) - set(optional))
    if missing or unknown:
        raise DataError(
            f"{verifier}: gold lacks {missing} and has unknown keys {unknown}",
            fix=f"give {', '.join(keys)}" + (f" and at most {', '.join(optional)}" if optional else ""),
        )
    return payload


class TextVerifier(ABC):
    """A checker of a reply's text (or tool calls) against gold.

    Promise: `verify` never raises and is deterministic; null replies FAIL; a fault is UNDECIDED, flagged
    where the text provoked it. Evidence quotes the reply and names what was compared; it never quotes the
    gold. A subclass sets `name`, `version` (raised whenever any verdict can change) and `cases`.
    """

    name: str
    version: str
    cases: Sequence[VerifierCase] = ()
    max_reply_chars: int | None = MAX_REPLY_CHARS

    def read_gold(self, payload: Any) -> Any:
        """The payload, checked and in the form that `check` takes. Raises: DataError where it does not
        fit."""
        return payload

    @abstractmethod
    def check(self, reply: Reply, gold: Any, task: Task) -> Finding:
        """What the checker found; `gold` is what `read_gold` gave. May raise only for a fault that is not the
        reply's."""

    async def judge(self, reply: Reply, gold: Any, task: Task) -> Finding:
        """`check` behind the rules that hold for every reply."""
        if not reply.tool_calls and is_null_reply(reply.text):
            return unparseable("the reply says nothing", reply=shown(reply.text))
        if self.max_reply_chars is not None and len(reply.text) > self.max_reply_chars:
            return unparseable(
                f"the reply has {len(reply.text)} characters; at most {self.max_reply_chars} are read",
                reply=shown(reply.text),
            )
        return self.check(reply, gold, task)

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict:
        """The verdict on one trajectory."""
        started = time.perf_counter()
        reply = Reply.of(trajectory)
        found = await contained(self._judge_sealed(task, gold, reply))
        if isinstance(found, Exception):
            control = await contained(self._judge_sealed(task, gold, Reply(NEUTRAL_REPLY)))
            found = fault(found, reply.text, provoked=not isinstance(control, Exception))
        return found.signed(self.name, self.version, time.perf_counter() - started)

    async def _judge_sealed(self, task: Task, gold: Gold, reply: Reply) -> Finding:
        return await self.judge(reply, self.read_gold(open_gold(gold)), task)
