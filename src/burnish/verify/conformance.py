"""The conformance suite of the `Verifier` protocol, for Burnish's own and for yours.

    def test_mine():
        check_verifier_conformance(mine, demonstrations=[(gold, "a right reply")])

It does not tell whether verdicts are right: that is what cases are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from burnish.core.codec import dumps
from burnish.core.errors import VerifierError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome, rule_of
from burnish.core.protocols import Verifier
from burnish.core.types import Artifacts, Task, Verdict
from burnish.verify.case_builders import null_replies
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.runner import verify_one
from burnish.verify.text import shown

NASTY_TEXTS: tuple[str, ...] = (
    "\x00",
    "\ud800 a lone surrogate \udfff",
    '{"a": "\ud800"}',
    '"\\ud800"',
    "a" * 1_000_000,
    "\u200b" * 100_000 + "1",
    "9" * 100_000,
    "-" * 10_000 + "1",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 10_000 + "1" + "}" * 10_000,
    '"' + "\\" * 50_001,
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1e999999999",
    "0." + "0" * 5_000 + "1",
    "9**9**9**9",
    "2^{2^{40}}",
    "1/0",
    '{"name": {"name": {}}, "arguments": []}',
    '{"name": "x", "arguments": {"a": 1e400}}',
    '{"a": 1, "a": 2}',
    "null",
    "true",
    "```" * 1_000,
    "<answer>" * 5_000,
    "\\boxed{" * 5_000,
    "<think>" + "wait, " * 5_000,
    "\u202e24",
    "４２",
    "۴۲",
    "{0.__class__} %s %n {}",
    "import os; os._exit(0)",
    "cos\nsystem\n(S'true'\ntR.",
)
"""Texts that have raised, hung or fooled checkers: surrogates, sizes, depth, exponents, markup, code."""

_MAX_GOLDS = 5  # kinds of gold to try every nasty text on
_DEADLINE_S = 5.0  # a hundred times what any check here needs


def check_verifier_conformance(
    verifier: Verifier, *, demonstrations: Sequence[tuple[Any, str]] = (), task: Task | None = None
) -> None:
    """The verifier keeps the protocol's promises on its cases, the demonstrations and a fixed set of nasty
    texts.

    `demonstrations`: gold payloads, each with a reply that is right; needed where the verifier has no case
    that must pass. `task`: for verifiers that read one. Not for use inside a running event loop.

    Checked: it never raises nor hangs; equal input, equal verdict; right replies pass; null replies fail; a
    score exists iff decided, and is finite; outcome and ending agree; it signs with its own name and version;
    the verdict can be stored.

    Raises: VerifierError with every promise that is broken.
    """
    broken = asyncio.run(_check(verifier, demonstrations, task))
    if broken:
        raise VerifierError(
            f"verifier {verifier.name}@{verifier.version} breaks its protocol: {'; '.join(broken)}",
            where=verifier.name,
            fix="mend the verifier",
        )


async def _check(verifier: Verifier, demonstrations: Sequence[tuple[Any, str]], task: Task | None) -> list[str]:
    broken: list[str] = []
    right = [(task or bare_task(verifier.name), gold, reply) for gold, reply in demonstrations]
    right += [
        (bare_task(verifier.name, case.prompt, case.tools), case.gold, case.reply)
        for case in verifier.cases
        if case.want == Outcome.PASS
    ]
    if not right:
        return ["nothing is known to pass it; give demonstrations or a case that must pass"]
    for task_, gold, reply in right:
        broken += await _promises(verifier, task_, gold, reply, Outcome.PASS)
    for task_, gold in _golds(right):
        for reply in NASTY_TEXTS:
            broken += await _promises(verifier, task_, gold, reply, None)
        for case in null_replies(gold):
            broken += await _promises(verifier, task_, gold, case.reply, Outcome.FAIL)
    return list(dict.fromkeys(broken))


def _golds(right: Sequence[tuple[Task, Any, str]]) -> Iterator[tuple[Task, Any]]:
    distinct = {Gold.seal(gold).digest: (task, gold) for task, gold, _ in right}
    yield from list(distinct.values())[:_MAX_GOLDS]


async def _promises(verifier: Verifier, task: Task, gold: Any, reply: str, want: Outcome | None) -> list[str]:
    first, second = [await _once(verifier, task, gold, reply) for _ in range(2)]
    text = shown(reply, 40)
    broken = []
    if first.outcome is Outcome.UNDECIDED:
        broken.append(f"{text!r} leaves it undecided: {first.reason}")
    elif want is not None and first.outcome is not want:
        broken.append(f"{text!r} must {want.value}, got {first.outcome.value}: {first.reason}")
    if replace(first, duration_s=0.0) != replace(second, duration_s=0.0):
        broken.append(f"{text!r} got two different verdicts")
    forced = rule_of(first.ending).outcome
    if forced is not None and forced is not first.outcome:
        broken.append(f"{text!r}: outcome {first.outcome.value} with ending {first.ending.value}")
    if (first.verifier, first.version) != (verifier.name, verifier.version):
        broken.append(f"it signs as {first.verifier}@{first.version}")
    if not _storable(first):
        broken.append(f"the verdict on {text!r} cannot be stored as UTF-8 JSON")
    return broken


async def _once(verifier: Verifier, task: Task, gold: Any, reply: str) -> Verdict:
    trajectory = reply_trajectory(task, reply)
    return await verify_one(verifier, task, Gold.seal(gold), trajectory, Artifacts(), _DEADLINE_S, retries=0)


def _storable(verdict: Verdict) -> bool:
    try:
        dumps(verdict).encode("utf-8")
    except (TypeError, ValueError):  # UnicodeEncodeError is a ValueError
        return False
    return True
