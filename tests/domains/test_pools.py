"""Content has one split, by its hash; every pool is large enough; the data files are consistent."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.types import Split
from burnish.domains.pools import pool, split_of
from burnish.domains.structured_extraction import templates
from burnish.domains.structured_extraction.families import FAMILIES
from burnish.domains.templates import dealt, filled, slots_of
from burnish.domains.tool_call.catalogue import catalogue, parse_tools, tools_of
from burnish.domains.vocabulary import word_lists, words

HELD_OUT = (Split.DEVELOPMENT, Split.GATE, Split.FINAL)


def test_pinned_assignments() -> None:
    """Golden: a change here moves content between training and evaluation sets."""
    assert split_of("word", "Paris") is split_of("word", " PARIS ") is Split.TRAIN
    assert split_of("word", "Oslo") is Split.DEVELOPMENT
    assert split_of("tool", "set_alarm") is Split.FINAL


@given(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=30))
def test_pools_partition_any_content(contents: list[str]) -> None:
    found = [content for split in Split for content in pool("word", contents, split)]
    assert Counter(found) == Counter(contents)


@pytest.mark.parametrize("name", sorted(word_lists()))
def test_every_vocabulary_has_words_in_every_split(name: str) -> None:
    assert len(word_lists()[name]) == len(set(word_lists()[name]))
    sizes = {split: len(words(name, split)) for split in Split}
    assert min(sizes[split] for split in HELD_OUT) >= 5
    assert sizes[Split.TRAIN] >= 9


def test_every_family_has_enough_templates_of_both_kinds() -> None:
    for family in FAMILIES:
        assert len(templates(family.name, Split.TRAIN)) >= 16
        for split in HELD_OUT:
            assert len(templates(family.name, split)) >= 9
    for split in Split:
        with_unit = ["{unit}" in template for template in templates("orders", split)]
        assert 0.3 <= sum(with_unit) / len(with_unit) <= 0.7


def test_every_split_has_enough_tools_of_every_type() -> None:
    assert len(tools_of(Split.TRAIN)) >= 48
    for split in Split:
        assert len(tools_of(split)) >= 24
        types = Counter(p.type for tool in tools_of(split) for p in tool.parameters)
        assert set(types) == {"string", "integer", "number", "boolean", "enum"}
        assert any(p.optional for tool in tools_of(split) for p in tool.parameters)


def test_the_catalogue_is_consistent() -> None:
    names = [tool.name for tool in catalogue()]
    assert len(names) == len(set(names))
    requests = [request.template for tool in catalogue() for request in tool.requests]
    assert len(requests) == len(set(requests))
    for tool in catalogue():
        parameters = {p.name: p for p in tool.parameters}
        assert 1 <= len(parameters) <= 4
        assert len(tool.requests) >= 3
        for request in tool.requests:
            given = {*slots_of(request.template), *(name for name, _ in request.implied)}
            assert given <= set(parameters), (tool.name, request.template)
            missing = {name for name, p in parameters.items() if not p.optional} - given
            assert not missing, (tool.name, request.template)
            assert all(parameters[name].type == "boolean" for name, _ in request.implied)
        for parameter in tool.parameters:
            listed = parameter.source in word_lists()
            made = parameter.source in ("date", "time", "person", "code", "phone", "digits")
            assert parameter.type != "string" or listed or made, (tool.name, parameter.name)


def test_a_tool_shows_as_json_schema() -> None:
    parameters = '  time string time "HH:MM"\n  ?loud boolean\n  ?mood enum a,b\n'
    text = f"wake: Wake a person.\n{parameters}  > Now {{time}}. ; loud=true"
    (tool,) = parse_tools(text, "home")
    assert tool.json_schema() == {
        "name": "wake",
        "description": "Wake a person.",
        "parameters": {
            "type": "object",
            "properties": {
                "time": {"type": "string", "description": "HH:MM"},
                "loud": {"type": "boolean"},
                "mood": {"type": "string", "enum": ["a", "b"]},
            },
            "required": ["time"],
        },
    }
    assert tool.requests[0].implied == (("loud", True),)
    with pytest.raises(ValueError, match="not a parameter"):
        list(parse_tools("x: X.\n  y strange z", "home"))


def test_filling_and_dealing() -> None:
    assert filled("{a^} and {a}", {"a": "tea"}) == "Tea and tea"
    with pytest.raises(KeyError):
        filled("{a}", {})
    rounds = [[dealt("abcd", 4 * r + i, 7, "test") for i in range(4)] for r in range(5)]
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
