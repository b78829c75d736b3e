from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.codec import dumps, loads
from burnish.core.errors import RunError
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.seeds import generator
from burnish.core.types import Decision, Split
from burnish.evals.gate import GateConfig, GateDecision, compare, decide
from burnish.evals.guards import DEFAULT_GUARDS, GuardResult, guard_result
from burnish.evals.results import SuiteResult, TaskRecord

CONFIG = GateConfig(resamples=1000)
SCORE = {Outcome.PASS: 1.0, Outcome.FAIL: 0.0, Outcome.UNDECIDED: None}


def suite(rate: float, name: str, *, prompt: str = "plain", tasks: int = 400, clusters: int = 32) -> SuiteResult:
    """A result in two domains; the better of two rates passes wherever the worse one does."""
    luck = generator(1, "test.gate.luck").random(tasks)
    records = tuple(record(i, Outcome.PASS if luck[i] < rate else Outcome.FAIL, clusters) for i in range(tasks))
    return SuiteResult("s", Split.GATE, name, prompt, "greedy", records, 10 * tasks, 1.0)


def record(i: int, outcome: Outcome, clusters: int) -> TaskRecord:
    return TaskRecord(
        f"{i:05d}",
        "ab"[i % 2],
        f"t{(i // 2) % clusters}",
        (outcome,),
        (SCORE[outcome],),
        (10,),
        (StopReason.STOP_TOKEN,),
        "exact",
        "1",
    )


def guards(**changes: float) -> list[GuardResult]:
    """The default guards, each item changed by the amount given for its name."""
    found = []
    for spec in DEFAULT_GUARDS:
        items = [f"{spec.name}{i}" for i in range(spec.num_items)]
        found.append(
            guard_result(spec, items, [1.0] * spec.num_items, [1.0 + changes.get(spec.name, 0.0)] * spec.num_items)
        )
    return found


PARENT, FEW = suite(0.5, "parent"), suite(0.4, "base", prompt="few_shot:3")
GOOD = suite(0.6, "candidate")


def test_better_than_both_with_guards_held_is_promoted() -> None:
    found = decide(GOOD, PARENT, FEW, guards(), CONFIG, 1)
    assert found.decision is Decision.PROMOTE
    assert found.promoted
    against_parent = found.comparisons[0]
    assert against_parent.losses == 0
    assert against_parent.difference == pytest.approx(against_parent.wins / 400)
    assert against_parent.low is not None
    assert against_parent.low > 0
    assert found.explain().startswith("PROMOTE: better than the parent")
    assert found.explain().count("\n") == 7
    assert loads(GateDecision, dumps(found)) == found


@pytest.mark.parametrize(
    ("candidate", "parent", "few", "reason"),
    [
        (suite(0.4, "c"), PARENT, suite(0.3, "b", prompt="few_shot:1"), "worse than the parent"),
        (GOOD, PARENT, suite(0.7, "b", prompt="few_shot:1"), "worse than the few-shot base"),
    ],
)
def test_surely_worse_than_either_is_rejected(
    candidate: SuiteResult, parent: SuiteResult, few: SuiteResult, reason: str
) -> None:
    found = decide(candidate, parent, few, guards(), CONFIG, 1)
    assert found.decision is Decision.REJECT
    assert reason in found.reasons


@pytest.mark.parametrize("missing", ["candidate", "parent", "few_shot_base"])
def test_a_missing_suite_never_promotes(missing: str) -> None:
    given_ = {"candidate": GOOD, "parent": PARENT, "few_shot_base": FEW, missing: None}
    found = decide(**given_, guards=guards(), config=CONFIG, seed=1)
    assert found.decision is Decision.INCONCLUSIVE
    assert "was not evaluated" in found.explain()
    assert loads(GateDecision, dumps(found)) == found


