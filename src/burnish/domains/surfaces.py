"""Values as people write them: each draw gives the text and the value that it stands for.

Dates are ISO 8601 days, times 24-hour HH:MM, money an amount and an ISO 4217 code. Nothing here depends on
the locale. Leaves out ambiguous forms (03/04/2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date as Day
from datetime import timedelta
from random import Random
from typing import Any

_YEAR = "January February March April May June July August September October November December"
MONTHS = tuple(_YEAR.split(" "))
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_COUNTING = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = tuple(_COUNTING.split(" "))

_FIRST_DAY, _NUM_DAYS = Day(2023, 1, 1), 5 * 365
_HOURS = range(7, 21)  # when people have appointments
_SPOKEN_MINUTES = {0: "", 15: "quarter past ", 30: "half past ", 45: "quarter to "}
_CURRENCIES: dict[str, tuple[str, ...]] = {
    "USD": ("${}", "{} dollars", "{} USD", "US${}"),
    "EUR": ("€{}", "{} euros", "EUR {}"),
    "GBP": ("£{}", "{} pounds", "GBP {}"),
    "CHF": ("{} Swiss francs", "CHF {}"),
    "INR": ("₹{}", "{} rupees"),
    "JPY": ("JPY {}", "{} yen"),  # not ¥, which is the yuan's sign too
}
_LARGE_UNITS = ("INR", "JPY")  # currencies whose everyday sums are in the hundreds and have no cents


@dataclass(frozen=True, slots=True)
class Surface:
    """A value and one way of writing it."""

    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of a currency, and how to write any amount of it in the same way."""

    form: str
    currency: str
    amount: float

    def written(self, amount: float) -> str:
        """This form with another amount: cents only where there are any."""
        return self.form.format(f"{amount:.2f}" if amount != int(amount) else str(int(amount)))


def draw_date(random: Random) -> Surface:
    """A day in 2023 to 2027, in one of five unambiguous English forms."""
    day = _FIRST_DAY + timedelta(days=random.randrange(_NUM_DAYS))
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    forms = (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"the {ordinal(day.day)} of {month} {day.year}",
        f"{day.day} {month[:3]} {day.year}",
        f"{weekday}, {day.day} {month} {day.year}",
    )
    return Surface(random.choice(forms), day.isoformat())


def draw_time(random: Random) -> Surface:
    """A time between 7:00 and 20:45, as on a clock of 12 or 24 hours, or in words."""
    hour = random.choice(_HOURS)
    kind = random.choice(("twelve", "twelve", "twenty_four", "words"))
    if kind == "words":
        return _spoken_time(random, hour)
    minute = random.choice((0, 10, 15, 20, 30, 40, 45))
    value = f"{hour:02d}:{minute:02d}"
    if kind == "twenty_four":
        return Surface(value, value)
    minutes = f":{minute:02d}" if minute or random.random() < 0.3 else ""
    return Surface(f"{_on_dial(hour)}{minutes} {'am' if hour < 12 else 'pm'}", value)


def draw_money(random: Random, amounts: tuple[float, ...], currencies: tuple[str, ...] | None = None) -> Money:
    """One of the amounts, in a currency drawn from those given (all by default)."""
    currency = random.choice(currencies or tuple(_CURRENCIES))
    amount = random.choice(amounts)
    if currency in _LARGE_UNITS:
        amount = float(int(amount) * 100)
    return Money(random.choice(_CURRENCIES[currency]), currency, amount)


def number_word(value: int, random: Random) -> str:
    """A small whole number in digits or, half of the time, in a word."""
    return NUMBERS[value] if value < len(NUMBERS) and random.random() < 0.5 else str(value)


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th ... 31st."""
    if day in (11, 12, 13):
        return f"{day}th"
    return f"{day}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th') }"


def plain_number(value: float) -> int | float:
    """A whole number as int, so that its JSON has no `.0`."""
    return int(value) if value == int(value) else value


def _spoken_time(random: Random, hour: int) -> Surface:
    minute = random.choice(tuple(_SPOKEN_MINUTES))
    part = "morning" if hour < 12 else "afternoon" if hour < 18 else "evening"
    named = NUMBERS[_on_dial(hour + 1 if minute == 45 else hour)]
    return Surface(f"{_SPOKEN_MINUTES[minute]}{named} in the {part}", f"{hour:02d}:{minute:02d}")


def _on_dial(hour: int) -> int:
    return (hour - 1) % 12 + 1
