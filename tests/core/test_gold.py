from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.codec import dumps
from burnish.core.errors import DataError
from burnish.core.gold import Gold

SECRET = "the-answer-is-forty-two"
GOLD = Gold.seal({"answer": SECRET, "tests": [1, 2]})


def test_nothing_that_prints_shows_it() -> None:
    for shown in (repr(GOLD), str(GOLD), f"{GOLD}", f"{GOLD!r:>200}", repr([GOLD]), repr({"gold": GOLD})):
        assert SECRET not in shown
    assert repr(GOLD) == f"<sealed gold {GOLD.digest[:12]}>"


def test_it_does_not_iterate_encode_or_gain_attributes() -> None:
    for leak in (list, dict, tuple, json.dumps, iter, vars, len, bytes):
        with pytest.raises(TypeError):
            leak(GOLD)  # type: ignore[operator]
    with pytest.raises(AttributeError):
        GOLD.answer = SECRET  # type: ignore[attr-defined]


def test_the_codec_cannot_write_it() -> None:
    @dataclass
    class Careless:
        gold: Gold

    with pytest.raises(TypeError):
        dumps(Careless(GOLD))


def test_a_traceback_of_an_error_about_it_does_not_show_it() -> None:
    with pytest.raises(ValueError, match="sealed gold") as caught:
        raise ValueError(f"cannot judge {GOLD}")
    assert SECRET not in str(caught.value)


def test_it_travels_to_verifier_workers() -> None:
    for other in (pickle.loads(pickle.dumps(GOLD)), copy.deepcopy(GOLD)):
        assert other == GOLD
        assert hash(other) == hash(GOLD)


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4))
def test_equal_payloads_are_equal_whatever_their_order(payload: dict[str, object]) -> None:
    shuffled = dict(reversed(payload.items()))
    assert Gold.seal(payload) == Gold.seal(shuffled)
    assert Gold.seal(payload) != Gold.seal([payload])
    assert Gold.seal(payload) != payload


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), {1, 2}, object(), b"bytes", {"a": 1j}])
def test_only_plain_json_is_sealed(payload: object) -> None:
    with pytest.raises(DataError, match="is not plain JSON"):
        Gold.seal(payload)
