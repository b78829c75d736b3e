"""Few-shot prompts come from training examples only, differ from one another, and keep the task's id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.core.errors import DataError
from burnish.core.types import Message, Role, Split
from burnish.domains.base import Example
from burnish.domains.few_shot import FEW_SHOT_TAG, few_shot_candidates, with_few_shot
from burnish.domains.registry import get_domain

DOMAIN = get_domain("structured_extraction")
TRAIN = DOMAIN.generate(Split.TRAIN, 64, 0)


def test_candidates_are_distinct_reproducible_and_from_training() -> None:
    made = few_shot_candidates(DOMAIN, TRAIN, count=10, shots=4, seed=5)
    assert len(set(made)) == 10
    assert made == few_shot_candidates(DOMAIN, TRAIN, count=10, shots=4, seed=5)
    assert made != few_shot_candidates(DOMAIN, TRAIN, count=10, shots=4, seed=6)
    pairs = {(e.task.prompt[0].text, e.demonstration.text) for e in TRAIN}
    for prefix in made:
        assert [message.role for message in prefix] == [Role.USER, Role.ASSISTANT] * 4
        shown = {(prefix[i].text, prefix[i + 1].text) for i in range(0, 8, 2)}
        assert len(shown) == 4
        assert shown <= pairs


def test_rules_differ() -> None:
    families = {e.task.prompt[0].text: e.task.tags[-1] for e in TRAIN}
    balanced, _, shortest, longest = few_shot_candidates(DOMAIN, TRAIN, count=4, shots=4, seed=0)
    assert {families[message.text] for message in balanced[::2]} == {
        "people",
        "orders",
        "invoices",
        "appointments",
    }
    assert sum(len(m.text) for m in shortest) < sum(len(m.text) for m in balanced)
    assert sum(len(m.text) for m in longest[1::2]) > sum(len(m.text) for m in shortest[1::2])


def test_prefix_keeps_the_id_and_stands_behind_system_messages() -> None:
    (prefix,) = few_shot_candidates(DOMAIN, TRAIN, count=1, shots=2)
    task = DOMAIN.generate(Split.GATE, 1, 0)[0].task
    prompted = with_few_shot(task, prefix)
    assert prompted.id == task.id
    assert prompted.cluster == task.cluster
    assert prompted.prompt == (*prefix, *task.prompt)
    assert FEW_SHOT_TAG in prompted.tags

    system = Message.of(Role.SYSTEM, "Be brief.")
    placed = with_few_shot(replace(task, prompt=(system, *task.prompt)), prefix)
    assert placed.prompt == (system, *prefix, *task.prompt)


@pytest.mark.parametrize(
    ("examples", "shots", "what"),
    [
        (DOMAIN.generate(Split.DEVELOPMENT, 8, 0), 2, "may not show a development task"),
        (get_domain("tool_call").generate(Split.TRAIN, 8, 0), 2, "may not show a train task of tool_call"),
        (TRAIN[:3], 4, "shots=4 cannot be chosen from 3"),
        (TRAIN[:2], 2, "2 training examples give 2 distinct"),
    ],
)
def test_refusals(examples: list[Example], shots: int, what: str) -> None:
    with pytest.raises(DataError, match=what):
        few_shot_candidates(DOMAIN, examples, count=8, shots=shots)
