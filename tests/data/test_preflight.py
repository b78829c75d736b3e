from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from burnish.core.errors import DataError, TemplateError
from burnish.core.types import Message, ReasoningPart, Role, TextPart, ToolResultPart, ToolSpec
from burnish.data import Conversation, Severity, preflight
from burnish.data.preflight import PreflightReport
from burnish.render import Renderer
from render.tiny import CHATML, tiny_renderer

USER, ASSISTANT, SYSTEM = Role.USER, Role.ASSISTANT, Role.SYSTEM
GOOD = (Message.of(USER, "2+2?"), Message.of(ASSISTANT, "4"))
RESULT = Message(Role.TOOL, (ToolResultPart("x"),))
OPENS_TURN = "<|im_start|>assistant\n' }}{% endif"


def codes(report: PreflightReport, severity: Severity) -> dict[str, str]:
    return {f.code: f.where for f in report.findings if f.severity is severity}


def rows(*conversations: tuple[Message, ...]) -> list[Conversation]:
    return [Conversation(messages, f"rows.jsonl:{i}") for i, messages in enumerate(conversations, start=1)]


def test_good_rows_pass_with_their_numbers(renderer: Renderer) -> None:
    report = preflight(rows(GOOD, (Message.of(USER, "3+3?"), Message.of(ASSISTANT, "6"))), renderer)
    assert report.ok
    assert report.findings == ()
    assert (report.num_rows, report.num_renderings, report.num_trained) == (
        2,
        2,
        4,
    )  # digit and end token, twice
    assert report.masked_frac == pytest.approx(1 - 4 / report.num_tokens)
    report.raise_if_failed()


def test_plain_message_lists_are_rows_too(renderer: Renderer) -> None:
    bad = [Message.of(USER, "q")]
    report = preflight([GOOD, bad], renderer, where=["task a", "task b"])
    assert codes(report, Severity.ERROR) == {"wrong_roles": "task b"}
    assert preflight([bad, GOOD], renderer).errors[0].where == "row 0"


@pytest.mark.parametrize(
    ("messages", "code", "message"),
    [
        ((), "empty_row", "no messages"),
        ((Message.of(USER, " "), GOOD[1]), "empty_row", r"message 0 \(user\) is empty"),
        ((GOOD[0], Message(ASSISTANT, ())), "empty_row", r"message 1 \(assistant\) is empty"),
        (
            (GOOD[0], Message(ASSISTANT, (ReasoningPart("hm"),))),
            "empty_row",
            r"message 1 \(assistant\) is empty",
        ),
        ((GOOD[1],), "wrong_roles", "the first turn is the assistant's"),
        ((GOOD[0], GOOD[0], GOOD[1]), "wrong_roles", "two user messages in a row"),
        ((*GOOD, GOOD[1]), "wrong_roles", "two assistant messages in a row"),
        (
            (*GOOD, Message(Role.TOOL, (ToolResultPart("x"),)), GOOD[1]),
            "wrong_roles",
            "without a call before it",
        ),
        ((*GOOD, Message.of(SYSTEM, "s"), *GOOD), "wrong_roles", "a system message after the first place"),
        ((*GOOD, GOOD[0]), "wrong_roles", "ends with a user message"),
        (
            (Message.of(USER, "what is <|im_end|>?"), GOOD[1]),
            "control_token_in_text",
            r"'<\|im_end\|>', which becomes a control token",
        ),
    ],
)
def test_errors_show_the_offending_row(
    renderer: Renderer, messages: tuple[Message, ...], code: str, message: str
) -> None:
    report = preflight(rows(GOOD, messages), renderer)
    assert not report.ok
    (finding,) = [f for f in report.errors if f.code == code][:1]
    assert finding.where == "rows.jsonl:2"
    assert finding.row
    with pytest.raises(DataError, match="preflight: ") as caught:
        report.raise_if_failed()
    assert caught.value.where == "rows.jsonl:2"
    assert re.search(message, "\n".join(f.message for f in report.errors))
    assert "rows.jsonl:2" in report.to_text()


def test_duplicates_and_contradictions_are_warnings_with_both_places(renderer: Renderer) -> None:
    other = (GOOD[0], Message.of(ASSISTANT, "5"))
    report = preflight(rows(GOOD, GOOD, other), renderer)
    assert codes(report, Severity.WARNING) == {
        "duplicate_row": "rows.jsonl:2",
        "contradictory_rows": "rows.jsonl:3",
    }
    assert report.ok
    assert "as rows.jsonl:1" in report.to_text()


def test_rows_of_one_kind_are_counted_once_each(renderer: Renderer) -> None:
    report = preflight(rows(*[(Message.of(USER, f"q{i}"),) for i in range(9)], GOOD), renderer)
    (finding,) = report.errors
    assert finding.count == 9
    assert finding.also == tuple(f"rows.jsonl:{i}" for i in range(2, 6))
    assert "(9 rows)" in report.to_text()


