"""Training checkpoints that survive a kill at any point, and never load changed bytes.

    FOLDER/
      LATEST                     name and manifest hash of the checkpoint that training continues from
      step-00000020/
        manifest.json            size and SHA-256 of every other file, and its own
        model.safetensors        weights; tied ones once
        optimizer.safetensors    tensors of the optimiser's state
        optimizer.json           the rest of that state
        trainer.json             counters and whatever else the loop keeps, as plain JSON
      .tmp-...                   what a killed save left; removed by the next save

A save writes and syncs everything in a temporary folder, renames it, syncs the parent, and only then moves
`LATEST`, in the same manner. Old checkpoints go last. Nothing is pickled. Leaves out sharded states, remote
storage, and any lock: one writer a folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.core.errors import DataError, IntegrityError, ResourceError

LATEST = "LATEST"
MANIFEST = "manifest.json"
VERSION = 1
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_TEMPORARY = ".tmp-"
_RESUME = "resume from an earlier checkpoint, or restore this one from a copy"


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """What a checkpoint holds; tied weights share memory again. `optimizer` is None where none was saved."""

    path: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    trainer: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class LatestGood:
    """The newest checkpoint that can be loaded, and what had to be skipped to get there, newest first."""

    state: TrainingState
    skipped: tuple[IntegrityError, ...]


# --- save ---


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Any] | None,
    trainer: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write a checkpoint, make it `LATEST`, and keep the newest `keep` ones; returns its folder.

    `optimizer` is a torch optimiser's `state_dict()`. A step that is already there is never overwritten: a
    suffix is added (`step-00000020.1`).
    Raises: ResourceError where the disk is full or not writable; ValueError for a state that JSON would
    change, or `keep` below 1.
    """
    if keep < 1 or step < 0:
        raise ValueError(f"keep={keep} is below 1, or step={step} below 0")
    trainer_json = _exact_json(trainer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        final = _free_name(folder, step)
        temporary = folder / (_TEMPORARY + final.name)
        temporary.mkdir()
        _save_tensors(temporary / "model.safetensors", model)
        if optimizer is not None:
            plain, tensors = _split_tensors(optimizer)
            _save_tensors(temporary / "optimizer.safetensors", tensors)
            _write(temporary / "optimizer.json", json.dumps(plain, allow_nan=False))
        _write(temporary / "trainer.json", trainer_json)
        manifest_hash = _write_manifest(temporary, step)
        _sync(temporary)
        os.rename(temporary, final)
        _sync(folder)
        _write(folder / (_TEMPORARY + LATEST), f"{final.name} {manifest_hash}\n")
        os.replace(folder / (_TEMPORARY + LATEST), folder / LATEST)
        _sync(folder)
        _retire(folder, final, keep)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ResourceError(
            f"the checkpoint of step {step} cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            fix="free disk space and resume" if full else "make the folder writable, or choose another one",
        ) from error
    return final


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors that are the very same memory are stored once; the others are named in the file's metadata."""
    owners: dict[tuple[Any, ...], str] = {}
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in owners:
            tied[name] = owners[key]
            continue
        owners[key] = name
        # A view of a larger tensor is copied out: the file holds what was asked for and nothing around it.
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        stored[name] = tensor if whole else tensor.contiguous().clone()
    save_file(stored, path, metadata={"tied": json.dumps(tied, sort_keys=True)})
    _sync(path)


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_manifest(folder: Path, step: int) -> str:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    body = {"schema": "TrainingCheckpoint", "version": VERSION, "step": step, "files": files}
    text = _manifest_text(body)
    _write(folder / MANIFEST, text)
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest_text(body: dict[str, Any]) -> str:
    """The one way a manifest with this body is written, its own hash included."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, sort_keys=True, indent=1) + "\n"


def _sync(path: Path) -> None:
    """A file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _free_name(folder: Path, step: int) -> Path:
    name, copy = f"step-{step:08d}", 0
    while (folder / name).exists():
        copy += 1
        name = f"step-{step:08d}.{copy}"
    return folder / name


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(_TEMPORARY + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _retire(folder: Path, current: Path, keep: int) -> None:
    """Remove all but the newest; renamed first, so that half of one is never taken for a checkpoint."""
    for path in _checkpoints(folder, current)[keep:]:
        _remove(path)


def _remove(path: Path) -> None:
    doomed = path.parent / (_TEMPORARY + path.name)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None  # `_checkpoints` lists no others
    return int(match[1])


def drop_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after a step and point `LATEST` at the newest that is left, if any.

    For training that goes on from `step`: what it once made later, it makes again. Does not read `LATEST`, so that
    a kill in here is mended by calling it again.
    """
    found = _checkpoints(folder)
    kept = [path for path in found if _step_of(path) <= step]
    if kept:
        _write(folder / (_TEMPORARY + LATEST), f"{kept[0].name} {_sha256(kept[0] / MANIFEST)}\n")
        os.replace(folder / (_TEMPORARY + LATEST), folder / LATEST)
    else:
        (folder / LATEST).unlink(missing_ok=True)
    for path in found:
        if path not in kept:
            _remove(path)


# --- load ---


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `LATEST` names, or None where nothing was saved yet.

    Raises: IntegrityError where `LATEST` is damaged, names what is not there, or is missing beside several.
    """
    pointer = folder / LATEST
    if not pointer.exists():
        found = _checkpoints(folder)
        if len(found) > 1:
            raise IntegrityError(
                f"{LATEST} is missing beside {len(found)} checkpoints", where=str(pointer), fix=_RESUME
            )
        # A first save that was killed between its two renames leaves one finished checkpoint and no LATEST.
        return found[0] if found else None
    name, _, manifest_hash = pointer.read_bytes().decode("utf-8", "replace").removesuffix("\n").partition(" ")
    path = folder / name
    if not _NAME.fullmatch(name) or not (path / MANIFEST).is_file() or _sha256(path / MANIFEST) != manifest_hash:
        raise IntegrityError(
            f"{LATEST} names {name!r}, which is not there as it was written", where=str(pointer), fix=_RESUME
        )
    return path


def load_checkpoint(path: Path) -> TrainingState:
    """Everything that was saved in this checkpoint folder, after its checksums were verified.

    Raises: IntegrityError for any byte that is not as written; DataError for a newer version.
    """
    body = _verified_manifest(path)
    for name, want in body["files"].items():
        file = path / name
        if not file.is_file():
            raise IntegrityError(f"{name} is missing from checkpoint {path.name}", where=str(file), fix=_RESUME)
        found = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        if found != want:
            expected = f"expected {want['bytes']} bytes with SHA-256 {want['sha256'][:12]}"
            raise IntegrityError(
                f"{name} of checkpoint {path.name} is not what was written ({expected}, "
                f"found {found['bytes']} with {found['sha256'][:12]})",
                where=str(file),
                fix=_RESUME,
            )
    optimizer = None
    if "optimizer.json" in body["files"]:
        plain = json.loads((path / "optimizer.json").read_text(encoding="utf-8"))
        optimizer = _join_tensors(plain, _load_tensors(path / "optimizer.safetensors"))
    trainer = json.loads((path / "trainer.json").read_text(encoding="utf-8"))
    return TrainingState(path, body["step"], _load_tensors(path / "model.safetensors"), optimizer, trainer)


def latest_good(folder: Path) -> LatestGood | None:
    """The newest checkpoint that loads, falling back past damaged ones; `skipped` says which and why.

    For a caller that was asked to fall back; otherwise use `latest_checkpoint` and `load_checkpoint`.
    None where nothing was saved yet.
    Raises: IntegrityError where there are checkpoints but none can be loaded.
    """
    skipped: list[IntegrityError] = []
    latest = None
    try:
        latest = latest_checkpoint(folder)
    except IntegrityError as error:
        skipped.append(error)
    candidates = _checkpoints(folder, latest)
    if not candidates and not skipped:
        return None
    for path in candidates:
        try:
            return LatestGood(load_checkpoint(path), tuple(skipped))
        except IntegrityError as error:
            skipped.append(error)
    raise IntegrityError(
        f"none of the {len(candidates)} checkpoints can be loaded; the first fault: {skipped[0].what}",
        where=str(folder),
        fix="start the stage again in a new run folder",
    )


def _checkpoints(folder: Path, current: Path | None = None) -> list[Path]:
    """Finished checkpoint folders, newest first, from `current` on.

    Those beyond `current` come last: training was taken back behind them, or a save was killed before they
    counted.
    """
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            found[path] = (int(match[1]), int(match[2] or 0))
    newest = found.get(current, (math.inf, 0)) if current is not None else (math.inf, 0)
    return sorted(found, key=lambda path: (found[path] <= newest, found[path]), reverse=True)


def _verified_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise IntegrityError(f"{path.name} has no manifest, so it is no checkpoint", where=str(file), fix=_RESUME)
    text = file.read_bytes().decode("utf-8", "replace")
    try:
        body = json.loads(text)
        del body["sha256"]
        intact = _manifest_text(body) == text
    except (json.JSONDecodeError, TypeError, KeyError):
        intact = False
    if not intact:
        raise IntegrityError(
            f"the manifest of checkpoint {path.name} is not what was written", where=str(file), fix=_RESUME
        )
    if body["version"] > VERSION:
        raise DataError(
            f"checkpoint version {body['version']} is newer than this Burnish reads ({VERSION})",
            where=str(file),
            fix="update Burnish",
        )
    return dict(body)


def _load_tensors(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(path)
    with safe_open(path, framework="pt") as file:
        tied = json.loads(file.metadata()["tied"])
    return tensors | {name: tensors[owner] for name, owner in tied.items()}


# --- nested states as JSON and tensors ---


def _split_tensors(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A nested state as JSON that remembers tuples and keys that are not text, and its tensors by path."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            tensors[path] = value
            return {"tensor": path}
        if isinstance(value, Mapping):
            return {"dict": [[key, walk(item, f"{path}.{key}" if path else str(key))] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            items = [walk(item, f"{path}.{i}") for i, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise ValueError(f"optimizer state {path} is a {type(value).__name__}, which cannot be saved without pickle")

    return walk(state, ""), tensors


def _join_tensors(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `_split_tensors` took apart."""
    if isinstance(plain, list):
        return [_join_tensors(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "tuple":
        return tuple(_join_tensors(item, tensors) for item in value)
    return {key: _join_tensors(item, tensors) for key, item in value}


def _exact_json(state: Mapping[str, Any]) -> str:
    """Raises: ValueError where reading the JSON back would not give the same state."""
    try:
        text = json.dumps(dict(state), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the trainer's state is not plain JSON: {error}") from None
    if json.loads(text) != dict(state):
        raise ValueError("the trainer's state would change on disk: use lists and text keys only")
    return text


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put a saved `state_dict()` back, checking that it belongs to the same parameters in the same order.

    Raises: IntegrityError where parameter names differ.
    """
    current = [group.get("param_names") for group in optimizer.state_dict()["param_groups"]]
    saved = [group.get("param_names") for group in state["param_groups"]]
    if current != saved:
        raise IntegrityError(
            f"the saved optimiser state is of other parameters ({sum(map(len, filter(None, saved)))} names) "
            f"than this model's ({sum(map(len, filter(None, current)))})",
            where="optimizer.json",
            fix="resume with the model and the LoRA settings that the run began with",
        )
    optimizer.load_state_dict(dict(state))
