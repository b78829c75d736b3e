"""Numbers and foreign text as a report shows them.

Text written by a model is data: characters that could hide, reorder or break what stands around them are
written as escapes, and long text is cut with a note of its full length. Leaves out escaping for HTML, which
the template engine does to everything.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from burnish.observe.disk import format_bytes

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
_GAP = "\N{NO-BREAK SPACE}"

# C0 and C1 controls except newline and tab, soft hyphen, zero-width and bidirectional controls, line
# separators, lone surrogates, byte-order mark: what cannot be seen, or changes how its neighbours are read.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)


def visible(text: str) -> str:
    """The text with every hidden character written as an escape such as \\u202e."""
    return _HIDDEN.sub(lambda match: _escape(match.group()), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def cut(text: str, limit: int) -> tuple[str, str]:
    """The first `limit` characters, and a note of what was left out ('' where nothing was)."""
    if len(text) <= limit:
        return text, ""
    return text[:limit], f"first {count(limit)} of {count(len(text))} characters; all of them are in report.json"


def count(number: float) -> str:
    """A whole number with thousands separated by commas."""
    return f"{number:,.0f}".replace("-", MINUS)


def percent(fraction: float | None) -> str:
    """A fraction as '68.3 %', or a dash."""
    return NONE if fraction is None else f"{_tenths(fraction)}{_GAP}%"


def percent_range(low: float, high: float) -> str:
    """An interval of fractions, in percent: '[61.0, 75.1]'."""
    return f"[{_tenths(low)},{_GAP}{_tenths(high)}]"


def points(difference: float | None) -> str:
    """A difference of two fractions as '+4.2 points', or a dash."""
    return NONE if difference is None else f"{signed(100 * difference, 1)}{_GAP}points"


def points_range(low: float, high: float) -> str:
    """An interval of differences, in points: '[+1.0, +7.5]'."""
    return f"[{signed(100 * low, 1)},{_GAP}{signed(100 * high, 1)}]"


def signed(number: float, digits: int) -> str:
    """A number with its sign, and none for what rounds to zero."""
    text = f"{number:+.{digits}f}"
    return text[1:] if not float(text) else text.replace("-", MINUS)


def plain(number: float | None) -> str:
    """A number to four significant digits, thousands separated; a dash where there is none."""
    if number is None or not math.isfinite(number):
        return NONE
    if number == int(number) and abs(number) < 1e15:
        return count(number)
    if abs(number) >= 10_000:
        return count(number)
    return f"{number:.4g}".replace("-", MINUS)


def p_value(p: float | None) -> str:
    """A p value to two digits, or '< 0.0001'."""
    if p is None:
        return NONE
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def duration(seconds: float) -> str:
    """'0.4 ms', '4.2 s', '3 min 05 s' or '2 h 07 min'."""
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    return format_bytes(num_bytes)


def words(name: str) -> str:
    """An identifier as words."""
    return name.replace("_", " ")


def short(digest: str) -> str:
    """The first 12 digits of a digest."""
    return digest[:12]


def fact(value: Any) -> str:
    """Any JSON value as one text: numbers plain, structures as indented JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return plain(float(value))
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _tenths(fraction: float) -> str:
    text = f"{100 * fraction:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)
