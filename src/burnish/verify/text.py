"""Text before it is judged: look-alikes folded, null replies recognised, quotations made safe to store.

Leaves out finding the answer inside a reply (`slots`, `json_extract`).
"""

from __future__ import annotations

import re
import unicodedata

# Invisible characters without meaning of their own: soft hyphen, Mongolian vowel separator, zero width space,
# non-joiner and joiner, word joiner, byte order mark, variation selectors. Bidirectional overrides are left
# in on purpose: they change what a reader sees, so a text that holds one must fail its comparison.
_INVISIBLE = dict.fromkeys([0xAD, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0xFE00, 0xFE10)])

# Compatibility forms that are the same character in another dress. Superscripts, fractions and circled digits
# are other characters ("10²" is not "102"), so they stay, and a strict slot rejects them.
_SAME_CHARACTER = frozenset({"<wide>", "<narrow>", "<font>", "<noBreak>"})

_NULL_EDGES = " \t\r\n\v\f\u00a0:;,.…`\"'_|~#"
_LABELS = (
    "thought process|thoughts?|thinking|reasoning|explanation|analysis|the answer is|final answer|answer|"
    "solution|response|result|output|assistant|step 1|json"
)
_LABEL_ONLY = re.compile(rf"[*_#\s]*(?:{_LABELS})[*_\s]*:[*_\s]*", re.IGNORECASE)
_TAGS_ONLY = re.compile(
    r"(?:</?(?:answer|final|output|reasoning|response|solution|think|thinking|tool_call)>\s*)+", re.IGNORECASE
)
_EMPTY_FENCE = re.compile(r"```\w*\s*```")
_EMPTY_BOX = re.compile(r"\$*\\boxed\{\s*\}\$*")
_MAX_NULL_CHARS = 80  # longer than any label or run of empty tags above
_MAX_SHOWN_CHARS = 200  # enough to recognise a reply in a report without storing it twice


def fold(text: str) -> str:
    """The text with invisible characters removed, same-character look-alikes (full width, mathematical
    alphabets) replaced by the plain letter, in NFC. What cannot be folded stays, for the comparison to
    reject.
    """
    if text.isascii():
        return text
    folded = []
    for character in text.translate(_INVISIBLE):
        if ord(character) > 127 and unicodedata.decomposition(character).split(" ")[0] in _SAME_CHARACTER:
            character = unicodedata.normalize("NFKC", character)
        folded.append(character)
    return unicodedata.normalize("NFC", "".join(folded))


def is_null_reply(text: str) -> bool:
    """Whether a reply says nothing: blank, stray punctuation, a bare label such as "Thought process:", or
    empty tags, fences and boxes. A null reply fails every verifier.
    """
    core = fold(text).strip(_NULL_EDGES)
    if not core or all(unicodedata.category(c) in ("Cc", "Cf", "Zs") for c in core[:_MAX_NULL_CHARS]):
        return True
    if len(core) > _MAX_NULL_CHARS:
        return False
    body = fold(text).strip()
    return any(pattern.fullmatch(body) for pattern in (_LABEL_ONLY, _TAGS_ONLY, _EMPTY_FENCE, _EMPTY_BOX))


def shown(text: str, limit: int = _MAX_SHOWN_CHARS) -> str:
    """A quotation that can be stored: cut with a note of its full length, lone surrogates written as
    escapes."""
    head = text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")
    return head if len(text) <= limit else f"{head}… ({len(text)} characters)"
