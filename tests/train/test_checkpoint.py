"""Checkpoints: exact round trip, kill at every point, every flipped byte found, retention."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burnish.core.errors import DataError, IntegrityError, ResourceError
from burnish.train import checkpoint as module
from burnish.train.checkpoint import (
    drop_after,
    latest_checkpoint,
    latest_good,
    load_checkpoint,
    load_optimizer,
    save_checkpoint,
)
from burnish.train.optim import make_adamw


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {
            "a": torch.randn(3, 2, generator=generator),
            "b": torch.arange(4, dtype=torch.bfloat16) * step,
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(step))}},
            "param_groups": [{"betas": (0.9, 0.95)}],
        },
        "trainer": {"step": step, "seen": [1, 2, step], "best": None, "rate": 0.1 + step},
    }


def same(found: module.TrainingState, step: int) -> bool:
    want = state(step)
    return (
        found.step == step
        and found.trainer == want["trainer"]
        and found.model.keys() == want["model"].keys()
        and all(torch.equal(found.model[name], want["model"][name]) for name in want["model"])
        and found.optimizer is not None
        and torch.equal(found.optimizer["state"][0]["step"], want["optimizer"]["state"][0]["step"])
        and found.optimizer["param_groups"] == want["optimizer"]["param_groups"]
    )


def load_latest(folder: Path) -> module.TrainingState:
    path = latest_checkpoint(folder)
    assert path is not None
    return load_checkpoint(path)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_round_trip_is_exact_and_unpickled(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_good(tmp_path / "absent") is None
    path = save_checkpoint(tmp_path, 3, **state(3))
    assert path.name == "step-00000003"
    assert same(load_latest(tmp_path), 3)
    assert {p.suffix for p in path.iterdir()} == {".json", ".safetensors"}
    without = save_checkpoint(tmp_path, 4, **{**state(4), "optimizer": None})
    assert load_checkpoint(without).optimizer is None


def test_a_step_is_never_overwritten(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path, 3, **state(3))
    again = save_checkpoint(tmp_path, 3, **{**state(3), "trainer": {"second": True}})
    assert (first.name, again.name) == ("step-00000003", "step-00000003.1")
    assert same(load_checkpoint(first), 3)
    assert load_latest(tmp_path).trainer == {"second": True}


def test_retention_keeps_the_newest_and_what_latest_names(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, step, **state(step), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-00000003", "step-00000010"]
    # taken back to step 3 and on from there: 10 belongs to the past that was given up
    save_checkpoint(tmp_path, 5, **state(5), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-00000003", "step-00000005"]
    save_checkpoint(tmp_path, 6, **state(6), keep=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-00000006"]


# --- kill at any point ---


class Killed(BaseException):
    """Stands for a kill: nothing may clean up after it."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Path], None]]:
    """Raises at the n-th touch of the file system inside the folder; writes are then left half done."""
    calls = {"left": -1, "folder": Path("/nowhere")}

    def armed(path: Any) -> bool:
        if not isinstance(path, (int, str, os.PathLike)) or calls["left"] < 0:
            return False
        if not isinstance(path, int) and calls["folder"] not in Path(path).parents and Path(path) != calls["folder"]:
            return False
        calls["left"] -= 1
        return calls["left"] < 0

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            if armed(path):
                raise Killed
            return function(path, *args, **kwargs)

        return wrapped

    def half_save(tensors: Any, path: Path, **kwargs: Any) -> None:
        if armed(path):
            path.write_bytes(b"\x10\0\0\0half")
            raise Killed
        save_file(tensors, path, **kwargs)

    def half_open(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" in mode and armed(path):
            Path(path).write_bytes(b"{")
            raise Killed
        return plain_open(path, mode, *args, **kwargs)

    def half_rmtree(path: Any) -> None:
        if armed(path):
            next(iter(sorted(Path(path).iterdir()))).unlink()
            raise Killed
        rmtree(path)

    save_file, plain_open, rmtree = module.save_file, builtins.open, shutil.rmtree
    monkeypatch.setattr(module, "save_file", half_save)
    monkeypatch.setattr(builtins, "open", half_open)
    monkeypatch.setattr(module.shutil, "rmtree", half_rmtree)
    for name in ("fsync", "rename", "replace", "mkdir"):
        monkeypatch.setattr(os, name, before(getattr(os, name)))

    def arm(index: int, folder: Path) -> None:
        calls.update(left=index, folder=folder)

    yield arm
    calls["left"] = -1


def killed_at_every_point(folder: Path, kill_at: Callable[[int, Path], None], step: int) -> Iterator[int]:
    """Saves `step`, killed at the 0th, 1st, ... touch, each from the same start, until one runs through."""
    start = folder.with_name("start")
    shutil.copytree(folder, start)
    for index in range(200):
        kill_at(index, folder)
        try:
            save_checkpoint(folder, step, **state(step), keep=1)
        except Killed:
            kill_at(-1, folder)
            yield index
            shutil.rmtree(folder)
            shutil.copytree(start, folder)
        else:
            kill_at(-1, folder)
            return
    raise AssertionError("the save touches the file system without end")


def test_a_kill_anywhere_leaves_the_last_good_one_and_the_next_save_works(tmp_path: Path, kill_at: Any) -> None:
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, 1, **state(1))
    save_checkpoint(folder, 2, **state(2))
    outcomes = []
    for _ in killed_at_every_point(folder, kill_at, 3):
        found = load_latest(folder)
        assert same(found, found.step)
        good = latest_good(folder)
        assert good is not None
        assert (good.state.step, good.skipped) == (found.step, ())
        outcomes.append(found.step)
        save_checkpoint(folder, 4, **state(4))
        assert same(load_latest(folder), 4)
        assert not list(folder.glob(".tmp-*"))
    assert set(outcomes) == {2, 3}
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 15


