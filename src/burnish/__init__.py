"""Burnish takes an open-weight language model and tasks whose answers can be checked, and returns a
checkpoint that is measurably better at them, with the proof attached, or says plainly that it is not
better.

The Python API is the same objects as the command line's: ``burnish.run(recipe)``. Importing this package
loads nothing but this file; a public name is fetched from its room on first use, so torch is loaded only by
what needs it. Left out here: everything else. Each room's docstring says what belongs in it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.train.pipeline import run as run

__version__ = "0.1.0"

# Public name -> the module that defines it. For type checkers, repeat it under TYPE_CHECKING above.
_PUBLIC = {
    "run": "burnish.train.pipeline",
}

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
