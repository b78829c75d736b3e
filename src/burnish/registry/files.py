"""Whether the files of a checkpoint are still the files that were registered.

Leaves out what the files mean; the digest of the weights themselves is the trainer's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burnish.core.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What a comparison found: names relative to `folder`. `added` files are reported and are no fault."""

    folder: Path
    num_checked: int
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every registered file is there and unchanged, and there was at least one."""
        return self.num_checked > 0 and not self.missing and not self.changed

    def require_ok(self) -> None:
        """Raises: IntegrityError naming the first fault."""
        if self.ok:
            return
        if self.missing or self.changed:
            fault = "is missing" if self.missing else "is not the file that was registered"
            name = (self.missing or self.changed)[0]
            others = len(self.missing) + len(self.changed) - 1
            what = f"{name} {fault}" + (f", and {others} more files are at fault" if others else "")
            raise IntegrityError(
                what, where=str(self.folder / name), fix="restore it from a copy, or use another checkpoint"
            )
        raise IntegrityError(
            "no file of this checkpoint was registered, so nothing can be checked",
            where=str(self.folder),
            fix="register the checkpoint with its folder",
        )


def hash_files(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below a folder.

    Raises: IntegrityError where the folder is absent, is empty or holds a link, which could point anywhere.
    """
    digests = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            raise IntegrityError("a checkpoint holds a link", where=str(path), fix="put the file itself there")
        if path.is_file():
            digests[path.relative_to(folder).as_posix()] = hash_file(path)
    if not digests:
        raise IntegrityError("a checkpoint without files", where=str(folder), fix="register it once it is saved")
    return digests


def hash_file(path: Path) -> str:
    """SHA-256 of one file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, registered: Mapping[str, str]) -> FileCheck:
    """Compares a folder with what was registered of it."""
    missing, changed = [], []
    for name, digest in registered.items():
        path = folder / name
        if not path.is_file():
            missing.append(name)
        elif hash_file(path) != digest:
            changed.append(name)
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    added = sorted(present - set(registered))
    return FileCheck(folder, len(registered), tuple(missing), tuple(changed), tuple(added))
