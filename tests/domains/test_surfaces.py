"""Dates, times and money: what is written stands for the value, read back by independent rules."""

from __future__ import annotations

import re
from datetime import datetime
from random import Random

import pytest

from burnish.domains.surfaces import (
    Money,
    draw_date,
    draw_money,
    draw_time,
    number_word,
    ordinal,
    plain_number,
)

SPOKEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
HOURS = {word: hour for hour, word in enumerate(SPOKEN, 1)}


def test_dates_read_back() -> None:
    random, forms = Random(1), set()
    for _ in range(400):
        date = draw_date(random)
        text = re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", date.text).replace("the ", "").replace("of ", "")
        for form in ("%d %B %Y", "%B %d, %Y", "%d %b %Y", "%A, %d %B %Y"):
            try:
                assert datetime.strptime(text, form).date().isoformat() == date.value
                forms.add((form, "the" in date.text))
                break
            except ValueError:
                continue
        else:
            raise AssertionError(date)
    assert len(forms) == 5


def clock(text: str) -> str:
    """A reader of clock times that shares no code with the writer."""
    if re.fullmatch(r"\d\d:\d\d", text):
        return text
    if text.endswith(("am", "pm")):
        padded = text if ":" in text else text.replace(" ", ":00 ")
        return datetime.strptime(padded, "%I:%M %p").strftime("%H:%M")
    match = re.fullmatch(r"(quarter past |half past |quarter to )?(\w+) in the (morning|afternoon|evening)", text)
    assert match, text
    minutes = {"quarter past ": 15, "half past ": 30, "quarter to ": -15, None: 0}[match.group(1)]
    hour, morning = HOURS[match.group(2)], match.group(3) == "morning"
    total = 60 * (hour if morning else hour % 12 + 12) + minutes
    return f"{total // 60:02d}:{total % 60:02d}"


def test_times_read_back() -> None:
    random = Random(2)
    drawn = [draw_time(random) for _ in range(2000)]
    wrong = {(t.text, t.value, clock(t.text)) for t in drawn if clock(t.text) != t.value}
    assert wrong == set()
    assert {t.value[:2] for t in drawn} == {f"{hour:02d}" for hour in range(7, 21)}


ORDINALS = "1st 2nd 3rd 4th 10th 11th 12th 13th 20th 21st 22nd 23rd 24th 30th 31st"


@pytest.mark.parametrize("text", ORDINALS.split())
def test_ordinals(text: str) -> None:
    assert ordinal(int(text[:-2])) == text


def test_money_reads_back_and_keeps_its_form() -> None:
    signs = {"$": "USD", "dollars": "USD", "USD": "USD", "€": "EUR", "euros": "EUR", "EUR": "EUR", "£": "GBP"}
    signs |= {"pounds": "GBP", "GBP": "GBP", "francs": "CHF", "CHF": "CHF", "₹": "INR", "rupees": "INR"}
    signs |= {"JPY": "JPY", "yen": "JPY"}
    random, seen = Random(3), set()
    for _ in range(500):
        money = draw_money(random, (2.0, 12.5, 79.99))
        text = money.written(money.amount)
        assert {code for sign, code in signs.items() if sign in text} == {money.currency}
        assert float(re.findall(r"\d+(?:\.\d\d)?", text)[0]) == money.amount
        seen.add(money.currency)
    assert seen == {"USD", "EUR", "GBP", "CHF", "INR", "JPY"}
    assert Money("${}", "USD", 5.0).written(12.5) == "$12.50"
    assert Money("{} yen", "JPY", 500.0).written(500.0) == "500 yen"


def test_numbers() -> None:
    assert isinstance(plain_number(5.0), int)
    assert plain_number(5.5) == 5.5
    assert {number_word(3, Random(i)) for i in range(20)} == {"3", "three"}
    assert {number_word(40, Random(i)) for i in range(20)} == {"40"}
