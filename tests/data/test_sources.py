from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.types import Message, ReasoningPart, Role, Split, TextPart, ToolCallPart, ToolResultPart
from burnish.data import load_conversations, load_tasks

GOOD = {"prompt": "q", "answer": "a"}
USER = {"role": "user", "content": "q"}
CALLER = {"role": "assistant"}


def write(folder: Path, *rows: Any, raw: bytes | None = None) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(raw if raw is not None else "\n".join(json.dumps(row) for row in rows).encode())
    return path


def test_the_three_shapes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 7},
        {"prompt": "q2", "answer": "a2"},
        {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q3"}],
            "gold": 3,
            "reply": "a3",
        },
    )
    found = load_conversations(path)
    assert [c.where for c in found] == [f"{path}:1", f"{path}:2", f"{path}:3"]
    assert [[m.text for m in c.messages] for c in found] == [["q", "a"], ["q2", "a2"], ["s", "q3", "a3"]]
    assert found[2].prompt == found[2].messages[:2]
    assert found[2].answer == Message.of(Role.ASSISTANT, "a3")


def test_tool_conversations_in_the_openai_shape(tmp_path: Path) -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    path = write(
        tmp_path,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "q"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r"},
                {"role": "assistant", "content": "done"},
            ],
            "tools": [{"type": "function", "function": function}],
        },
    )
    (conversation,) = load_conversations(path)
    assert [message.parts for message in conversation.messages] == [
        (TextPart("q"),),
        (ReasoningPart("hm"), ToolCallPart("f", {"x": 1}, "c1")),
        (ToolResultPart("r", "c1", "f"),),
        (TextPart("done"),),
    ]
    assert conversation.tools[0].parameters == {"type": "object"}


def test_byte_order_mark_crlf_and_blank_lines_are_tolerated(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf" + b'{"prompt": "q", "answer": "\xc3\xa9"}\r\n\r\n{"prompt": "r", "answer": "b"}\r\n'
    path = write(tmp_path, raw=raw)
    found = load_conversations(path)
    assert [(c.where.rsplit(":", 1)[1], c.messages[1].text) for c in found] == [("1", "é"), ("3", "b")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q"}, "a row without an answer: it has neither `answer` nor `reply`"),
        ({"prompt": "q", "answer": "  "}, "a row without an answer: `answer` is empty"),
        ({"messages": [USER]}, "a row without an answer: its messages have no assistant turn"),
        ({"answer": "a", "text": "t"}, r"has no `prompt` \(its keys: answer, text\)"),
        ({"prompt": "", "answer": "a"}, "the prompt is empty"),
        ({"prompt": "q", "answer": 3}, "`answer` must be text, found 3"),
        ({"messages": []}, "`messages` must be a list of messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, '`role` must be one of .* found "robot"'),
        ({"messages": [{**USER, "weight": 0}]}, r"unknown message keys \['weight'\]"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, r"a user message has no \['tool_calls'\]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a content part must be"),
        ({"messages": [{**CALLER, "tool_calls": [{"name": "f"}]}]}, "a tool call must be"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "the arguments are not JSON",
        ),
        ({**GOOD, "tools": [{"name": 3}]}, "a tool must be"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path, GOOD, row)
    with pytest.raises(DataError, match=message) as caught:
        load_conversations(path)
    assert caught.value.where.startswith(f"{path}:2")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("raw", "message", "line"),
    [
        (b"", "holds no rows", ""),
        (b"\n \r\n", "holds no rows", ""),
        (
            b'{"prompt": "q", "answer": "a"}\n{"prompt": "\xff"}',
            "not UTF-8: byte 0xff at offset 43 of the file",
            ":2",
        ),
        (b"\xef\xbb\xbf\xff", "not UTF-8: byte 0xff at offset 3", ":1"),
        (b"{'prompt': 1}", "not JSON: .* at column 2", ":1"),
        (b"[1]", "expected a JSON object, found list", ":1"),
        (b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' stands twice", ":1"),
        (b'{"prompt": NaN}', "NaN is not JSON", ":1"),
        (b'{"prompt": "\\ud800", "answer": "a"}', r"a lone surrogate \(\\ud800\)", ":1"),
        (b"[" * 100_000, "not JSON", ":1"),
    ],
)
def test_bad_files(tmp_path: Path, raw: bytes, message: str, line: str) -> None:
    path = write(tmp_path, raw=raw)
    with pytest.raises(DataError, match=message) as caught:
        load_conversations(path)
    assert caught.value.where == f"{path}{line}"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        load_conversations(tmp_path / "gone.jsonl")


@given(st.binary(max_size=200))
def test_no_bytes_crash(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), raw=raw)
    try:
        load_conversations(path)
    except DataError as error:
        where = error.where
    else:
        where = str(path)
    assert str(path) in where


def test_tasks_with_sealed_gold_and_demonstrations(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "prompt": "2+2?",
            "gold": {"value": 4},
            "reply": "4",
            "cluster": "sums",
            "difficulty": 0.5,
            "tags": ["x"],
        },
        {"prompt": "3+3?", "answer": "6", "source": "mine", "licence": "CC0-1.0"},
        {"prompt": "4+4?", "gold": 8},
    )
    loaded = load_tasks(path, verifier="numeric", split=Split.GATE)
    assert [gold for _, gold, _ in loaded] == [Gold.seal({"value": 4}), Gold.seal("6"), Gold.seal(8)]
    assert [demo.text if demo else None for _, _, demo in loaded] == ["4", "6", None]
    first, second, third = (item.task for item in loaded)
    assert (first.cluster, first.difficulty, first.tags, first.licence) == ("sums", 0.5, ("x",), "not stated")
    assert (second.source, second.licence) == ("mine", "CC0-1.0")
    assert third.cluster == third.id
    assert third.source == f"{path}:3"
    assert {t.split for t in (first, second, third)} == {Split.GATE}
    assert "value" not in repr(loaded[0].gold)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q"}, "it has neither `gold` nor `answer`"),
        ({"prompt": "q", "gold": None}, "its gold is empty"),
        ({"prompt": "q", "gold": 1, "difficulty": 2}, "`difficulty` must be a number from 0 to 1, found 2"),
        ({"prompt": "q", "gold": 1, "tags": "x"}, "`tags` must be a list of texts"),
        ({"prompt": "2+2?", "gold": 5}, "has another gold than the same task before"),
    ],
)
def test_bad_tasks(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path, {"prompt": "2+2?", "gold": 4}, row)
    with pytest.raises(DataError, match=message) as caught:
        load_tasks(path, verifier="numeric")
    assert f"{path}:2" in caught.value.where
