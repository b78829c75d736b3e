"""Which prompts RL draws: a function of counters, the domains in turn, none of them left out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from burnish.train.grpo import redraw_prompts, training_prompts
from toy_domain import Toy


class Other(Toy):
    """The same under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


DOMAINS = [Other(name) for name in ("a", "b", "c")]


@given(seed=st.integers(0, 9), step=st.integers(0, 99), count=st.integers(1, 12))
def test_fewer_are_a_beginning_of_more_and_domains_take_turns(seed: int, step: int, count: int) -> None:
    few, more = (training_prompts(DOMAINS, seed, n, "grpo", step, 0) for n in (count, count + 5))
    assert [e.task.id for e in few] == [e.task.id for e in more[:count]]
    shares = Counter(e.task.domain for e in few)
    assert max(shares.values()) - min(shares[d.name] for d in DOMAINS) <= 1


def test_no_domain_is_left_out_where_few_prompts_are_wanted() -> None:
    drawn = Counter(e.task.domain for step in range(60) for e in training_prompts(DOMAINS, 1, 1, "grpo", step, 0))
    assert min(drawn[domain.name] for domain in DOMAINS) >= 10


def test_a_stored_step_is_drawn_again_by_its_ids() -> None:
    wanted = training_prompts(DOMAINS, 3, 4, "grpo", 7, 0) + training_prompts(DOMAINS, 3, 2, "grpo", 7, 1)
    found = redraw_prompts(DOMAINS, 3, "grpo", 7, {e.task.id for e in wanted}, 8)
    assert {e.task.id for e in found} == {e.task.id for e in wanted}
