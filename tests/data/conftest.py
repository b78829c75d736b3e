"""A tiny renderer for checks of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.render import Renderer
from render.tiny import tiny_renderer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Bytes as tokens, the ChatML template, <|im_end|> ends a turn, <|pad|> pads."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    return tiny_renderer(folder)
