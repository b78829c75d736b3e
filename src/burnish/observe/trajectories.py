"""Where sampled trajectories are kept: one JSON Lines file a step, and an index of what is whole.

    trajectories/index.jsonl                       one line a finished file: stage, step, checksum, rows
    trajectories/<stage>/step-000012.<sha>.jsonl   the rows, exactly as `core.codec` writes them

A file counts once the index names it, so a crash leaves either the whole step or nothing of it. Leaves out
compression and search by content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.core.codec import dumps, loads
from burnish.core.errors import DataError, IntegrityError
from burnish.core.types import Trajectory
from burnish.observe.disk import atomic_write, writing

_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One finished file. `ids` and `offsets` [N]: each trajectory's id and its first byte in the file."""

    stage: str
    step: int
    file: str
    sha256: str
    num_bytes: int
    ids: tuple[str, ...]
    offsets: tuple[int, ...]


class TrajectoryWriter:
    """Writes the trajectories of a step; writing a step again replaces it."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def write(self, stage: str, step: int, trajectories: Sequence[Trajectory]) -> IndexRow:
        """Keeps these trajectories, in this order; durable once this returns.

        Raises: DataError for a stage name that cannot name a folder; ResourceError where the disk refuses.
        """
        if not _STAGE.fullmatch(stage):
            raise DataError(
                f"the stage name {stage!r} cannot name a folder",
                where=str(self.folder),
                fix="use letters, digits, dots, dashes and underscores",
            )
        # A lone surrogate in a model's text becomes \udXXX, which is also how JSON writes it.
        lines = [dumps(item).encode("utf-8", "backslashreplace") + b"\n" for item in trajectories]
        content = b"".join(lines)
        offsets = [0]
        for line in lines[:-1]:
            offsets.append(offsets[-1] + len(line))
        sha256 = hashlib.sha256(content).hexdigest()
        file = f"{stage}/step-{step:06d}.{sha256[:8]}.jsonl"
        ids = tuple(item.id for item in trajectories)
        row = IndexRow(stage, step, file, sha256, len(content), ids, tuple(offsets[: len(lines)]))
        with writing(self.folder / stage):
            (self.folder / stage).mkdir(parents=True, exist_ok=True)
        replaced = read_index(self.folder).get((stage, step))
        atomic_write(self.folder / file, content)
        self._append_to_index(row)
        if replaced is not None and replaced.file != file:
            (self.folder / replaced.file).unlink(missing_ok=True)
        return row

    def _append_to_index(self, row: IndexRow) -> None:
        path = self.folder / "index.jsonl"
        with writing(path), open(path, "a+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            if end and file.read(1) != b"\n":
                file.truncate(_whole_bytes(path.read_bytes()))  # a line cut short names no finished file
            file.write(dumps(row).encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())


class TrajectoryReader:
    """Reads what `TrajectoryWriter` wrote, also while it is writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.index = read_index(self.folder)

    def steps(self, stage: str) -> list[int]:
        """Steps kept for a stage, in order."""
        return sorted(step for name, step in self.index if name == stage)

    def stages(self) -> list[str]:
        """Stages with trajectories, as first written."""
        return list(dict.fromkeys(stage for stage, _ in self.index))

    def read(self, stage: str, step: int) -> list[Trajectory]:
        """The trajectories of a step, bit for bit as written.

        Raises: DataError where nothing is kept for the step; IntegrityError where the file has changed.
        """
        row = self.index.get((stage, step))
        if row is None:
            raise DataError(
                f"no trajectories of stage {stage!r}, step {step}",
                where=str(self.folder),
                fix=f"choose one of the stages {self.stages()} and of the steps {self.steps(stage)}",
            )
        path = self.folder / row.file
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content).hexdigest() != row.sha256:
            raise IntegrityError(
                f"{len(content)} bytes do not have the checksum of the {row.num_bytes} once written",
                where=str(path),
                fix="restore the file from a copy, or run the stage again",
            )
        lines = content.split(b"\n")[:-1]
        return [loads(Trajectory, line.decode("utf-8"), where=f"{path}:{n}") for n, line in enumerate(lines, 1)]

    def find(self, trajectory_id: str) -> Trajectory:
        """The latest trajectory with this id, read alone.

        Raises: DataError where there is none.
        """
        for row in reversed(self.index.values()):
            if trajectory_id in row.ids:
                path = self.folder / row.file
                with open(path, "rb") as file:
                    file.seek(row.offsets[row.ids.index(trajectory_id)])
                    return loads(Trajectory, file.readline().decode("utf-8"), where=str(path))
        raise DataError(f"no trajectory {trajectory_id!r}", where=str(self.folder), fix="give an id from the report")

    def __iter__(self) -> Iterator[Trajectory]:
        """Every trajectory, stage by stage as first written, step by step."""
        for stage in self.stages():
            for step in self.steps(stage):
                yield from self.read(stage, step)


def read_index(folder: Path) -> dict[tuple[str, int], IndexRow]:
    """What is kept, by (stage, step). A later line replaces an earlier one; a torn last line does not count.

    Raises: IntegrityError where a whole line is damaged.
    """
    path = Path(folder) / "index.jsonl"
    content = path.read_bytes() if path.exists() else b""
    rows: dict[tuple[str, int], IndexRow] = {}
    for number, line in enumerate(content[: _whole_bytes(content)].split(b"\n")[:-1], start=1):
        where = f"{path}:{number}"
        try:
            json.loads(line)
        except ValueError:
            raise IntegrityError("not JSON", where=where, fix="restore the file from a copy") from None
        row = loads(IndexRow, line.decode("utf-8"), where=where)
        rows[row.stage, row.step] = row
    return rows


def _whole_bytes(content: bytes) -> int:
    return content.rfind(b"\n") + 1
