"""What every domain owes: exact counts, determinism, prefixes, disjoint splits, gold that passes, near misses
that fail, and prompts short enough for two cores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from burnish.core.errors import ConfigError, DataError, VerifierError
from burnish.core.gold import Gold
from burnish.core.outcomes import Outcome
from burnish.core.types import Artifacts, Message, Role, Split, Task, ToolSpec
from burnish.domains.base import Domain, Example, Origin, assert_disjoint, check_gold, split_digest
from burnish.domains.registry import domain_names, get_domain
from burnish.envs import SingleTurn, check_environment
from burnish.verify.registry import get_verifier
from burnish.verify.replies import reply_trajectory

NAMES = ("structured_extraction", "tool_call")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def sets() -> dict[str, dict[Split, list[Example]]]:
    """600 examples of every split of both domains."""
    return {name: {split: get_domain(name).generate(split, 600, 11) for split in Split} for name in NAMES}


Sets = dict[str, dict[Split, list[Example]]]


@pytest.mark.parametrize("name", NAMES)
def test_counts_ids_and_clusters(name: str, sets: Sets) -> None:
    for split, examples in sets[name].items():
        assert len(examples) == len({e.task.id for e in examples}) == 600
        assert {(e.task.split, e.task.domain, e.task.verifier) for e in examples} == {(split, name, name)}
        least = 60 if split is Split.TRAIN else 30
        assert len({e.task.cluster for e in examples[:200]}) >= least
        assert len({e.task.cluster for e in examples}) >= least


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_and_a_smaller_set_is_a_prefix(name: str, sets: Sets) -> None:
    domain = get_domain(name)
    for split in Split:
        again = domain.generate(split, 80, 11)
        assert again == sets[name][split][:80]
    other = domain.generate(Split.GATE, 80, 12)
    assert len({e.task.id for e in other} & {e.task.id for e in sets[name][Split.GATE][:80]}) < 20


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_nothing_whatever_the_seed(name: str, sets: Sets) -> None:
    assert_disjoint({str(split): examples for split, examples in sets[name].items()})
    seeds = {split: get_domain(name).generate(split, 150, seed) for seed, split in enumerate(Split)}
    assert_disjoint({str(split): [*examples, *sets[name][split]] for split, examples in seeds.items()})
    assert all(e.origin.templates and e.origin.schemas for e in sets[name][Split.FINAL])


@pytest.mark.parametrize("name", NAMES)
def test_every_demonstration_passes(name: str, sets: Sets) -> None:
    for examples in sets[name].values():
        check_gold(examples)


def near_misses(reply: Any, random: Random) -> dict[str, Any]:
    """Wrong replies that are close to a right one (a flat object of values)."""
    key = random.choice(list(reply))
    value = reply[key]
    misses = {
        "key left out": {k: v for k, v in reply.items() if k != key},
        "key renamed": {(f"{k}_" if k == key else k): v for k, v in reply.items()},
        "key added": {**reply, "note": "ok"},
        "wrong type": {**reply, key: str(value) if not isinstance(value, str) else [value]},
    }
    if isinstance(value, bool):
        misses["wrong value"] = {**reply, key: not value}
    elif isinstance(value, str):
        misses["wrong value"] = {**reply, key: value[:-1]}
    else:
        misses["wrong value"] = {**reply, key: value + 1}
    return misses


def outcomes(example: Example, replies: dict[str, str]) -> dict[str, Outcome]:
    async def judged() -> dict[str, Outcome]:
        verifier = get_verifier(example.task.verifier)
        found = {}
        for kind, reply in replies.items():
            trajectory = reply_trajectory(example.task, reply)
            found[kind] = (await verifier.verify(example.task, example.gold, trajectory, Artifacts())).outcome
        return found

    return asyncio.run(judged())


@pytest.mark.parametrize("name", NAMES)
def test_near_misses_fail(name: str, sets: Sets) -> None:
    random = Random(4)
    for example in sets[name][Split.GATE][:120]:
        right = json.loads(example.demonstration.text)
        if name == "structured_extraction":
            wrong = near_misses(right, random)
        elif right["arguments"]:
            wrong = {k: {**right, "arguments": v} for k, v in near_misses(right["arguments"], random).items()}
            wrong["no call"] = {"name": "none", "arguments": {}}
            wrong["other tool"] = {**right, "name": f"{right['name']}s"}
        else:
            wrong = {"a call": {"name": "get_help", "arguments": {}}}
        replies = {kind: json.dumps(value) for kind, value in wrong.items()}
        replies |= {"prose": f"Sure! {example.demonstration.text}", "cut": example.demonstration.text[:-1]}
        found = outcomes(example, replies)
        assert set(found.values()) == {Outcome.FAIL}, (example.demonstration.text, found)


def test_texts_hold_the_copied_values(sets: Sets) -> None:
    """Names, goods, places and numbers of invoices can be copied from the text, letter by letter."""
    copied = 0
    for example in sets["structured_extraction"][Split.TRAIN]:
        text = example.task.prompt[0].text.partition("\nText: ")[2]
        for word in example.origin.words:
            assert word in text or word not in example.demonstration.text, (word, text)
            copied += word in text
    assert copied > 600


def test_share_of_requests_without_a_tool(sets: Sets) -> None:
    for examples in sets["tool_call"].values():
        kinds = [e.task.tags[-1] for e in examples]
        assert 0.20 <= kinds.count("no_call") / len(kinds) <= 0.25
        two_tools = sum(len(e.origin.schemas) == 2 for e in examples)
        assert 30 <= two_tools <= 150


def test_the_call_that_is_wanted_is_among_the_tools_shown(sets: Sets) -> None:
    for example in sets["tool_call"][Split.FINAL]:
        wanted = json.loads(example.demonstration.text)["name"]
        lines = example.task.prompt[0].text.partition("\nRequest:")[0].splitlines()[1:]
        shown = {json.loads(line)["name"] for line in lines}
        assert shown == set(example.origin.schemas)
        assert (wanted in shown) is (wanted != "none")
        assert (example.task.cluster.partition("/")[0] in shown) is (wanted != "none")


@pytest.mark.parametrize(
    ("name", "prompt_chars", "reply_chars"), [("structured_extraction", 330, 120), ("tool_call", 700, 130)]
)
def test_prompts_and_replies_stay_short(name: str, prompt_chars: int, reply_chars: int, sets: Sets) -> None:
    """Two cores read 500 and write 300 tokens a second; four characters are about a token."""
    for examples in sets[name].values():
        assert max(len(e.task.prompt[0].text) for e in examples) <= prompt_chars
        assert max(len(e.demonstration.text) for e in examples) <= reply_chars


@pytest.mark.parametrize("name", NAMES)
def test_the_environment_conforms_on_real_tasks(name: str, sets: Sets) -> None:
    tasks = [e.task for e in sets[name][Split.TRAIN][:3]]
    assert asyncio.run(check_environment(SingleTurn, tasks, ["{}"])) == []


@pytest.mark.parametrize("name", NAMES)
def test_golden_examples(name: str) -> None:
    """A few examples a family, for the eye; rewritten by deleting the file and running this test."""
    kinds: dict[str, list[Example]] = {}
    for example in get_domain(name).generate(Split.TRAIN, 160, 0):
        kinds.setdefault(example.task.tags[0] if name == "structured_extraction" else example.task.tags[1], [])
        kinds[example.task.tags[0 if name == "structured_extraction" else 1]].append(example)
    shown = [e for kind in sorted(kinds) for e in kinds[kind][:5]]
    text = "\n\n".join(
        f"[{e.task.id}] {e.task.cluster}\n{e.task.prompt[0].text}\n=> {e.demonstration.text}" for e in shown
    )
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(f"{text}\n", "utf-8")
        pytest.fail(f"wrote {path.name}; read it, then run again")
    assert path.read_text("utf-8") == f"{text}\n"


# --- the checks themselves ----------------------------------------------------------------------------


def example_of(prompt: str, *, split: Split = Split.TRAIN, reply: str = "4", origin: Origin | None = None) -> Example:
    task = Task.create(
        (Message.of(Role.USER, prompt),),
        env="single_turn",
        verifier="exact",
        domain="sums",
        split=split,
        cluster=f"c-{prompt}",
        source="test",
        licence="CC0-1.0",
        tools=(ToolSpec("t", "", {}),),
    )
    return Example(task, Gold.seal({"accept": ["4"]}), Message.of(Role.ASSISTANT, reply), origin or Origin())


def test_check_gold_names_the_task_that_fails() -> None:
    good, bad = example_of("2 + 2 = ?"), example_of("1 + 3 = ?", reply="5")
    check_gold([good])
    check_gold([good], {"exact": get_verifier("exact")})
    with pytest.raises(VerifierError) as caught:
        check_gold([good, bad])
    assert bad.task.id in caught.value.what
    assert bad.task.id in caught.value.where
    assert "mend" in caught.value.fix


@pytest.mark.parametrize(
    ("left", "right", "kind"),
    [
        (example_of("a"), example_of("a", split=Split.GATE), "task id"),
        (example_of("a", origin=Origin(("x",))), example_of("b", origin=Origin(("x",))), "template"),
        (example_of("a", origin=Origin((), ("s",))), example_of("b", origin=Origin((), ("s",))), "schema"),
        (
            example_of("a", origin=Origin((), (), ("W",))),
            example_of("b", origin=Origin((), (), ("w",))),
            "word",
        ),
    ],
)
def test_assert_disjoint_names_what_is_shared(left: Example, right: Example, kind: str) -> None:
    with pytest.raises(DataError, match=f"share the {kind}"):
        assert_disjoint({"train": [left], "gate": [right]})
    assert_disjoint({"train": [left, left], "gate": [example_of("z")]})


def test_split_digest_ignores_order_only() -> None:
    one, two = example_of("a"), example_of("b")
    assert split_digest([one, two]) == split_digest([two, one])
    assert split_digest([one]) != split_digest([one, two])
    regraded = Example(one.task, Gold.seal({"accept": ["5"]}), one.demonstration)
    assert split_digest([regraded]) != split_digest([one])


def test_a_split_that_runs_dry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.domains import tool_call

    tool = next(t for t in tool_call.tools_of(Split.GATE) if t.parameters[0].type in ("integer", "enum"))
    monkeypatch.setattr(tool_call, "_shown_tools", lambda *_: [tool])
    monkeypatch.setattr(tool_call, "tools_of", lambda _: (tool,))
    with pytest.raises(DataError, match="distinct tasks found, 5000 asked for"):
        tool_call.ToolCall().generate(Split.GATE, 5000, 0)


class NotADomain:
    """Has the name of a domain and nothing else."""


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("tool_cal", "unknown domain 'tool_cal'", "write 'tool_call'"),
        ("zzz", "unknown domain", "choose a known one"),
        ("burnish.domains.tool_call:Nope", "cannot be imported", "importable"),
        (f"{__name__}:NotADomain", "is not a domain", "subclass"),
    ],
)
def test_bad_names(name: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_domain(name)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_names() -> None:
    assert {"structured_extraction", "tool_call", "bfcl"} <= set(domain_names())
    assert isinstance(get_domain("burnish.domains.tool_call:ToolCall"), Domain)