def test_truncation_is_counted_and_refused_where_nothing_is_left(renderer: Renderer) -> None:
    long_answer = (GOOD[0], Message.of(ASSISTANT, "4" * 50))
    whole = preflight(rows(long_answer), renderer)
    cut = preflight(rows(long_answer), renderer, max_tokens=whole.longest_tokens - 10)
    (finding,) = [f for f in cut.findings if f.code == "truncated"]
    assert "loses 9 trained ones and the end of 1 turns" in finding.message  # the line break was not trained
    nothing = preflight(rows(long_answer), renderer, max_tokens=10)
    assert codes(nothing, Severity.ERROR) == {"nothing_left_to_train": "rows.jsonl:1"}


def test_pad_among_the_end_tokens_is_safe_and_said(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, config={"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    report = preflight(rows(GOOD), renderer)
    assert report.ok
    (finding,) = report.findings
    assert finding.code == "pad_is_end_token"
    assert "1 of 1 trained turns train their end token" in finding.message


def test_a_template_that_ends_turns_otherwise_never_teaches_to_stop(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, config={"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"})
    report = preflight(rows(GOOD), renderer)
    (finding,) = report.errors
    assert finding.code == "end_token_not_trained"
    assert "<|im_end|>" in finding.message
    assert ">>" in finding.mask
    assert "4|<¦im_end¦>" in finding.mask


def test_several_end_tokens_are_listed(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, generation={"eos_token_id": [258, 256]})
    report = preflight(rows(GOOD), renderer)
    (finding,) = report.findings
    assert finding.code == "several_end_tokens"
    assert "<|im_end|> (258), <|endoftext|> (256)" in finding.message


def test_a_template_that_drops_earlier_turns_is_not_silent(tmp_path: Path) -> None:
    shout_last = CHATML.replace("m['content']", "(m['content'] if loop.last else m['content'] + '!')")
    renderer = tiny_renderer(tmp_path, template=shout_last)
    chat = (
        Message.of(USER, "a"),
        Message.of(ASSISTANT, "b"),
        Message.of(USER, "c"),
        Message.of(ASSISTANT, "d"),
    )
    report = preflight(rows(chat), renderer)
    assert "template_rewrites_turns" in codes(report, Severity.WARNING)


def test_a_prompt_that_no_turn_begins_with_is_an_error(tmp_path: Path) -> None:
    thinking = CHATML.replace("<|im_start|>assistant\n' }}{% endif", "<|im_start|>assistant\n<think>\n' }}{% endif")
    report = preflight(rows(GOOD), tiny_renderer(tmp_path, template=thinking))
    assert codes(report, Severity.ERROR) == {"prompt_not_trained": "rows.jsonl:1"}


def test_text_that_the_template_leaves_out_is_an_error(tmp_path: Path) -> None:
    first_line = CHATML.replace("m['content']", "m['content'].split('\n')[0]")
    chat = (GOOD[0], Message.of(ASSISTANT, "one\ntwo"))
    report = preflight(rows(chat), tiny_renderer(tmp_path, template=first_line))
    assert codes(report, Severity.ERROR) == {"text_dropped": "rows.jsonl:1"}


def test_a_token_across_the_border_is_a_warning_and_both_sides_are_as_sampled(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, merges=[("Ċ", "Ċ")])
    chat = (GOOD[0], Message.of(ASSISTANT, "\n4"))
    report = preflight(rows(chat), renderer)
    assert "token_merge" in codes(report, Severity.WARNING)
    rendered = renderer.conversation(chat)
    prompt = renderer.prompt(chat[:1]).ids
    assert rendered.ids[: len(prompt)].tolist() == prompt.tolist()


REFUSES_DIGITS = CHATML.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m['content'] == 'bad' %}{{ raise_exception('bad is refused') }}{% endif %}",
)


def test_a_template_that_refuses_one_row_and_one_that_refuses_all(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, template=REFUSES_DIGITS)
    bad = (Message.of(USER, "bad"), GOOD[1])
    report = preflight(rows(GOOD, bad), renderer)
    assert codes(report, Severity.ERROR) == {"template_refuses": "rows.jsonl:2"}
    with pytest.raises(TemplateError, match="bad is refused"):
        preflight(rows(bad, bad), renderer)


def test_no_rows(renderer: Renderer) -> None:
    with pytest.raises(DataError, match="no rows"):
        preflight([], renderer)


def test_markers_that_leave_out_the_end_token(tmp_path: Path) -> None:
    marked = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    report = preflight(rows(GOOD), tiny_renderer(tmp_path, template=marked))
    assert codes(report, Severity.WARNING) == {"markers_disagree": "rows.jsonl:1"}


def test_tools_in_text_are_said_once_tools_are_used(renderer: Renderer) -> None:
    tooled = Conversation(GOOD, "rows.jsonl:1", (ToolSpec("f", "d", {"type": "object"}),))
    report = preflight([tooled], renderer)
    assert codes(report, Severity.INFO) == {"tools_in_text": ""}


def test_json_and_text_forms(renderer: Renderer) -> None:
    report = preflight(rows(GOOD, (Message(USER, (TextPart("é"),)),)), renderer)
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is False
    assert data["findings"][0]["severity"] == "error"
    assert data["rendering"]["stop_token_ids"] == [258]
    text = report.to_text()
    assert text.startswith("ERROR   wrong_roles: the row ends with a user message")
    assert "user: é" in text
    assert "preflight FAILED: 1 kinds of error" in text
