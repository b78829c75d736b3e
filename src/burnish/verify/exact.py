"""`exact`: the committed answer is this text.

Gold: a string, or `{"accept": [strings], "ignore_case": bool}`. The answer slot (`slots`) is compared whole
after look-alikes are folded; inner white space counts. Leaves out any notion of meaning: "Paris." is not
"Paris".
"""

from __future__ import annotations

from typing import Any

from burnish.core.errors import DataError
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed, require_object, unparseable
from burnish.verify.cases_text import EXACT_CASES
from burnish.verify.slots import SlotRejected, committed_slot
from burnish.verify.text import fold, is_null_reply, shown


class Exact(TextVerifier):
    """PASS iff the committed answer equals an accepted text."""

    name = "exact"
    version = "1"
    cases = EXACT_CASES

    def read_gold(self, payload: Any) -> tuple[frozenset[str], bool]:
        """The accepted texts, folded, and whether case is ignored."""
        if isinstance(payload, str):
            payload = {"accept": [payload]}
        gold = require_object(payload, self.name, ["accept"], ["ignore_case"])
        accept, ignore_case = gold["accept"], gold.get("ignore_case", False)
        if not isinstance(accept, list) or not accept or not all(isinstance(text, str) for text in accept):
            raise DataError("exact: accept is not a list of strings", fix="give at least one accepted text")
        if any(is_null_reply(text) for text in accept):
            raise DataError("exact: an accepted text says nothing", fix="null replies always fail; remove it")
        if not isinstance(ignore_case, bool):
            raise DataError(f"exact: ignore_case is {ignore_case!r}", fix="give true or false")
        return frozenset(_comparable(text, ignore_case) for text in accept), ignore_case

    def check(self, reply: Reply, gold: tuple[frozenset[str], bool], task: Task) -> Finding:
        """Compare the committed answer."""
        accepted, ignore_case = gold
        try:
            slot = committed_slot(reply.text)
        except SlotRejected as rejected:
            return unparseable(str(rejected), reply=shown(reply.text))
        if _comparable(slot, ignore_case) in accepted:
            return passed("the answer is an accepted text", answer=shown(slot))
        return failed("the answer is not an accepted text", answer=shown(slot))


def _comparable(text: str, ignore_case: bool) -> str:
    text = fold(text).strip()
    return text.casefold() if ignore_case else text
