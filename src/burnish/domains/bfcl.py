"""`bfcl`: rows of the Berkeley Function Calling Leaderboard as an external check of `tool_call`.

The data is public and not part of the package: `BURNISH_SHARED_DATA`, or `shared/data` beside the repository,
holds `bfcl/`. For the final set alone: these rows are never trained on and decide nothing on the way. Prompts
have the form of `tool_call`, with long schemas kept whole. Leaves out the leaderboard's other categories.

Source: Patil et al., "The Berkeley Function Calling Leaderboard", ICML 2025; data Apache-2.0.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.core.errors import DataError
from burnish.core.gold import Gold
from burnish.core.seeds import python_random
from burnish.core.types import Message, Role, Split, Task
from burnish.domains.base import Domain, Example
from burnish.domains.tool_call import NO_CALL, tool_prompt
from burnish.verify.tool_call import normalised_schema

DATA_VARIABLE = "BURNISH_SHARED_DATA"


@dataclass(frozen=True, slots=True)
class NotAvailable:
    """Why this check cannot run here; a report says "not run" and this reason."""

    reason: str


class Bfcl(Domain):
    """See the module; half of the rows from `simple_python`, half from `irrelevance`."""

    name = "bfcl"
    verifier = "bfcl"
    source = "ShishirPatil/gorilla"
    licence = "Apache-2.0"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def generate(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` rows, the choice a function of the seed.

        Raises: DataError for any split but the final one, for an odd count, and where the data is absent.
        """
        if split is not Split.FINAL:
            raise DataError(
                f"bfcl has no {split.value} set: its rows are for the final evaluation only",
                where="domain bfcl",
                fix="train and decide on tool_call",
            )
        if count % 2:
            raise DataError(f"bfcl: count={count} is odd", where="domain bfcl", fix="give an even count")
        loaded = load_bfcl(self._folder, per_set=count // 2, seed=seed)
        if isinstance(loaded, NotAvailable):
            raise DataError(loaded.reason, where="domain bfcl", fix=f"set {DATA_VARIABLE} to the data's folder")
        return loaded

    def limit(self, split: Split) -> int | None:
        """Public tasks are evaluated on and nothing else."""
        return None if split is Split.FINAL else 0


def load_bfcl(folder: Path | None = None, *, per_set: int = 100, seed: int = 0) -> list[Example] | NotAvailable:
    """`per_set` rows of each of the two categories, or why there are none.

    `folder` holds `simple_python.json`, `irrelevance.json` and `possible_answer/`; by default it is looked
    for as the module says.

    Raises: DataError where a file is there but is not what it should be.
    """
    found = folder or _default_folder()
    if found is None or not found.is_dir():
        return NotAvailable(f"no folder {found or 'bfcl'}: set {DATA_VARIABLE}, or give the folder")
    calls = _rows(found / "simple_python.json")
    answers = {row["id"]: row["ground_truth"] for row in _rows(found / "possible_answer" / "simple_python.json")}
    examples = [_example(row, _only_call(row, answers)) for row in _chosen(calls, per_set, seed, "simple_python")]
    others = _chosen(_rows(found / "irrelevance.json"), per_set, seed, "irrelevance")
    return examples + [_example(row, None) for row in others]


def _default_folder() -> Path | None:
    given = os.environ.get(DATA_VARIABLE)
    if given:
        return Path(given) / "bfcl"
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    return root.parent / "shared" / "data" / "bfcl" if root else None


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path.name}: {error}", where=str(path), fix="fetch the data again") from None


def _chosen(rows: list[dict[str, Any]], count: int, seed: int, purpose: str) -> list[dict[str, Any]]:
    if count > len(rows):
        raise DataError(f"{purpose} has {len(rows)} rows, {count} wanted", where=purpose, fix="ask for fewer")
    return python_random(seed, "bfcl", purpose).sample(rows, count)


def _only_call(row: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    """Name and accepted values of a row's one expected call."""
    calls = answers.get(row["id"], [])
    if len(calls) != 1 or len(calls[0]) != 1:
        raise DataError(f"row {row['id']} has no single expected call", where=row["id"], fix="fetch the data again")
    ((name, accepted),) = calls[0].items()
    return {"name": name, "arguments": accepted}


def _example(row: dict[str, Any], call: dict[str, Any] | None) -> Example:
    tools = [{**tool, "parameters": normalised_schema(tool["parameters"])} for tool in row["function"]]
    question = "\n".join(message["content"] for message in row["question"][0])
    task = Task.create(
        (Message.of(Role.USER, tool_prompt(tools, question)),),
        env=Bfcl.env,
        verifier=Bfcl.verifier,
        domain=Bfcl.name,
        split=Split.FINAL,
        cluster=row["id"],
        source=Bfcl.source,
        licence=Bfcl.licence,
        tags=("no_call" if call is None else "call",),
    )
    return Example(task, Gold.seal({"call": call}), Message.of(Role.ASSISTANT, json.dumps(_reply(call))))


def _reply(call: dict[str, Any] | None) -> dict[str, Any]:
    """One reply that is accepted: the first accepted value of each argument that may not be left out."""
    if call is None:
        return NO_CALL
    arguments = {name: _first(choices) for name, choices in call["arguments"].items() if "" not in choices}
    return {"name": call["name"], "arguments": arguments}


def _first(choices: list[Any]) -> Any:
    """The first choice, itself made of first choices where it is an object (or a list of objects)."""
    choice = choices[0]
    if isinstance(choice, list):
        return [_first([item]) for item in choice]
    if isinstance(choice, dict):
        return {key: _first(inner) for key, inner in choice.items() if isinstance(inner, list) and "" not in inner}
    return choice
