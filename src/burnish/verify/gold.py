"""The only place that opens sealed gold. An architecture test keeps imports of it inside this room."""

from __future__ import annotations

import json
from typing import Any

from burnish.core.gold import Gold


def open_gold(gold: Gold) -> Any:
    """The payload that was sealed, as a fresh copy at each call, so that no checker can change it for the
    next."""
    return json.loads(gold._sealed)
