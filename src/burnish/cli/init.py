"""`burnish init`: a folder to begin with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit
from burnish.core.errors import ResourceError


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Write a starter into FOLDER: recipe, tasks, verifier, README and the recipe's JSON Schema.

    Existing files are never overwritten.
    """
    from burnish.cli.starter import README, RECIPE, TASKS, VERIFIER
    from burnish.core.config import json_schema
    from burnish.observe.disk import atomic_write, writing
    from burnish.train.recipe import Recipe

    files = {
        "recipe.yaml": RECIPE,
        "tasks.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TASKS),
        "verifier.py": VERIFIER,
        "README.md": README,
        "recipe.schema.json": json.dumps(json_schema(Recipe), indent=1) + "\n",
    }
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise ResourceError(
            f"{folder} already has {', '.join(taken)}",
            where=str(folder),
            fix="name another folder; nothing was written",
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        atomic_write(folder / name, text.encode("utf-8"))
    text = f"wrote {', '.join(files)} to {folder}\nnext: burnish run {folder / 'recipe.yaml'} --dry-run"
    emit("init", {"folder": str(folder), "files": list(files)}, text, as_json=as_json)