@given(st.integers(0, 4), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_a_missing_guard_never_promotes(left_out: int, new: float, old: float, base: float) -> None:
    kept = [guard for i, guard in enumerate(guards()) if i != left_out]
    found = decide(suite(new, "c"), suite(old, "p"), suite(base, "b", prompt="few_shot:0"), kept, CONFIG, 1)
    assert found.decision is not Decision.PROMOTE
    if found.decision is Decision.INCONCLUSIVE:
        assert f"guard {DEFAULT_GUARDS[left_out].name} is missing" in found.reasons


@pytest.mark.parametrize(
    ("harm", "decision"),
    [
        ({"refusal_harmful": -0.9}, Decision.REJECT),
        ({"held_out_text_nll": 0.5}, Decision.REJECT),
        ({"held_out_text_nll": -0.5}, Decision.PROMOTE),
        ({"response_length": 1.0}, Decision.REJECT),
        ({"response_length": -1.0}, Decision.REJECT),
    ],
)
def test_a_gain_paid_for_elsewhere_is_not_promoted(harm: dict[str, float], decision: Decision) -> None:
    found = decide(GOOD, PARENT, FEW, guards(**harm), CONFIG, 1)
    assert found.decision is decision
    if decision is not Decision.PROMOTE:
        assert any(next(iter(harm)) in reason for reason in found.reasons)


def test_a_guard_that_may_or_may_not_hold_is_inconclusive() -> None:
    spec = DEFAULT_GUARDS[1]
    lost = round(0.9 * spec.margin * spec.num_items)
    new = [0.0] * lost + [1.0] * (spec.num_items - lost)
    unclear = guard_result(spec, [str(i) for i in range(spec.num_items)], [1.0] * spec.num_items, new)
    found = decide(GOOD, PARENT, FEW, [*(g for g in guards() if g.name != spec.name), unclear], CONFIG, 1)
    assert found.decision is Decision.INCONCLUSIVE
    assert found.reasons == ("guard instruction_format is not shown to hold",)


def test_a_guard_of_ones_own_counts_though_nothing_requires_it() -> None:
    spec = replace(DEFAULT_GUARDS[1], name="house_style", margin=0.05)
    own = guard_result(spec, [str(i) for i in range(40)], [1.0] * 40, [0.0] * 40)
    assert decide(GOOD, PARENT, FEW, [*guards(), own], CONFIG, 1).reasons == ("guard house_style is broken",)
    few = guard_result(spec, ["a"], [1.0], [1.0])
    assert decide(GOOD, PARENT, FEW, [*guards(), few], CONFIG, 1).decision is Decision.INCONCLUSIVE


def with_undecided(result: SuiteResult, extra: int) -> SuiteResult:
    more = tuple(record(100_000 + i, Outcome.UNDECIDED, 32) for i in range(extra))
    return replace(result, records=result.records + more)


def test_undecided_within_the_cap_change_no_estimate_and_beyond_it_never_promote() -> None:
    plain = decide(GOOD, PARENT, FEW, guards(), CONFIG, 1)
    within = [with_undecided(r, 8) for r in (GOOD, PARENT, FEW)]
    found = decide(*within, guards(), CONFIG, 1)
    assert found.decision is Decision.PROMOTE
    assert [replace(c, undecided=0, undecided_candidate=0, undecided_reference=0) for c in found.comparisons] == [
        *plain.comparisons
    ]
    assert [c.undecided for c in found.comparisons] == [8, 8]
    beyond = [with_undecided(r, 9) for r in (GOOD, PARENT, FEW)]
    found = decide(*beyond, guards(), CONFIG, 1)
    assert found.decision is Decision.INCONCLUSIVE
    assert "9 of 409 pairs are undecided" in found.explain()


@given(st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_order_of_tasks_and_guards_has_no_effect(random: object) -> None:
    def shuffled(result: SuiteResult) -> SuiteResult:
        records = list(result.records)
        random.shuffle(records)  # type: ignore[attr-defined]
        return replace(result, records=tuple(records))

    some = guards(refusal_harmless=-0.1)
    mixed = list(some)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    first = decide(GOOD, PARENT, FEW, some, CONFIG, 3)
    assert decide(shuffled(GOOD), shuffled(PARENT), shuffled(FEW), mixed, CONFIG, 3) == first


def test_swapping_candidate_and_parent_negates_the_interval() -> None:
    there, back = compare(GOOD, PARENT, "parent", CONFIG, 1), compare(PARENT, GOOD, "parent", CONFIG, 1)
    assert there.low is not None
    assert there.high is not None
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert (back.finding, there.finding) == ("worse", "better")
    assert (back.wins, back.losses, back.mcnemar_p) == (there.losses, there.wins, there.mcnemar_p)


def test_the_same_model_is_never_promoted() -> None:
    found = decide(replace(PARENT, model_digest="copy"), PARENT, FEW, guards(), CONFIG, 1)
    assert found.decision is Decision.INCONCLUSIVE
    assert (found.comparisons[0].low, found.comparisons[0].mcnemar_p) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sampling": "temperature 1"}, "decoding differs"),
        ({"prompt": "few_shot:2"}, "prompts differ"),
    ],
)
def test_unlike_evaluations_are_unusable(changes: dict[str, str], what: str) -> None:
    found = decide(GOOD, replace(PARENT, **changes), FEW, guards(), CONFIG, 1)  # type: ignore[arg-type]
    assert found.decision is Decision.INCONCLUSIVE
    assert what in found.explain()


def test_few_clusters_or_a_set_used_for_choosing_decide_nothing() -> None:
    few = [suite(r, n, prompt=p, clusters=29) for r, n, p in ((0.6, "c", "plain"), (0.5, "p", "plain"))]
    found = decide(few[0], few[1], None, guards(), CONFIG, 1)
    assert found.decision is Decision.INCONCLUSIVE
    assert "a has 29 clusters" in found.explain()
    chosen = [replace(r, split=Split.DEVELOPMENT) for r in (GOOD, PARENT, FEW)]
    assert decide(*chosen, guards(), CONFIG, 1).decision is Decision.INCONCLUSIVE


def test_scores_of_different_verifier_versions_are_refused() -> None:
    newer = replace(PARENT, records=tuple(replace(r, version="2") for r in PARENT.records))
    with pytest.raises(RunError, match="was judged by"):
        decide(GOOD, newer, FEW, guards(), CONFIG, 1)