def test_a_kill_in_the_first_save_leaves_nothing_or_the_first_one(tmp_path: Path, kill_at: Any) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    outcomes = []
    for _ in killed_at_every_point(folder, kill_at, 1):
        path = latest_checkpoint(folder)
        outcomes.append(path is not None)
        if path is not None:
            assert same(load_checkpoint(path), 1)
    assert outcomes == sorted(outcomes)
    assert {True, False} == set(outcomes)


def test_everything_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def note_fsync(descriptor: int) -> None:
        events.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(source: Any, target: Any) -> None:
        events.append("rename " + Path(target).name)
        rename(source, target)

    def note_replace(source: Any, target: Any) -> None:
        events.append("replace " + Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(os, "replace", note_replace)
    folder = tmp_path / "run"
    save_checkpoint(folder, 1, **state(1))
    files = ["model.safetensors", "optimizer.safetensors", "optimizer.json", "trainer.json", "manifest.json"]
    assert events == [
        *(f"sync {name}" for name in files),
        "sync .tmp-step-00000001",
        "rename step-00000001",
        "sync run",
        "sync .tmp-LATEST",
        "replace LATEST",
        "sync run",
    ]


# --- changed bytes ---


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(folder, step, **state(step), keep=len(steps))


def test_going_back_drops_what_came_later(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4, 6, 8)
    drop_after(tmp_path, 5)
    assert same(load_latest(tmp_path), 4)
    saved(tmp_path, 6)  # what was dropped can be made again
    assert same(load_latest(tmp_path), 6)
    drop_after(tmp_path, 6)
    assert same(load_latest(tmp_path), 6)
    drop_after(tmp_path, -1)
    assert latest_checkpoint(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    drop_after(tmp_path / "never", 3)


def test_going_back_is_mended_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for victim in ("os.rename", "os.replace", "shutil.rmtree"):
        folder = tmp_path / victim
        saved(folder, 2, 4, 6)
        with monkeypatch.context() as planted:
            planted.setattr(f"burnish.train.checkpoint.{victim}", killed)
            with pytest.raises(KeyboardInterrupt):
                drop_after(folder, 3)
        drop_after(folder, 3)
        assert same(load_latest(folder), 2)
        saved(folder, 4)
        assert same(load_latest(folder), 4)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, **state(1))
    for file in [*path.iterdir(), tmp_path / "LATEST"]:
        original = file.read_bytes()
        for position in range(0, len(original), max(1, len(original) // 60)):
            flip(file, position, bit=position % 8)
            with pytest.raises(IntegrityError) as caught:
                load_latest(tmp_path)
            assert caught.value.fix
            assert Path(caught.value.where).name in {file.name, "LATEST"}
            file.write_bytes(original)
    assert same(load_latest(tmp_path), 1)


def test_a_flipped_byte_says_what_where_and_how_to_go_on(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, **state(1))
    flip(path / "model.safetensors", -1)
    with pytest.raises(IntegrityError, match=r"model\.safetensors of checkpoint step-00000001 is not what") as caught:
        load_checkpoint(path)
    assert caught.value.where == str(path / "model.safetensors")
    assert "earlier checkpoint" in caught.value.fix
    assert len(str(caught.value).splitlines()) == 3


def test_missing_and_cut_files_are_found(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, **state(1))
    shutil.copytree(path, tmp_path / "copy")
    (path / "trainer.json").unlink()
    with pytest.raises(IntegrityError, match="missing from checkpoint"):
        load_checkpoint(path)
    with open(tmp_path / "copy" / "model.safetensors", "r+b") as file:
        file.truncate(10)
    with pytest.raises(IntegrityError, match="found 10 with"):
        load_checkpoint(tmp_path / "copy")
    with pytest.raises(IntegrityError, match="no manifest"):
        load_checkpoint(tmp_path)


def test_falling_back_says_what_it_skipped(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, **state(1))
    damaged = save_checkpoint(tmp_path, 2, **state(2))
    flip(damaged / "optimizer.safetensors", -1)
    with pytest.raises(IntegrityError):
        load_latest(tmp_path)
    good = latest_good(tmp_path)
    assert good is not None
    assert same(good.state, 1)
    assert [str(damaged / "optimizer.safetensors")] == [error.where for error in good.skipped]
    flip(tmp_path / "step-00000001" / "model.safetensors", -1)
    with pytest.raises(IntegrityError, match="none of the 2 checkpoints"):
        latest_good(tmp_path)


def test_a_lost_pointer_is_an_error_that_falling_back_survives(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, **state(1))
    save_checkpoint(tmp_path, 2, **state(2))
    (tmp_path / "LATEST").unlink()
    with pytest.raises(IntegrityError, match="LATEST is missing beside 2"):
        latest_checkpoint(tmp_path)
    good = latest_good(tmp_path)
    assert good is not None
    assert same(good.state, 2)
    assert len(good.skipped) == 1


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", 2)
    path = save_checkpoint(tmp_path, 1, **state(1))
    monkeypatch.undo()
    with pytest.raises(DataError, match="version 2 is newer"):
        load_checkpoint(path)


# --- what is saved ---


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))  # type: ignore[no-any-return]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(torch.tensor([step % 7])).square().sum().backward()
        optimizer.step()


def test_resumed_training_is_bit_equal_to_uninterrupted(tmp_path: Path) -> None:
    through = Tied()
    train(through, make_adamw(through, lr=1e-2, weight_decay=0.1), range(6))
    model = Tied()
    optimizer = make_adamw(model, lr=1e-2, weight_decay=0.1)
    train(model, optimizer, range(4))
    save_checkpoint(tmp_path, 4, model=model.state_dict(), optimizer=optimizer.state_dict(), trainer={})
    resumed = Tied()
    found = load_latest(tmp_path)
    assert found.optimizer is not None
    resumed.load_state_dict(found.model)
    again = make_adamw(resumed, lr=1e-2, weight_decay=0.1)
    load_optimizer(again, found.optimizer)
    train(resumed, again, range(4, 6))
    assert torch.equal(resumed.embed.weight, through.embed.weight)


def test_tied_weights_are_stored_once_and_views_are_cut_out(tmp_path: Path) -> None:
    table = torch.arange(20_000.0).reshape(100, 200)
    tensors = {"embed": table, "head": table, "row": table[3], "column": table[:, 5], "empty": torch.empty(0)}
    path = save_checkpoint(tmp_path, 1, model=tensors, optimizer=None, trainer={})
    assert (path / "model.safetensors").stat().st_size < 1.1 * table.nbytes
    found = load_checkpoint(path).model
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert found["head"].data_ptr() == found["embed"].data_ptr()


def test_an_optimiser_of_another_model_is_refused() -> None:
    first, second = Tied(), nn.Linear(3, 3)
    saved = make_adamw(first, lr=1e-3).state_dict()
    with pytest.raises(IntegrityError, match="other parameters"):
        load_optimizer(make_adamw(second, lr=1e-3), saved)


@pytest.mark.parametrize("trainer", [{"a": (1, 2)}, {1: "a"}, {"a": float("nan")}, {"a": object()}])
def test_a_trainer_state_that_json_would_change_is_refused(tmp_path: Path, trainer: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match="trainer's state"):
        save_checkpoint(tmp_path, 1, **{**state(1), "trainer": trainer})
    assert not list(tmp_path.iterdir())


def test_an_optimizer_state_that_needs_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without pickle"):
        save_checkpoint(tmp_path, 1, **{**state(1), "optimizer": {"state": {"x": object()}}})


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.ENOSPC, "free disk space"), (errno.EACCES, "make the folder writable")]
)
def test_a_full_or_closed_disk_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fix: str
) -> None:
    save_checkpoint(tmp_path, 1, **state(1))

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(ResourceError, match="checkpoint of step 2 cannot be written") as caught:
            save_checkpoint(tmp_path, 2, **state(2))
    assert caught.value.fix.startswith(fix)
    assert same(load_latest(tmp_path), 1)
