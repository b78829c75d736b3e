"""`burnish preflight`: data and template, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from burnish.cli.options import find_model, json_option, set_option
from burnish.cli.output import emit
from burnish.core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from burnish.data.preflight import PreflightReport


@click.command("preflight")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--model", help="The model to train; needed for a data file.")
@click.option("--max-tokens", type=click.IntRange(min=2), help="Length to which rows would be cut, tokens.")
@set_option
@json_option
def command(target: Path, model: str | None, max_tokens: int | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check TARGET, a recipe (.yaml) or a file of rows (.jsonl), against the model's chat template.

    Exit code 2 where something forbids training; the offending row is shown.
    """
    if target.suffix in (".yaml", ".yml"):
        report = _of_recipe(target, overrides, model, max_tokens)
    else:
        report = _of_rows(target, overrides, model, max_tokens)
    emit("preflight", report.to_json(), report.to_text().rstrip("\n"), as_json=as_json)
    return int(ExitCode.OK if report.ok else ExitCode.BAD_INPUT)


def _of_recipe(path: Path, overrides: tuple[str, ...], model: str | None, max_tokens: int | None) -> PreflightReport:
    from burnish.train.prepare import preflight_recipe
    from burnish.train.recipe import load_recipe

    if model is not None:
        overrides = (*overrides, f"model.source={find_model(model)}")
    return preflight_recipe(load_recipe(path, overrides).recipe, path.parent, max_tokens=max_tokens)


def _of_rows(path: Path, overrides: tuple[str, ...], model: str | None, max_tokens: int | None) -> PreflightReport:
    from burnish.data.preflight import preflight
    from burnish.data.sources import load_conversations
    from burnish.models.load import resolve_model
    from burnish.render.renderer import Renderer
    from burnish.render.tokenizer import load_tokenizer

    if overrides:
        raise ConfigError("--set with a file of rows", where="the command line", fix="--set belongs to recipes")
    rows = load_conversations(path)  # the file first: a fault there costs no loading
    if model is None:
        raise ConfigError("no model given", where="the command line", fix=f"burnish preflight {path} --model MODEL")
    renderer = Renderer(load_tokenizer(resolve_model(find_model(model))))
    return preflight(rows, renderer, max_tokens=max_tokens)
