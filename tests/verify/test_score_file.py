from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from burnish.core.codec import encode
from burnish.core.errors import DataError
from burnish.verify.registry import get_verifier
from burnish.verify.replies import bare_task
from burnish.verify.score_file import score_file

_TOOL = {
    "name": "f",
    "description": "",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
_CALL = {"call": {"name": "f", "arguments": {"n": [1]}}}


def _write(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_one_verdict_a_row_in_order(tmp_path: Path) -> None:
    rows = [{"gold": i, "reply": str(i if i % 2 else -1 - i), "note": "the user's own"} for i in range(10)]
    verdicts = list(score_file(get_verifier("numeric"), _write(tmp_path, *rows)))
    assert [verdict["outcome"] for verdict in verdicts] == ["fail", "pass"] * 5
    assert [verdict["score"] for verdict in verdicts] == [0.0, 1.0] * 5
    for verdict in verdicts:
        assert list(verdict)[:5] == ["outcome", "score", "reason", "evidence", "duration_s"]
        assert (verdict["verifier"], verdict["version"]) == ("numeric", "2")
        assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict


def test_rows_with_a_task(tmp_path: Path) -> None:
    reply = '{"name": "f", "arguments": {"n": 1.0}}'
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = _write(
        tmp_path,
        {"task": {"prompt": "p", "tools": [_TOOL], "gold": _CALL}, "reply": reply},
        {"task": {"prompt": messages}, "gold": _CALL, "reply": reply.replace("1.0", "1")},
        {"task": encode(bare_task("tool_call", "p")), "gold": {"call": None}, "reply": "null"},
    )
    assert [v["outcome"] for v in score_file(get_verifier("tool_call"), path)] == ["fail", "pass", "pass"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"gold": 1}', "no `reply`"),
        ('{"gold": 1, "reply": 1}', "no `reply`"),
        ('{"reply": "1"}', "no `gold`"),
        ('{"gold": "x", "reply": "1"}', "gold value"),
        ('{"gold": NaN, "reply": "1"}', "NaN"),
        ('{"gold": 1, "gold": 2, "reply": "1"}', "twice"),
        ('{"gold": 1, "reply": "1", "task": {"gold": 1}}', "two golds"),
        ('{"gold": 1, "reply": "1", "task": {"promt": ""}}', "promt"),
        ('{"gold": 1, "reply": "1", "task": {"prompt": 5}}', "malformed"),
        ('{"gold": 1, "reply": "1", "task": {"prompt": [{"role": "user", "content": 5}]}}', "malformed"),
        ('{"gold": 1, "reply": "1", "task": {"tools": [{}]}}', "malformed"),
        ("", "not JSON"),
    ],
)
def test_a_malformed_row_is_named_before_any_verdict(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = '{"gold": 1, "reply": "1"}'
    path.write_text(f"{good}\n{line}\n{good}\n", "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        score_file(get_verifier("numeric"), path)
    assert caught.value.where == f"{path}:2"
    assert caught.value.fix


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    numeric = get_verifier("numeric")
    with pytest.raises(DataError, match="cannot read"):
        score_file(numeric, tmp_path / "absent.jsonl")
    for content, message in (
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b'{"gold": 1, "reply": "\xff"}', "not UTF-8"),
    ):
        path = tmp_path / "bad.jsonl"
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            score_file(numeric, path)
