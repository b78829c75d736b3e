"""The tools of the `tool_call` domain and the requests that ask for them, from the text files beside this.

One file a subject. The form of an entry:

    set_alarm: Set an alarm clock.
      time string time "HH:MM"          a parameter: name, type, source of its values, note for the schema
      ?label string task                ? marks an optional one
      on boolean                        booleans are set by the request alone
      mode enum quiet,strong            values are these
      level integer 10..90/5            first..last/step, also for `number`
      > Wake me at {time}.              a request; every slot is a parameter
      > Lights out. ; on=false          values that the request implies

Leaves out which split a tool belongs to (burnish.domains.pools).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from burnish.core.types import Split
from burnish.domains.pools import split_of

_TYPES = ("string", "integer", "number", "boolean", "enum")
_PARAMETER = re.compile(r'(\??)(\w+) (\w+)(?: ([^"\s]\S*))?(?: "(.*)")?')


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `source` says where its values come from (see the module)."""

    name: str
    type: str
    source: str
    note: str
    optional: bool

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""
        if self.type == "enum":
            return {"type": "string", "enum": self.source.split(",")}
        note = {"description": self.note} if self.note else {}
        return {"type": self.type, **note}


@dataclass(frozen=True, slots=True)
class Request:
    """A request template and the arguments that it implies without a slot."""

    template: str
    implied: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class CatalogueTool:
    """A tool, its subject, and how people ask for it."""

    name: str
    subject: str
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[Request, ...]

    def json_schema(self) -> dict[str, Any]:
        """The tool as the prompt shows it: name, description, JSON Schema of the parameters."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {p.name: p.schema() for p in self.parameters},
                "required": [p.name for p in self.parameters if not p.optional],
            },
        }


@cache
def catalogue() -> tuple[CatalogueTool, ...]:
    """Every tool, by subject and in file order."""
    folder = files("burnish.domains.tool_call")
    texts = {item.name.removesuffix(".txt"): item for item in folder.iterdir() if item.name.endswith(".txt")}
    return tuple(tool for name in sorted(texts) for tool in parse_tools(texts[name].read_text("utf-8"), name))


@cache
def tools_of(split: Split) -> tuple[CatalogueTool, ...]:
    """The tools of one split, by the hash of their names."""
    return tuple(tool for tool in catalogue() if split_of("tool", tool.name) is split)


def parse_tools(text: str, subject: str) -> Iterator[CatalogueTool]:
    """The entries of one file.

    Raises: ValueError where a line has not the form that the module describes (ours to mend: these files are
    part of the package).
    """
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        name, _, description = head.partition(": ")
        parameters = tuple(_parameter(line.strip()) for line in lines if not line.startswith("  >"))
        requests = tuple(_request(line[4:]) for line in lines if line.startswith("  >"))
        yield CatalogueTool(name, subject, description, parameters, requests)


def _parameter(line: str) -> Parameter:
    match = _PARAMETER.fullmatch(line)
    if match is None or match.group(3) not in _TYPES:
        raise ValueError(f"not a parameter: {line!r}")
    optional, name, kind, source, note = match.groups()
    return Parameter(name, kind, source or "", note or "", bool(optional))


def _request(line: str) -> Request:
    template, _, implied = line.partition(" ; ")
    pairs = [item.split("=") for item in implied.split(", ") if item]
    return Request(template, tuple((name, value == "true") for name, value in pairs))
