"""The four families of business texts: what each says, and under which keys it may be asked for.

A family draws facts: texts for the slots of its templates and the values that they stand for. Leaves out
wording (the text files beside this module) and the choice of split (burnish.domains.pools).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from burnish.core.types import Split
from burnish.domains.surfaces import draw_date, draw_money, draw_time, number_word, plain_number
from burnish.domains.vocabulary import words

_SMALL_CURRENCIES = ("USD", "EUR", "GBP", "CHF")
_UNIT_PRICES = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)
_MAX_TOTAL = 40  # products up to here are within reach of a model of 135M parameters; larger ones are not
_INVOICE_AMOUNTS = (
    18.0,
    24.5,
    35.0,
    42.75,
    60.0,
    79.99,
    96.5,
    120.0,
    155.0,
    240.5,
    310.0,
    480.0,
    650.0,
    975.0,
)
_COMPANY_FORMS = (
    "{} Ltd",
    "{} GmbH",
    "{} & Sons",
    "{} Foods",
    "{} Supplies",
    "{} Inc",
    "{} Print",
    "{} Tools",
)
_VOWEL = re.compile(r"[aeiou]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Field:
    """Something a text tells: the keys it may be asked under, and the form wanted ('' for a copied text)."""

    keys: tuple[str, ...]
    form: str = ""


@dataclass(slots=True)
class Facts:
    """Slot texts, values by field, and the open-class words used."""

    texts: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def word(self, name: str, random: Random, split: Split) -> str:
        """A word of one list, remembered."""
        chosen = random.choice(words(name, split))
        self.words.append(chosen)
        return chosen

    def person(self, random: Random, split: Split) -> tuple[str, str]:
        """First and full name."""
        first = self.word("first", random, split)
        return first, f"{first} {self.word('last', random, split)}"

    def put(self, name: str, text: str, value: Any) -> None:
        """One fact under the same name as slot and as field."""
        self.texts[name], self.values[name] = text, value


@dataclass(frozen=True, slots=True)
class Family:
    """Fields by name, the groups of them that make sense together, and how facts are drawn."""

    name: str
    fields: dict[str, Field]
    subsets: tuple[tuple[str, ...], ...]
    draw: Callable[[Random, Split], Facts]


def _people(random: Random, split: Split) -> Facts:
    facts = Facts()
    facts.texts["first"], full = facts.person(random, split)
    facts.put("name", full, full)
    age = random.randint(19, 79)
    facts.put("age", str(age), age)
    city = facts.word("city", random, split)
    facts.put("city", city, city)
    job = facts.word("job", random, split)
    facts.put("job", job, job)
    facts.texts["a_job"] = f"{'an' if _VOWEL.match(job) else 'a'} {job}"
    return facts


def _orders(random: Random, split: Split) -> Facts:
    facts = Facts()
    _, customer = facts.person(random, split)
    facts.put("customer", customer, customer)
    item = facts.word("goods", random, split)
    facts.put("item", item, item)
    unit = draw_money(random, _UNIT_PRICES, _SMALL_CURRENCIES)
    quantity = random.choice([q for q in range(2, 10) if q * unit.amount <= _MAX_TOTAL])
    facts.put("quantity", number_word(quantity, random), quantity)
    facts.texts["quantity_digit"] = str(quantity)
    facts.texts["unit"] = unit.written(unit.amount)
    facts.put("total", unit.written(unit.amount * quantity), plain_number(unit.amount * quantity))
    facts.values["currency"] = unit.currency
    return facts


def _invoices(random: Random, split: Split) -> Facts:
    facts = Facts()
    company = random.choice(_COMPANY_FORMS).format(facts.word("company", random, split))
    facts.put("company", company, company)
    digits = random.randint(100, 999)
    number = random.choice((f"INV-{digits}", f"{digits}-A", f"R{digits}", f"{random.choice('BCDK')}-{digits}"))
    facts.put("number", number, number)
    money = draw_money(random, _INVOICE_AMOUNTS)
    facts.put("amount", money.written(money.amount), plain_number(money.amount))
    facts.values["currency"] = money.currency
    due = draw_date(random)
    facts.put("due", due.text, due.value)
    facts.texts["date"] = due.text
    return facts


def _appointments(random: Random, split: Split) -> Facts:
    facts = Facts()
    _, person = facts.person(random, split)
    facts.put("person", person, person)
    place = facts.word("venue", random, split)
    facts.put("place", place, place)
    date, time = draw_date(random), draw_time(random)
    facts.put("date", date.text, date.value)
    facts.put("time", time.text, time.value)
    return facts


FAMILIES: tuple[Family, ...] = (
    Family(
        "people",
        {
            "name": Field(("name", "full_name", "person", "who")),
            "age": Field(("age", "years", "age_years"), "integer"),
            "city": Field(("city", "town", "location", "place")),
            "job": Field(("job", "profession", "occupation", "work")),
        },
        (("name", "age", "city"), ("name", "age", "job"), ("name", "city", "job"), ("age", "city", "job"),
         ("name", "age", "city", "job")),
        _people,
    ),
    Family(
        "orders",
        {
            "customer": Field(("customer", "buyer", "client", "name")),
            "item": Field(("item", "product", "goods", "article")),
            "quantity": Field(("quantity", "count", "pieces", "qty"), "integer"),
            "total": Field(("total", "total_price", "sum", "to_pay"), "number"),
            "currency": Field(("currency", "currency_code"), "ISO code"),
        },
        (("item", "quantity", "total"), ("quantity", "total", "currency"), ("customer", "total", "currency"),
         ("customer", "item", "quantity"), ("item", "total", "currency"),
         ("item", "quantity", "total", "currency")),
        _orders,
    ),
    Family(
        "invoices",
        {
            "number": Field(("invoice", "number", "reference", "invoice_id")),
            "company": Field(("company", "seller", "supplier", "sender")),
            "amount": Field(("amount", "sum", "total", "price"), "number"),
            "currency": Field(("currency", "currency_code"), "ISO code"),
            "due": Field(("due", "due_date", "deadline", "pay_by"), "YYYY-MM-DD"),
        },
        (("company", "amount", "currency"), ("number", "amount", "currency"), ("number", "company", "due"),
         ("company", "due"), ("amount", "currency", "due"), ("number", "amount", "due")),
        _invoices,
    ),
    Family(
        "appointments",
        {
            "person": Field(("person", "name", "who", "with")),
            "place": Field(("place", "location", "where", "venue")),
            "date": Field(("date", "day"), "YYYY-MM-DD"),
            "time": Field(("time", "start", "hour", "at"), "HH:MM, 24 h"),
        },
        (("person", "time", "place"), ("person", "date"), ("date", "time"), ("place", "date", "time"),
         ("person", "date", "time"), ("person", "place", "date"), ("person", "time")),
        _appointments,
    ),
)  # fmt: skip
