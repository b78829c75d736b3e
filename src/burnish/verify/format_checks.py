"""`instruction_format`: the reply obeys a stated form. For guard suites: what it says is not judged.

Gold: `{"kind": ..., ...}`, optionally with `"min_words"` (default 1), so that a short reply cannot pass where
the task wants text.

| kind | further key | PASS iff |
|---|---|---|
| `exact_word_count` | `count` | it has that many words (white space between, a letter or digit in each) |
| `num_lines` | `count` | it has that many lines that are not blank |
| `num_bullets` | `count` | it has that many lines that begin with `-`, `*` or `•` and a space |
| `single_word` | | it is one word, at most one full stop behind |
| `all_lowercase`, `all_uppercase` | | it has letters with case, all of that case |
| `no_commas` | | it has no comma, in any script |
| `starts_with`, `ends_with`, `contains` | `text` | it does, case included, white space around it aside |
| `json_object` | | it is one strict JSON object (`json_extract`) |

Look-alikes are folded first. Leaves out quality, and every judgement of content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.core.errors import DataError
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed
from burnish.verify.cases_format import FORMAT_CASES
from burnish.verify.json_extract import JsonRejected, parse_json_reply
from burnish.verify.text import fold, shown

_COMMAS = frozenset(",\u060c\u3001\uff0c\uff64\ufe50\ufe51\u055d\u1802\ua60d")  # Latin, Arabic, CJK, Armenian, ...
_BULLETS = ("- ", "* ", "• ")


def _words(text: str) -> list[str]:
    return [word for word in text.split() if any(character.isalnum() for character in word)]


def _bullets(text: str) -> int:
    return sum(line.strip().startswith(_BULLETS) for line in text.splitlines())


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(parse_json_reply(text), dict)
    except JsonRejected:
        return False


_COUNTS: dict[str, Callable[[str], int]] = {
    "exact_word_count": lambda text: len(_words(text)),
    "num_lines": lambda text: sum(bool(line.strip()) for line in text.splitlines()),
    "num_bullets": _bullets,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "contains": str.__contains__,
}
_PLAIN: dict[str, Callable[[str], bool]] = {
    "single_word": lambda text: text.removesuffix(".").isalnum(),
    "all_lowercase": str.islower,
    "all_uppercase": str.isupper,
    "no_commas": lambda text: not _COMMAS.intersection(text),
    "json_object": _is_json_object,
}
KINDS = (*_COUNTS, *_TEXTS, *_PLAIN)


class InstructionFormat(TextVerifier):
    """PASS iff the reply has the form that the gold names."""

    name = "instruction_format"
    version = "2"
    cases = FORMAT_CASES

    def read_gold(self, payload: Any) -> dict[str, Any]:
        """The kind and its keys, checked."""
        kind = payload.get("kind") if isinstance(payload, dict) else None
        if kind not in KINDS:
            raise DataError(f"{self.name}: unknown kind {kind!r}", fix=f"give one of {', '.join(KINDS)}")
        further = ["count"] if kind in _COUNTS else ["text"] if kind in _TEXTS else []
        gold = {"min_words": 1, **payload}
        if set(gold) != {"kind", "min_words", *further}:
            raise DataError(f"{self.name}: {kind} has keys {sorted(payload)}", fix=f"give kind and {further}")
        for key in ("min_words", *(["count"] if kind in _COUNTS else [])):
            if not isinstance(gold[key], int) or isinstance(gold[key], bool) or gold[key] < 0:
                raise DataError(f"{self.name}: {key}={gold[key]!r} is not a count", fix="give 0 or more")
        if kind in _TEXTS and (not isinstance(gold["text"], str) or not gold["text"].strip()):
            raise DataError(f"{self.name}: text is blank or not a text", fix="give the text to look for")
        return gold

    def check(self, reply: Reply, gold: dict[str, Any], task: Task) -> Finding:
        """Measure the form."""
        kind, text = gold["kind"], fold(reply.text).strip()
        num_words = len(_words(text))
        if num_words < gold["min_words"]:
            return failed(f"{num_words} words are fewer than wanted", reply=shown(reply.text))
        if kind in _COUNTS:
            found = _COUNTS[kind](text)
            holds, reason = (
                found == gold["count"],
                f"{kind}: {found} is {'right' if found == gold['count'] else 'wrong'}",
            )
        elif kind in _TEXTS:
            holds = _TEXTS[kind](text, fold(gold["text"]).strip())
            reason = f"{kind} {'holds' if holds else 'does not hold'}"
        else:
            holds = _PLAIN[kind](text)
            reason = f"{kind} {'holds' if holds else 'does not hold'}"
        return passed(reason) if holds else failed(reason, reply=shown(reply.text))
