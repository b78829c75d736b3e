from __future__ import annotations

import pytest

from burnish.verify.slots import SlotRejected, committed_slot
from burnish.verify.text import is_null_reply


@pytest.mark.parametrize(
    ("reply", "slot"),
    [
        (" 42 ", "42"),
        ("long working\nAnswer: 42", "42"),
        ("working\n**Final answer:** 42", "42"),
        ("working\nThe answer is: $\\boxed{42}$", "42"),
        ("working\n$\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("first \\boxed{42}, again:\n#### 42", "42"),
        ("<answer>\\boxed{7}</answer>", "7"),
        ("<think>41? no</think>\n\n42", "42"),
        ("41? no</think>42", "42"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_the_committed_answer(reply: str, slot: str) -> None:
    assert committed_slot(reply) == slot


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Answer: 1\nAnswer: 2", "different answers"),
        ("\\boxed{1}\n#### 2", "different answers"),
        ("#### 42\nwait", "does not end with it"),
        ("it is not \\boxed{42}", "does not end with it"),
        ("<think>forever", "never ends"),
        ("\\boxed{42", "not closed"),
        ("<answer>42", "not closed"),
        ("\n".join(["<answer>42</answer>"] * 40), "more than"),
        ("<think></think>", "no answer"),
    ],
)
def test_no_single_commitment(reply: str, why: str) -> None:
    with pytest.raises(SlotRejected, match=why):
        committed_slot(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \u200b\n",
        ":",
        "...",
        "Thought process:",
        "**Answer**:",
        "### Final answer:",
        "<think></think>",
        "``` ```",
        "\\boxed{}",
        "assistant:",
        "\u2060" * 500,
        " " * 100000,
    ],
)
def test_null_replies(reply: str) -> None:
    assert is_null_reply(reply)


@pytest.mark.parametrize("reply", ["0", "-", "+", "null", "{}", "[]", "answer", "?", "no", "Answer: 1", "<br>", "é"])
def test_short_answers_are_not_null(reply: str) -> None:
    assert not is_null_reply(reply)
