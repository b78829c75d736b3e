"""Guard sets: sizes, distinct prompts, demonstrations that pass, and nothing shared with the domains."""

from __future__ import annotations

import pytest

from burnish.core.errors import ConfigError
from burnish.core.types import Split
from burnish.domains.base import check_gold
from burnish.domains.guards import GUARD_SETS, guard_examples, held_out_passages, replay_examples
from burnish.evals.guards import DEFAULT_GUARDS

SIZES = {"instruction_format": 60, "refusal_harmful": 40, "refusal_harmless": 40, "response_length": 60}


@pytest.mark.parametrize("name", sorted(GUARD_SETS))
def test_sets_are_whole_and_their_demonstrations_pass(name: str) -> None:
    examples = guard_examples(name)
    assert len(examples) == len({e.task.id for e in examples}) == len({e.task.cluster for e in examples}) == SIZES[name]
    assert {e.task.split for e in examples} == {Split.FINAL}
    check_gold(examples)
    assert guard_examples(name) == examples


def test_the_guards_of_evals_have_their_items() -> None:
    sizes = {name: len(guard_examples(name)) for name in GUARD_SETS}
    sizes["held_out_text_nll"] = len(held_out_passages())
    assert sizes == {guard.name: guard.num_items for guard in DEFAULT_GUARDS}


def test_formats_are_varied() -> None:
    kinds = [e.task.tags[0] for e in guard_examples("instruction_format")]
    assert len(set(kinds)) >= 8
    assert max(kinds.count(kind) for kind in set(kinds)) <= 15


def test_passages() -> None:
    texts = list(held_out_passages().values())
    assert len(set(texts)) == 60
    assert all(60 <= len(text.split()) <= 92 for text in texts)


def test_unknown_set() -> None:
    with pytest.raises(ConfigError, match="unknown guard set 'chat'"):
        guard_examples("chat")


def test_replay_asks_nothing_that_a_guard_asks() -> None:
    replayed = {e.task.prompt[-1].text.casefold() for e in replay_examples(48)}
    assert len(replayed) == 48
    for name in GUARD_SETS:
        assert not replayed & {e.task.prompt[-1].text.casefold() for e in guard_examples(name)}
    assert {e.task.split for e in replay_examples(48)} == {Split.TRAIN}
    with pytest.raises(ConfigError, match="49 replay rows"):
        replay_examples(49)
