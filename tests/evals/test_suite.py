"""Which replies of an evaluation are kept to be looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from burnish.evals.suite import _some_of_each


def reply(domain: str, name: str, *flags: str) -> Any:
    return SimpleNamespace(domain=domain, name=name, main=SimpleNamespace(flags=flags))


def test_flagged_replies_are_kept_first_and_the_rest_in_order() -> None:
    groups = [[reply("a", "1")], [reply("b", "1")], [reply("a", "2")], [reply("a", "3", "provoked")], [reply("b", "2")]]
    kept = [(t.domain, t.name) for t in _some_of_each(groups, 2)]
    assert kept == [("a", "3"), ("a", "1"), ("b", "1"), ("b", "2")]
    assert _some_of_each(groups, 0) == ()
