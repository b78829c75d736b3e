from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from burnish.core.errors import ConfigError, IntegrityError, ResourceError
from burnish.registry import schema
from burnish.registry.registry import Registry

from .conftest import World

WRITER = (
    "import sys\n"
    "from pathlib import Path\n"
    "from burnish.core.types import CheckpointRef, Decision\n"
    "from burnish.registry.registry import Registry\n"
    "path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])\n"
    "registry = Registry(path)\n"
    "registry.add_run(name, name=name, folder=path.parent / name, config_digest='c', code_digest='k',\n"
    "                 data_digests={}, seed=0, base_model='m')\n"
    "for step in range(count):\n"
    "    folder = path.parent / name / str(step)\n"
    "    folder.mkdir(parents=True)\n"
    "    (folder / 'w').write_text(name)\n"
    "    digest = f'{name}-{step:04d}'\n"
    "    registry.add_checkpoint(CheckpointRef(str(step), digest, 'rl', step), name)\n"
    "    registry.record_decision(digest, {}, Decision.PROMOTE, ['ok'])\n"
    "    registry.promote(digest, by=name, reason='gate')\n"
)


def test_two_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name, "12"]) for name in ("left", "right")]
    assert [writer.wait(timeout=100) for writer in writers] == [0, 0]
    registry = Registry(path)
    changes = registry.promotions()
    assert sorted(change.digest for change in changes) == [f"{n}-{i:04d}" for n in ("left", "right") for i in range(12)]
    # Each change names the one before it: no two were made from the same state.
    assert [change.previous_digest for change in changes] == ["", *(change.digest for change in changes[:-1])]


def test_a_writer_killed_in_a_transaction_leaves_the_registry_whole(world: World, tmp_path: Path) -> None:
    world.run("r1")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from sqlalchemy import delete\n"
        "from burnish.registry.registry import Registry\n"
        "from burnish.registry.schema import RUNS\n"
        "registry = Registry(Path(sys.argv[1]))\n"
        "with registry.transaction(write=True) as connection:\n"
        "    connection.execute(delete(RUNS))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(world.registry.path)], timeout=60)
    assert killed.returncode == -9
    assert [run.run_id for run in world.registry.runs()] == ["r1"]
    world.run("r2")
    assert len(Registry(world.registry.path).runs()) == 2


def test_the_environment_chooses_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BURNISH_REGISTRY", raising=False)
    assert Registry().path == tmp_path / ".local/share/burnish/registry.sqlite"
    monkeypatch.setenv("BURNISH_REGISTRY", str(tmp_path / "mine.sqlite"))
    assert Registry().path == tmp_path / "mine.sqlite"
    assert Registry(f"sqlite:///{tmp_path}/other.sqlite").path == tmp_path / "other.sqlite"


@pytest.mark.parametrize("url", ["postgresql://me:hunter22@host/db", "sqlite://", "sqlite:///:memory:", "what://"])
def test_other_databases_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry(url)
    assert "hunter22" not in str(caught.value)
    assert "sqlite:///PATH" in caught.value.fix


def test_write_ahead_mode_is_on_and_foreign_keys_hold(world: World) -> None:
    with sqlite3.connect(world.registry.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    with world.registry.transaction(write=False) as open_connection:
        assert open_connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_an_older_registry_is_migrated_forward_with_its_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("r1")
    ran: list[int] = []

    def add_column(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN note VARCHAR NOT NULL DEFAULT 'old'")
        ran.append(1)

    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    monkeypatch.setitem(schema.MIGRATIONS, schema.SCHEMA_VERSION - 1, add_column)
    for _ in range(2):
        registry = Registry(world.registry.path)
    assert ran == [1]
    with registry.transaction(write=False) as connection:
        rows = connection.exec_driver_sql("SELECT run_id, note FROM runs").all()
    assert [tuple(row) for row in rows] == [("r1", "old")]


def test_a_registry_of_version_1_learns_to_count_openings(world: World) -> None:
    with world.registry.transaction(write=True) as connection:
        connection.exec_driver_sql("DROP TABLE final_openings")
        connection.exec_driver_sql("UPDATE meta SET value = '1'")
    registry = Registry(world.registry.path)
    assert registry.open_final_set("s", domain="toy", by="a", models=["m"]) == 0
    assert registry.open_final_set("s", domain="toy", by="b", models=["m"]) == 1


def test_a_migration_that_fails_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_half_way(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN note VARCHAR")
        raise RuntimeError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        patch.setitem(schema.MIGRATIONS, schema.SCHEMA_VERSION - 1, break_half_way)
        with pytest.raises(RuntimeError, match="bug"):
            Registry(world.registry.path)
    with Registry(world.registry.path).transaction(write=False) as connection:
        columns = [row[1] for row in connection.exec_driver_sql("PRAGMA table_info(runs)")]
    assert "note" not in columns


def test_a_newer_registry_is_refused(world: World) -> None:
    with world.registry.transaction(write=True) as connection:
        connection.exec_driver_sql("UPDATE meta SET value = '99'")
    with pytest.raises(ConfigError, match="version 99"):
        Registry(world.registry.path)


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="holds bookmarks"):
        Registry(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    connection.close()


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    path.write_bytes(b"not a database at all, but long enough to look at " * 40)
    before = path.read_bytes()
    with pytest.raises(IntegrityError) as caught:
        Registry(path)
    assert caught.value.where == str(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError) as caught:
        Registry(tmp_path / "file" / "registry.sqlite")
    assert str(tmp_path / "file") in caught.value.where
