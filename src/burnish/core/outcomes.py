"""The one outcome vocabulary, and the table of which statistics each ending may touch.

A fault of the infrastructure is never a zero: it leaves the reward *and* the denominator, and is counted.
FAIL is the model's fault; UNDECIDED is the fault of task, verifier, sandbox or network.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The three answers of a verifier."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


class StopReason(StrEnum):
    """Why the sampler stopped producing tokens."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    ABORTED = "aborted"
    ERROR = "error"


class Ending(StrEnum):
    """How a rollout or its verification ended; the rows of `OUTCOME_TABLE`."""

    VERIFIED = "verified"
    UNPARSEABLE = "unparseable"
    TRUNCATED = "truncated"
    OWN_CPU_LIMIT = "own_cpu_limit"
    OWN_MEMORY_LIMIT = "own_memory_limit"
    OWN_OUTPUT_LIMIT = "own_output_limit"
    WALL_TIME_OWN = "wall_time_own"
    WALL_TIME_MACHINE = "wall_time_machine"
    WALL_TIME_REPEATED = "wall_time_repeated"
    VERIFIER_ERROR = "verifier_error"
    VERIFIER_PROVOKED = "verifier_provoked"
    ENVIRONMENT_ERROR = "environment_error"
    SANDBOX_ERROR = "sandbox_error"
    NETWORK_ERROR = "network_error"
    ENGINE_ERROR = "engine_error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """What one ending means.

    `outcome`: forced outcome, or None where the verifier decides. `in_reward`: enters reward and group
    mean. `in_denominator`: counts among the trials of a pass rate. `in_lengths`: enters length statistics.
    `is_fault`: counts towards the fault budget. `retry`: tried once more before it counts. `exploit`: the
    text provoked it, so it is flagged for review.
    """

    outcome: Outcome | None
    in_reward: bool
    in_denominator: bool
    in_lengths: bool
    is_fault: bool
    retry: bool
    exploit: bool = False
    meaning: str = ""


def _verifier_decides(meaning: str) -> OutcomeRule:
    return OutcomeRule(None, True, True, True, False, False, meaning=meaning)


def _models_fault(meaning: str, *, exploit: bool = False) -> OutcomeRule:
    return OutcomeRule(Outcome.FAIL, True, True, True, False, False, exploit, meaning)


def _our_fault(meaning: str, *, retry: bool = True, exploit: bool = False, lengths: bool = True) -> OutcomeRule:
    return OutcomeRule(Outcome.UNDECIDED, False, False, lengths, True, retry, exploit, meaning)


OUTCOME_TABLE: dict[Ending, OutcomeRule] = {
    Ending.VERIFIED: _verifier_decides("the verifier gave PASS or FAIL"),
    Ending.TRUNCATED: _verifier_decides("the token limit cut the reply; the verifier reads what is there"),
    Ending.UNPARSEABLE: _models_fault("nothing in the reply could be parsed as an answer"),
    Ending.OWN_CPU_LIMIT: _models_fault("the reply's own program exceeded its CPU time"),
    Ending.OWN_MEMORY_LIMIT: _models_fault("the reply's own program exceeded its memory"),
    Ending.OWN_OUTPUT_LIMIT: _models_fault("the reply's own program exceeded its output limit"),
    Ending.WALL_TIME_OWN: _models_fault("wall time exceeded while the machine was not the cause"),
    Ending.WALL_TIME_REPEATED: _models_fault("wall time exceeded again on a quiet box"),
    Ending.WALL_TIME_MACHINE: _our_fault("wall time exceeded while the machine was busy"),
    Ending.VERIFIER_ERROR: _our_fault("the verifier raised or returned a non-finite score"),
    Ending.VERIFIER_PROVOKED: _our_fault(
        "the verifier raised on this text, not on a neutral one, again and again; an exploit until shown otherwise",
        exploit=True,
    ),
    Ending.ENVIRONMENT_ERROR: _our_fault("the environment raised"),
    Ending.SANDBOX_ERROR: _our_fault("the sandbox could not run the job"),
    Ending.NETWORK_ERROR: _our_fault("a service did not answer"),
    Ending.ENGINE_ERROR: _our_fault("the rollout engine failed", lengths=False),
    Ending.ABORTED: _our_fault("the rollout was aborted by the scheduler", retry=False, lengths=False),
}


def rule_of(ending: Ending) -> OutcomeRule:
    """The row of `OUTCOME_TABLE` for an ending."""
    return OUTCOME_TABLE[ending]
