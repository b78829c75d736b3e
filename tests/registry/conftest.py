from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from burnish.core.types import CheckpointRef, Decision
from burnish.observe.run_folder import RunFolder
from burnish.registry.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry.sqlite")


def digest_of(name: str) -> str:
    """A digest that looks like a real one; the same name gives the same."""
    return hashlib.sha256(name.encode()).hexdigest()


class World:
    """A registry with run folders and checkpoints on disk, made in a few words."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry = registry
        self.folder = folder

    def run(self, run_id: str) -> Path:
        path = self.folder / "runs" / run_id
        RunFolder.create(path, {"name": run_id}, run_id=run_id, name=run_id).close()
        self.register_run(run_id, path)
        return path

    def register_run(
        self, run_id: str, path: Path, config_digest: str = "c0", data: str = "d0", code: str = "git:abc"
    ) -> None:
        self.registry.add_run(
            run_id,
            name=f"demo {run_id}",
            folder=path,
            config_digest=config_digest,
            code_digest=code,
            data_digests={"train": data},
            seed=1,
            base_model="smol",
        )

    def checkpoint(self, run_id: str, name: str, parent: str = "", stage: str = "sft", step: int = 1) -> str:
        digest = digest_of(name)
        path = self.registry.run(run_id).folder / "checkpoints" / name
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(name.encode() * 100)
        (path / "config.json").write_text("{}")
        ref = CheckpointRef(f"checkpoints/{name}", digest, stage, step, parent)
        self.registry.add_checkpoint(ref, run_id, {"dev_pass_rate": 0.5})
        return digest

    def judge(self, digest: str, decision: Decision) -> None:
        self.registry.record_decision(digest, {"lower": 0.01}, decision, [f"it says {decision.value}"])

    def promoted(self, run_id: str, name: str, parent: str = "") -> str:
        digest = self.checkpoint(run_id, name, parent)
        self.judge(digest, Decision.PROMOTE)
        self.registry.promote(digest, by="test", reason="gate promoted")
        return digest


@pytest.fixture
def world(registry: Registry, tmp_path: Path) -> World:
    return World(registry, tmp_path)
