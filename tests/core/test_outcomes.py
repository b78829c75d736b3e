from __future__ import annotations

from burnish.core.outcomes import OUTCOME_TABLE, Ending, Outcome, rule_of


def test_every_ending_has_a_row_with_a_meaning() -> None:
    assert set(OUTCOME_TABLE) == set(Ending)
    for ending in Ending:
        assert len(rule_of(ending).meaning) > 10, ending


def test_a_fault_is_never_a_zero() -> None:
    for ending, rule in OUTCOME_TABLE.items():
        if rule.is_fault or rule.outcome is Outcome.UNDECIDED:
            assert rule.is_fault, ending
            assert rule.outcome is Outcome.UNDECIDED, ending
            assert not rule.in_reward, ending
            assert not rule.in_denominator, ending


def test_what_enters_the_reward_enters_the_denominator() -> None:
    for ending, rule in OUTCOME_TABLE.items():
        assert rule.in_reward == rule.in_denominator, ending
        assert rule.in_reward == (not rule.is_fault), ending


def test_only_faults_are_retried_and_what_looks_like_an_exploit_too() -> None:
    for ending, rule in OUTCOME_TABLE.items():
        assert not (rule.retry and not rule.is_fault), ending
    assert rule_of(Ending.VERIFIER_PROVOKED).retry  # a service that failed once looks like it
    assert [ending for ending, rule in OUTCOME_TABLE.items() if rule.exploit] == [Ending.VERIFIER_PROVOKED]


def test_no_ending_forces_a_pass_and_the_verifier_decides_two() -> None:
    assert all(rule.outcome is not Outcome.PASS for rule in OUTCOME_TABLE.values())
    assert {e for e, rule in OUTCOME_TABLE.items() if rule.outcome is None} == {
        Ending.VERIFIED,
        Ending.TRUNCATED,
    }


def test_replies_that_were_never_whole_leave_the_length_statistics() -> None:
    assert {e for e, rule in OUTCOME_TABLE.items() if not rule.in_lengths} == {
        Ending.ENGINE_ERROR,
        Ending.ABORTED,
    }


def test_whose_fault_wall_time_is() -> None:
    assert rule_of(Ending.WALL_TIME_MACHINE).retry
    assert rule_of(Ending.WALL_TIME_MACHINE).outcome is Outcome.UNDECIDED
    assert rule_of(Ending.WALL_TIME_OWN).outcome is Outcome.FAIL
    assert rule_of(Ending.WALL_TIME_REPEATED).outcome is Outcome.FAIL
