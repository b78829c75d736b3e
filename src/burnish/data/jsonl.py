"""JSON Lines from disk, one object a line, each with the file:line where it stands.

A byte order mark and CRLF line ends are tolerated, blank lines are skipped; anything else that is not a JSON
object is refused, with the place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.core.errors import DataError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object and where it stands (`file:line`)."""

    data: dict[str, Any]
    where: str


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSON Lines file.

    Raises: DataError where the file is missing or empty, or a line is not UTF-8, not JSON or not an object.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"the data file cannot be read: {error.strerror}",
            where=str(path),
            fix="give the path of a .jsonl file",
        ) from None
    rows = []
    offset = len(_BOM) if raw.startswith(_BOM) else 0
    for number, line in enumerate(raw[offset:].split(b"\n"), start=1):
        where = f"{path}:{number}"
        text = _decode(line, where, offset)
        offset += len(line) + 1
        if text.strip():
            rows.append(Row(_object(text, where), where))
    if not rows:
        raise DataError("the data file holds no rows", where=str(path), fix="write one JSON object a line")
    return rows


def _decode(line: bytes, where: str, offset: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8: byte 0x{line[error.start]:02x} at offset {offset + error.start} of the file",
            where=where,
            fix="save the file as UTF-8",
        ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {repeated!r} stands twice")
    return result


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise DataError(
            f"not JSON: {error.msg} at column {error.colno}", where=where, fix="write one JSON object a line"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", where=where, fix="write one JSON object a line") from None
    if not isinstance(data, dict):
        raise DataError(
            f"expected a JSON object, found {type(data).__name__}",
            where=where,
            fix="write one JSON object a line",
        )
    try:
        text.encode("utf-8")
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"a lone surrogate (\\u{ord(error.object[error.start]):04x}) stands in a string",
            where=where,
            fix="repair the text: a surrogate stands only in pairs",
        ) from None
    return data
