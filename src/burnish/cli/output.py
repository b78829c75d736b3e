"""How verbs print: text for people, or one JSON object with a `schema` for programs.

Leaves out errors (`main`) and progress (`progress`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import click

VERSION = 1
"""Of every output schema in `schemas`; raise it when a key changes its meaning or goes."""


def emit(verb: str, data: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print the text, or with `as_json` the data under the schema `burnish/VERB/VERSION`."""
    if as_json:
        click.echo(json.dumps(tagged(verb, data), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(text)


def tagged(verb: str, data: dict[str, Any]) -> dict[str, Any]:
    """The data with its schema; a number that is not finite becomes null, since JSON has none."""
    plain: dict[str, Any] = _finite({"schema": f"burnish/{verb}/{VERSION}", **data})
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest cell."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def percent(fraction: float | None) -> str:
    """A fraction in percent, or a dash."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
