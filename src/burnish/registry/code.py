"""Which code a run was made with.

Leaves out the versions of other packages, which the lock file pins.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import burnish

_GIT_S = 30.0  # a large checkout on a cold disk


def code_digest(package: Path | None = None) -> str:
    """A name for the source of `package` (Burnish itself by default) that changes whenever the source does.

    In a git checkout that tracks the package: `git:<commit>`, and `git:<commit>+dirty:<source hash>` with
    uncommitted changes in it. Elsewhere `burnish-<version>:<source hash>`.
    """
    package = package or Path(burnish.__file__).parent
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    # A virtual environment may lie inside somebody's checkout without being part of it.
    tracked = commit is not None and _git(package, "ls-files", "--error-unmatch", "__init__.py") is not None
    status = _git(package, "status", "--porcelain", "--", ".") if tracked else None
    if status is None:
        return f"burnish-{burnish.__version__}:{source_hash(package)}"
    return f"git:{commit}+dirty:{source_hash(package)}" if status else f"git:{commit}"


def short_code(digest: str) -> str:
    """A code digest for people to read: eight digits of its commit, and what follows."""
    return re.sub(r"(?<=^git:)([0-9a-f]{8})[0-9a-f]*", r"\1", digest)


def source_hash(package: Path | None = None) -> str:
    """Twelve hex digits over the names and bytes of all files of a package (Burnish itself by default) but
    compiled ones."""
    package = package or Path(burnish.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name, content = str(path.relative_to(package)).encode(), path.read_bytes()
            digest.update(b"%d:%s%d:" % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:12]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it refuses or is not installed."""
    # A hook's GIT_DIR would make git speak of another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
