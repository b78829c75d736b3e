"""Writing so that a crash leaves the old file or the new one, and a full or closed disk is said plainly.

Leaves out object stores and network locks.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from burnish.core.errors import ResourceError

_FIXES = {
    errno.EROFS: "choose a folder on a file system that can be written",
    errno.EACCES: "choose another folder, or give yourself write permission on this one",
    errno.EPERM: "choose another folder, or give yourself write permission on this one",
    errno.ENOSPC: "free some disk space, then continue with --resume",
    errno.EDQUOT: "free some of your disk quota, then continue with --resume",
    errno.ENOTDIR: "choose another folder: part of this path is a file",
    errno.EEXIST: "choose another folder: a file is in its place",
    errno.EISDIR: "choose another path: a folder is in its place",
    errno.ENAMETOOLONG: "choose a shorter path",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` inside into a `ResourceError` about `path`.

    Raises: ResourceError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        fix = _FIXES.get(error.errno or 0, "choose another folder")
        raise ResourceError(f"cannot write: {reason.lower()}", where=str(path), fix=fix) from error


def atomic_write(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing: temporary file, fsync, rename, fsync of the folder.

    Raises: ResourceError where the folder cannot be written; the old file is then untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def fsync_folder(folder: Path) -> None:
    """Makes names created or renamed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(path: Path) -> int:
    """Bytes this user may still write at `path`, which need not exist yet."""
    path = Path(path).absolute()
    while not path.is_dir():
        path = path.parent
    return shutil.disk_usage(path).free


def require_free(path: Path, num_bytes: int, *, purpose: str) -> None:
    """Checks that the disk has room before anything is written.

    Raises: ResourceError naming what is needed, what is free, and for what.
    """
    free = free_bytes(path)
    if free < num_bytes:
        raise ResourceError(
            f"{purpose} needs {format_bytes(num_bytes)} of disk, and {format_bytes(free)} are free",
            where=str(path),
            fix=f"free {format_bytes(num_bytes - free)} there, or choose a folder on another disk",
        )


def format_bytes(num_bytes: float) -> str:
    """A size for people, in binary units: '1.5 GiB'."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} bytes" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def folder_bytes(folder: Path) -> int:
    """Sum of the sizes of the files below a folder; links are not followed."""
    total = 0
    for root, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(root, name)).st_size for name in names)
    return total
