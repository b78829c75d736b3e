"""Tool calls: the three states, native calls, and the leaderboard's public answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.outcomes import Ending, Outcome
from burnish.core.types import (
    Artifacts,
    Message,
    ParseState,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolSpec,
    Turn,
    Verdict,
)
from burnish.verify.base import Reply
from burnish.verify.bfcl import Bfcl, bfcl_equal
from burnish.verify.replies import bare_task, reply_trajectory
from burnish.verify.tool_call import Call, CallRejected, ToolCall, read_call

_TOOL = ToolSpec("f", "", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
_GOLD = {"call": {"name": "f", "arguments": {"n": [1]}}}


def _native(*parts: Any, gold: Any = _GOLD, turns: tuple[Turn, ...] = ()) -> Verdict:
    task = bare_task("tool_call", tools=(_TOOL,))
    trajectory = replace(reply_trajectory(task, ""), reply=Message(Role.ASSISTANT, parts), turns=turns)
    return asyncio.run(ToolCall().verify(task, Gold.seal(gold), trajectory, Artifacts()))


def test_native_calls() -> None:
    call = ToolCallPart("f", {"n": 1})
    assert _native(call).outcome is Outcome.PASS
    assert _native(ReasoningPart("f fits"), call).outcome is Outcome.PASS
    assert _native(ToolCallPart("f", {"n": 2})).outcome is Outcome.FAIL
    assert _native(call, call).ending is Ending.UNPARSEABLE
    assert _native(TextPart("calling"), call).ending is Ending.UNPARSEABLE
    assert _native(ToolCallPart("f", {"n": float("nan")})).ending is Ending.UNPARSEABLE
    assert _native(ReasoningPart('{"name": "f", "arguments": {"n": 1}}')).outcome is Outcome.FAIL
    assert _native(call, gold={"call": None}).outcome is Outcome.FAIL


def test_a_call_that_the_template_could_not_parse_is_no_refusal() -> None:
    turn = Turn(0, 0, Role.ASSISTANT, True, ParseState.UNPARSEABLE)
    verdict = _native(TextPart("null"), gold={"call": None}, turns=(turn,))
    assert (verdict.outcome, verdict.ending) == (Outcome.FAIL, Ending.UNPARSEABLE)
    assert verdict.evidence["parse_state"] == "unparseable"


def test_three_states() -> None:
    assert read_call(Reply('{"name": "f", "arguments": {}}')) == Call("f", {})
    assert read_call(Reply("null")) is None
    assert read_call(Reply('{"arguments": {}, "name": "none"}')) is None
    for text in (
        "none",
        "{}",
        "[]",
        '"none"',
        "false",
        '{"name": null, "arguments": {}}',
        '{"name": "f"}',
        "f()",
    ):
        with pytest.raises(CallRejected):
            read_call(Reply(text))


@pytest.mark.parametrize(
    ("gold", "tools"),
    [
        ({"call": {"name": "g", "arguments": {}}}, (_TOOL,)),
        ({"call": {"name": "f", "arguments": {}}}, (_TOOL,)),
        ({"call": {"name": "f", "arguments": {"n": [1], "x": [1]}}}, (_TOOL,)),
        (
            {"call": {"name": "f", "arguments": {"n": [1]}}},
            (ToolSpec("f", "", {"properties": {"n": {"type": "?"}}}),),
        ),
    ],
)
def test_gold_that_does_not_fit_its_tool_is_the_tasks_fault(
    judge: Callable[..., Verdict], gold: Any, tools: tuple[ToolSpec, ...]
) -> None:
    for reply in ('{"name": "f", "arguments": {"n": 1}}', "prose", "null"):
        verdict = judge(ToolCall(), gold, reply, tools=tools)
        assert (verdict.outcome, verdict.ending) == (Outcome.UNDECIDED, Ending.VERIFIER_ERROR)


@pytest.mark.parametrize(
    "gold",
    [
        {},
        {"call": {"name": "none", "arguments": {}}},
        {"call": {"name": "f", "arguments": {"n": 1}}},
        {"call": {"name": "f", "arguments": {"n": []}}},
        {"call": None, "optional": [], "extra": 1},
        {"call": {"name": "f", "arguments": {}}, "optional": ["n"]},
    ],
)
def test_gold_at_fault(gold: Any) -> None:
    with pytest.raises(DataError):
        ToolCall().read_gold(gold)


def test_share_of_arguments_by_hand(judge: Callable[..., Verdict]) -> None:
    gold = {"call": {"name": "f", "arguments": {"a": [1], "b": [2], "c": [3, ""]}}}
    verdict = judge(ToolCall(), gold, '{"name": "f", "arguments": {"a": 1, "b": 9, "x": 0}}')
    assert verdict.components == pytest.approx({"parsed": 1, "name": 1, "arguments": 1 / 3})
    assert verdict.score == 0.0
    assert verdict.evidence["wrong"] == {"b": "has the wrong value", "x": "not asked for"}


# --- the leaderboard's public answers ------------------------------------------------------------------


@cache
def _rows(folder: Path) -> list[tuple[str, ToolSpec, dict[str, list[Any]]]]:
    def lines(name: str) -> list[Any]:
        return [json.loads(line) for line in (folder / "bfcl" / name).read_text("utf-8").splitlines() if line.strip()]

    answers = {row["id"]: row["ground_truth"][0] for row in lines("possible_answer/simple_python.json")}
    rows = []
    for row in lines("simple_python.json"):
        function = row["function"][0]
        tool = ToolSpec(function["name"], function["description"], function["parameters"])
        ((name, accepted),) = answers[row["id"]].items()
        assert name == tool.name
        rows.append((row["id"], tool, accepted))
    assert len(rows) == 400
    return rows


def _first(accepted: list[Any]) -> Any:
    """The first choice as a literal: an accepted object lists values for each key."""

    def literal(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: choices[0] for key, choices in value.items() if choices[0] != ""}
        return [literal(item) for item in value] if isinstance(value, list) else value

    return literal(accepted[0])


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 1.5
    if isinstance(value, str):
        return value + " zq"
    if isinstance(value, list):
        return [*value, value[-1]] if value else [1]
    return {**value, "zq": 1}


def _perturbed(name: str, arguments: dict[str, Any], accepted: dict[str, list[Any]]) -> Iterator[tuple[str, Any, Any]]:
    yield "another name", name + "_2", arguments
    yield "an invented argument", name, {**arguments, "zq_extra": 1}
    for parameter, value in arguments.items():
        if "" not in accepted[parameter]:
            yield f"{parameter} missing", name, {k: v for k, v in arguments.items() if k != parameter}
        changed = _changed(value)
        if not any(bfcl_equal(changed, choice) for choice in accepted[parameter]):
            yield f"{parameter} changed", name, {**arguments, parameter: changed}


def test_every_first_choice_passes_and_every_perturbation_fails(
    judge: Callable[..., Verdict], shared_data: Path
) -> None:
    wrong, num_perturbed = [], 0
    for row_id, tool, accepted in _rows(shared_data):
        gold = {"call": {"name": tool.name, "arguments": accepted}}
        arguments = {p: _first(choices) for p, choices in accepted.items() if choices[0] != ""}
        right = judge(Bfcl(), gold, json.dumps({"name": tool.name, "arguments": arguments}), tools=(tool,))
        if right.outcome is not Outcome.PASS:
            wrong.append((row_id, right.reason, right.evidence))
        for why, name, bad in _perturbed(tool.name, arguments, accepted):
            num_perturbed += 1
            verdict = judge(Bfcl(), gold, json.dumps({"name": name, "arguments": bad}), tools=(tool,))
            if verdict.outcome is not Outcome.FAIL:
                wrong.append((row_id, why, verdict.reason))
    assert not wrong
    assert num_perturbed > 1500


def test_irrelevance_wants_the_declared_form(judge: Callable[..., Verdict], shared_data: Path) -> None:
    for _, tool, accepted in _rows(shared_data)[:20]:
        arguments = {p: _first(choices) for p, choices in accepted.items() if choices[0] != ""}
        call = json.dumps({"name": tool.name, "arguments": arguments})
        for reply, outcome in (("null", Outcome.PASS), (call, Outcome.FAIL), (call[:-3], Outcome.FAIL)):
            assert judge(Bfcl(), {"call": None}, reply, tools=(tool,)).outcome is outcome
