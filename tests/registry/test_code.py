from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import burnish
from burnish.registry.code import code_digest, source_hash


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "checkout" / "src" / "pkg"
    path.mkdir(parents=True)
    (path / "__init__.py").write_text("x = 1\n")
    return path


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def test_outside_git_it_is_version_and_source(package: Path) -> None:
    first = code_digest(package)
    assert first == f"burnish-{burnish.__version__}:{source_hash(package)}"
    (package / "__init__.py").write_text("x = 2\n")
    assert code_digest(package) != first


def test_compiled_files_do_not_count_but_names_do(package: Path) -> None:
    first = source_hash(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"junk")
    assert source_hash(package) == first
    (package / "__init__.py").rename(package / "other.py")
    assert source_hash(package) != first


def test_in_a_clean_checkout_it_is_the_commit_and_says_when_dirty(package: Path) -> None:
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "first")
    clean = f"git:{git(package, 'rev-parse', 'HEAD')}"
    assert code_digest(package) == clean
    (package.parent / "notes.txt").write_text("outside the package")
    assert code_digest(package) == clean
    (package / "__init__.py").write_text("x = 2\n")
    dirty = code_digest(package)
    assert dirty == f"{clean}+dirty:{source_hash(package)}"
    (package / "__init__.py").write_text("x = 3\n")
    assert code_digest(package) not in (clean, dirty)


def test_an_installed_package_inside_someones_checkout_is_not_that_checkout(package: Path) -> None:
    root = package.parent.parent
    (root / "README").write_text("theirs")
    (root / ".gitignore").write_text("src/\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "theirs")
    assert code_digest(package).startswith("burnish-")


def test_burnish_itself_has_one() -> None:
    assert code_digest().partition(":")[0] in ("git", f"burnish-{burnish.__version__}")
