from __future__ import annotations

import pytest

from burnish.core.errors import DataError
from burnish.core.types import Message, Split, Task, ToolSpec
from burnish.data import Conversation, assert_disjoint, find_contradictions, find_duplicates


def row(where: str, prompt: str, answer: str) -> Conversation:
    return Conversation((Message.of("user", prompt), Message.of("assistant", answer)), where)


def task(prompt: str, split: Split, *, domain: str = "d") -> Task:
    return Task.create(
        (Message.of("user", prompt),),
        env="single_turn",
        verifier="exact",
        domain=domain,
        split=split,
        cluster="c",
        source=f"{split}.jsonl:1",
        licence="CC0-1.0",
    )


def test_duplicates_and_contradictions_see_through_case_space_and_width() -> None:
    rows = [
        row("f:1", "What is 2+2?", "4"),
        row("f:2", "what  is\t2+2?", "4"),
        row("f:3", "What is 2+2?", "5"),
        row("f:4", "Another", "4"),
    ]
    assert [(a.where, b.where) for a, b in find_duplicates(rows)] == [("f:1", "f:2")]
    assert [(a.where, b.where) for a, b in find_contradictions(rows)] == [("f:1", "f:3")]


def test_different_tools_are_different_prompts() -> None:
    plain = row("f:1", "q", "a")
    tooled = Conversation(row("f:2", "q", "b").messages, "f:2", (ToolSpec("t", "d", {}),))
    assert find_contradictions([plain, tooled]) == []


def test_disjoint_sets_pass_and_a_shared_task_is_shown() -> None:
    train, final = task("one", Split.TRAIN), task("two", Split.FINAL)
    assert_disjoint({"train": [train, train], "final": [final]})
    with pytest.raises(DataError, match="stands in 'train' and in 'final': 'ONE '") as caught:
        assert_disjoint({"train": [train], "final": [final, task("ONE ", Split.FINAL, domain="other")]})
    assert train.id in caught.value.where
