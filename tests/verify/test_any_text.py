"""A verifier never raises on any text, decides it, and its evidence never quotes the gold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.core.codec import dumps, loads
from burnish.core.outcomes import Outcome, rule_of
from burnish.core.types import Verdict
from burnish.verify.json_extract import JsonRejected, json_equal, nfc, parse_strict_json
from burnish.verify.numeric import parse_number
from burnish.verify.registry import VERIFIERS, get_verifier
from burnish.verify.slots import SlotRejected, committed_slot
from burnish.verify.text import fold, is_null_reply, shown

_GOLDS = {
    name: [(case.gold, case.tools) for case in get_verifier(name).cases if case.want == "pass"] for name in VERIFIERS
}
_FRAGMENTS = st.sampled_from(
    [
        *(
            '{"name": ',
            '"arguments": ',
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ":",
            ",",
            "null",
            "none",
            "true",
            "1e400",
        ),
        *(
            "<answer>",
            "</answer>",
            "\\boxed{",
            "#### ",
            "Answer: ",
            "<think>",
            "</think>",
            "```",
            "json",
            "\n",
        ),
        *("42", "-", "1/2", "%", "km", "\u200b", "\u202e", "\ud800", "４", "²", "NaN", "I can't help", " "),
    ]
)
_TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=80),
    st.lists(st.one_of(_FRAGMENTS, st.text(max_size=3)), max_size=20).map("".join),
    st.recursive(st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)), st.lists).map(json.dumps),
)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=_TEXTS, data=st.data())
def test_every_text_gets_a_decided_verdict(
    judge: Callable[..., Verdict], name: str, text: str, data: st.DataObject
) -> None:
    gold, tools = data.draw(st.sampled_from(_GOLDS[name]))
    verdict = judge(get_verifier(name), gold, text, tools=tools)
    assert verdict.outcome is not Outcome.UNDECIDED, verdict.reason
    assert verdict.score == (1.0 if verdict.outcome is Outcome.PASS else 0.0)
    assert rule_of(verdict.ending).outcome in (None, verdict.outcome)
    assert all(0.0 <= value <= 1.0 for value in verdict.components.values())
    assert (verdict.outcome is Outcome.PASS) <= all(v == 1.0 for v in verdict.components.values())
    assert loads(Verdict, dumps(verdict)) == verdict
    dumps(verdict).encode("utf-8")
    if is_null_reply(text):
        assert verdict.outcome is Outcome.FAIL


_SECRET = "zqsecretzq"


@pytest.mark.parametrize(
    ("name", "gold"),
    [
        ("exact", _SECRET),
        ("numeric", {"value": 1, "unit": _SECRET}),
        ("json_schema", {"schema": {"type": "object"}, "value": {_SECRET: _SECRET}}),
        ("structured_extraction", {"value": {"city": _SECRET}}),
        ("tool_call", {"call": {"name": "f", "arguments": {"x": [_SECRET]}}}),
        ("bfcl", {"call": {"name": _SECRET, "arguments": {"x": [_SECRET]}}}),
    ],
)
@pytest.mark.parametrize("reply", ["wrong", '{"city": 1}', '{"name": "f", "arguments": {"x": "y"}}', "null", "1"])
def test_a_verdict_never_quotes_the_gold(judge: Callable[..., Verdict], name: str, gold: object, reply: str) -> None:
    verdict = judge(get_verifier(name), gold, reply)
    assert verdict.outcome is Outcome.FAIL
    assert _SECRET not in dumps(verdict)


@given(st.text(st.characters(codec=None), max_size=100))
def test_folding_is_stable_and_leaves_ascii_alone(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    if text.isascii():
        assert fold(text) == text


@given(st.text(st.characters(codec=None), max_size=300), st.integers(1, 50))
def test_a_quotation_can_be_stored_and_stays_short(text: str, limit: int) -> None:
    shown(text, limit).encode("utf-8")
    assert len(shown(text, limit)) <= 10 * limit + 30  # an escaped surrogate takes six characters


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_strict_json_round_trips(value: object) -> None:
    text = json.dumps(value)
    if _has_equal_keys(value):
        with pytest.raises(JsonRejected, match="twice"):
            parse_strict_json(text)
    else:
        assert json_equal(parse_strict_json(text), value)


def _has_equal_keys(value: object) -> bool:
    """Whether an object holds two keys that are one in NFC."""
    if isinstance(value, dict):
        return len({nfc(key) for key in value}) < len(value) or any(map(_has_equal_keys, value.values()))
    return isinstance(value, list) and any(map(_has_equal_keys, value))


@given(_JSON, _JSON)
def test_json_equality_is_symmetric_and_agrees_with_python_up_to_bool_and_nfc(left: object, right: object) -> None:
    assert json_equal(left, right) == json_equal(right, left)
    assert json_equal(left, left)
    if json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True):
        assert json_equal(left, right)


@given(st.fractions(max_denominator=10**6))
def test_numbers_read_as_written(value: object) -> None:
    text = str(value)
    assert parse_number(text, fractions=True) == value
    if "/" in text:
        assert parse_number(text) is None


@given(st.integers(-(10**30), 10**30))
def test_thousands_and_per_cent(value: int) -> None:
    assert parse_number(f"{value:,}") == value
    assert parse_number(f"{value}%") * 100 == value  # type: ignore[operator]


@given(st.text(max_size=60))
def test_a_slot_comes_from_the_reply(text: str) -> None:
    try:
        slot = committed_slot(text)
    except SlotRejected:
        return
    assert slot.strip() == slot
    assert slot in fold(text)
