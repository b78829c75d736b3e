"""`numeric`: the committed answer is this number.

Gold: an integer, a decimal, a string in the grammar below, or
`{"value": ..., "unit": "km" | ["km", "kilometres"], "rel_tol": 1e-3}`.

The rule, which prompts should state. The answer slot (`slots`) is one number and nothing else but the gold's
unit: digits, optional sign, `.` for decimals, `,` only between groups of three digits, `e` exponents, no
leading zeros, at most one full stop behind. `%` means hundredths (12.5% is 0.125, and 12.5 is not 12.5%). A
fraction `a/b` is read only where the gold is written as one, and only in lowest terms: the task asked for a
value, not for its expression again. What overflows a double is refused.

Comparison is exact, in rationals, unless `rel_tol` is given or the gold is a JSON decimal (1e-9: the last
digits of a computed double are noise). Tolerance is relative only, so zero and every small number keep their
meaning. A unit is compared by spelling, case included; nothing is converted. Leaves out algebra.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from burnish.core.errors import DataError
from burnish.core.types import Task
from burnish.verify.base import Finding, Reply, TextVerifier, failed, passed, require_object, unparseable
from burnish.verify.cases_text import NUMERIC_CASES
from burnish.verify.slots import SlotRejected, committed_slot
from burnish.verify.text import fold, shown

_INTEGER = r"(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)"
_DECIMAL = re.compile(rf"[+-]?(?:{_INTEGER}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{{1,3}})?", re.ASCII)
_FRACTION = re.compile(r"([+-]?(?:0|[1-9]\d*))/([1-9]\d*)", re.ASCII)
_MAX_NUMBER_CHARS = 400  # the longest exact decimal of a double below 1e308 fits
_LARGEST = Fraction(1.7976931348623157e308)  # largest finite double
_FLOAT_GOLD_REL_TOL = 1e-9
_MAX_REL_TOL = 0.1  # above this, "nearly right" and "wrong" are not told apart


@dataclass(frozen=True, slots=True)
class NumericGold:
    """The expected number; `units` are accepted spellings, none where the answer is a pure number."""

    value: Fraction
    rel_tol: Fraction
    units: tuple[str, ...]
    is_fraction: bool


class Numeric(TextVerifier):
    """PASS iff the committed answer is the gold number, with the gold's unit where it has one."""

    name = "numeric"
    version = "2"
    cases = NUMERIC_CASES

    def read_gold(self, payload: Any) -> NumericGold:
        """The gold in rationals."""
        gold = {"value": payload} if not isinstance(payload, dict) else payload
        gold = require_object(gold, self.name, ["value"], ["unit", "rel_tol"])
        value, is_fraction = _gold_value(gold["value"])
        default_tol = _FLOAT_GOLD_REL_TOL if isinstance(gold["value"], float) else 0.0
        return NumericGold(value, _gold_rel_tol(gold.get("rel_tol", default_tol)), _gold_units(gold), is_fraction)

    def check(self, reply: Reply, gold: NumericGold, task: Task) -> Finding:
        """Read the committed answer, then its unit, then its value."""
        try:
            slot = committed_slot(reply.text)
        except SlotRejected as rejected:
            return unparseable(str(rejected), reply=shown(reply.text))
        whole = slot.replace("\u2212", "-").strip()
        text = whole.removesuffix(".").strip()
        if gold.units:
            found = (_without_unit(form, gold.units) for form in (whole, text))  # a unit may end in a full stop: "in."
            number = next((form for form in found if form is not None), None)
            if number is None:
                return failed("the answer lacks the unit, or has another", answer=shown(slot))
            text = number
        value = parse_number(text, fractions=gold.is_fraction)
        if value is None:
            return unparseable("the answer is not one number in the declared form", answer=shown(slot))
        if abs(value - gold.value) <= gold.rel_tol * abs(gold.value):
            return passed("the number is right", answer=shown(slot))
        return failed("the number is wrong", answer=shown(slot))


def parse_number(text: str, *, fractions: bool = False) -> Fraction | None:
    """The number that the whole text is, in the grammar above; None where it is not one, or is not finite."""
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    percent = text.endswith("%")
    if percent:
        text = text[:-1].rstrip(" ")
    if fractions and not percent and (match := _FRACTION.fullmatch(text)):
        top, bottom = int(match.group(1)), int(match.group(2))
        return Fraction(top, bottom) if bottom > 1 and math.gcd(top, bottom) == 1 else None
    if not _DECIMAL.fullmatch(text):
        return None
    value = Fraction(text.replace(",", ""))
    if abs(value) > _LARGEST:
        return None
    return value / 100 if percent else value


def _without_unit(text: str, units: tuple[str, ...]) -> str | None:
    """The text without an accepted unit behind it or (as currencies) before it; None where it has none."""
    sign, body = ("-", text[1:].lstrip()) if text.startswith("-") else ("", text)
    for unit in sorted(units, key=len, reverse=True):
        if body.endswith(unit):
            return sign + body.removesuffix(unit).rstrip()
        if body.startswith(unit):
            return sign + body.removeprefix(unit).lstrip()
    return None


def _gold_value(value: Any) -> tuple[Fraction, bool]:
    if isinstance(value, str):
        text = fold(value).strip()
        number = parse_number(text, fractions=True)
        if number is not None:
            return number, "/" in text
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        exact = Fraction(repr(value))  # the decimal as written, not the double behind it
        if abs(exact) <= _LARGEST:
            return exact, False
    raise DataError(
        f"numeric: the gold value ({type(value).__name__}) is not a number in the declared form",
        fix='give an integer, a decimal, or a string such as "3/4", "12.5%" or "1,200"',
    )


def _gold_rel_tol(rel_tol: Any) -> Fraction:
    if not isinstance(rel_tol, (int, float)) or isinstance(rel_tol, bool) or not 0 <= rel_tol <= _MAX_REL_TOL:
        raise DataError(f"numeric: rel_tol={rel_tol!r} is not between 0 and {_MAX_REL_TOL}", fix="give a smaller one")
    return Fraction(rel_tol)


def _gold_units(gold: dict[str, Any]) -> tuple[str, ...]:
    units = gold.get("unit", [])
    units = [units] if isinstance(units, str) else units
    if not isinstance(units, list) or not all(isinstance(unit, str) and unit.strip() for unit in units):
        raise DataError("numeric: unit is not a text or a list of texts", fix="give its accepted spellings")
    if any(character.isdigit() and character.isascii() for unit in units for character in unit[:1] + unit[-1:]):
        raise DataError("numeric: a unit begins or ends with a digit", fix="spell it with a letter or ²")
    return tuple(fold(unit).strip() for unit in units)
