"""What a release promises about itself: version, lock, dependency table, public names."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import burnish

ROOT = Path(__file__).resolve().parents[2]


@cache
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        loaded: dict[str, Any] = tomllib.load(file)["project"]
    return loaded


def normal(requirement: str) -> str:
    """The normalised name in a requirement: `Ruamel.YAML>=0.18` -> `ruamel-yaml`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def locked() -> set[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return {normal(line) for line in lines if "==" in line}


def test_version_is_stated_once() -> None:
    assert burnish.__version__ == project()["version"]


def test_public_names_exist() -> None:
    for name in burnish.__all__:
        assert getattr(burnish, name) is not None
    assert set(burnish.__all__) <= set(dir(burnish))


def test_lock_pins_what_is_asked_for() -> None:
    asked = set(project()["dependencies"]).union(*project()["optional-dependencies"].values())
    assert {normal(requirement) for requirement in asked} - locked() == {"torch"}


def test_lock_has_hashes_and_no_addresses() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not [line for line in text.splitlines() if line.startswith("-")]
    for block in re.split(r"\n(?=\S)", text):
        if "==" in block and not block.startswith("#"):
            assert "--hash=sha256:" in block, block


def test_lock_leaves_the_build_of_torch_alone() -> None:
    unwanted = re.compile(r"torch|torchvision|torchaudio|torchcodec|triton|nvidia-.*|cuda-.*")
    assert not [name for name in locked() if unwanted.fullmatch(name)]


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "explain" / "dependencies.md").read_text()
    asked = set(project()["dependencies"]).union(*project()["optional-dependencies"].values())
    explained = {normal(name) for name in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)}
    assert {normal(requirement) for requirement in asked} - explained == set()


# Import name -> distribution asked for, where the two differ.
DISTRIBUTIONS = {"ruamel": "ruamel-yaml", "pydantic_core": "pydantic"}
# Trackers are optional: imported where a recipe names them, with an error that says how to install them.
OPTIONAL_TRACKERS = {"tensorboard", "wandb", "mlflow"}


def third_party_imports() -> dict[str, set[str]]:
    """Distribution -> the rooms that import it, wherever the statement stands."""
    found: dict[str, set[str]] = {}
    package = ROOT / "src" / "burnish"
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"burnish"}:
                found.setdefault(DISTRIBUTIONS.get(top, normal(top)), set()).add(room)
    return found


def test_rooms_import_only_what_is_asked_for() -> None:
    asked = {normal(requirement) for requirement in project()["dependencies"]}
    assert set(third_party_imports()) - asked - OPTIONAL_TRACKERS == set()


def test_table_says_which_room_imports_what() -> None:
    text = (ROOT / "docs" / "explain" / "dependencies.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \| [^|]*\| ([^|]*)\|", text, re.MULTILINE))
    asked = {normal(requirement) for requirement in project()["dependencies"]}
    missing = [
        f"{name} is imported by {room}"
        for name, rooms in sorted(third_party_imports().items())
        for room in sorted(rooms)
        if name in asked and not re.search(rf"\b{room}\b", rows[name])
    ]
    assert not missing, "docs/explain/dependencies.md does not say:\n" + "\n".join(missing)
