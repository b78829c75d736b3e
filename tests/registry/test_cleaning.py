from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from burnish.core.errors import ResourceError
from burnish.core.types import CheckpointRef, Decision
from burnish.observe.run_folder import RunFolder, hold
from burnish.registry import cleaning
from burnish.registry.cleaning import CleanPlan, clean
from burnish.registry.records import RunStatus

from .conftest import World, digest_of


def deletable(plan: CleanPlan) -> set[str]:
    return {item.path.name for item in plan.delete}


def reasons(plan: CleanPlan) -> dict[str, str]:
    return {item.path.name: item.why for item in plan.keep}


def finished_run(world: World) -> Path:
    path = world.run("r1")
    parent = world.checkpoint("r1", "early")
    world.promoted("r1", "live", parent)
    judged = world.checkpoint("r1", "judged", parent)
    world.judge(judged, Decision.PROMOTE)
    rejected = world.checkpoint("r1", "rejected", parent)
    world.judge(rejected, Decision.PROMOTE)
    world.judge(rejected, Decision.REJECT)
    world.checkpoint("r1", "last", parent)
    world.registry.finish_run("r1", RunStatus.FINISHED)
    return path


def test_a_plan_deletes_nothing_and_counts_bytes(world: World) -> None:
    path = finished_run(world)
    plan = clean(world.registry)
    assert deletable(plan) == {"early", "rejected"}
    assert plan.num_bytes == sum(len(name) * 100 + 2 for name in ("early", "rejected"))
    assert reasons(plan) == {
        "r1": "holds the record of a finished run",
        "live": "promoted in channel 'default'",
        "judged": "its gate said promote",
        "last": "the last of its run",
    }
    assert len(list((path / "checkpoints").iterdir())) == 5


def test_applied_the_files_go_and_the_history_stays(world: World) -> None:
    path = finished_run(world)
    plan = clean(world.registry)
    assert clean(world.registry, apply=True) == plan
    assert sorted(item.name for item in (path / "checkpoints").iterdir()) == ["judged", "last", "live"]
    early = world.registry.checkpoint(digest_of("early"))
    assert early.deleted_utc is not None
    assert [e.checkpoint.ref.digest for e in world.registry.lineage(digest_of("live"))] == [
        digest_of("early"),
        digest_of("live"),
    ]
    assert clean(world.registry).delete == ()


def test_what_was_rolled_back_stays_a_rollback_point(world: World) -> None:
    world.run("r1")
    for name in ("a", "b"):
        world.promoted("r1", name)
    world.checkpoint("r1", "c")
    world.registry.rollback(by="me", reason="x")
    assert deletable(clean(world.registry)) == set()


def test_a_run_in_progress_loses_nothing(world: World) -> None:
    path = world.run("r1")
    for name in ("a", "b"):
        world.checkpoint("r1", name)
    assert deletable(clean(world.registry)) == {"a"}
    with RunFolder.resume(path):
        assert deletable(clean(world.registry)) == set()


def test_an_unfinished_run_that_could_go_on_loses_nothing(world: World) -> None:
    path = world.run("r1")
    for name in ("a", "b"):
        world.checkpoint("r1", name)
    (path / "state.json").write_text("{}")
    world.registry.finish_run("r1", RunStatus.INTERRUPTED, "ctrl-c")
    plan = clean(world.registry, apply=True)
    assert plan.delete == ()
    assert reasons(plan) == {
        "r1": "can be resumed; where it need not, remove its folder",
        "a": "its run is not finished",
        "b": "its run is not finished",
    }
    world.registry.finish_run("r1", RunStatus.FINISHED)
    assert deletable(clean(world.registry)) == {"a"}


def test_state_of_training_alone_is_something_to_go_on_from(world: World) -> None:
    path = world.run("r1")
    state = path / "checkpoints" / "sft" / "state" / "step-00000004"
    state.mkdir(parents=True)
    world.registry.finish_run("r1", RunStatus.FAILED, "full disk")
    assert clean(world.registry, apply=True).delete == ()
    assert state.is_dir()


def test_a_run_resumed_after_the_plan_was_made_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished_run(world)
    resumed = []

    def hold_late(folder: Path) -> FileLock:
        resumed.append(RunFolder.resume(folder))
        return hold(folder)

    monkeypatch.setattr(cleaning, "hold", hold_late)
    assert clean(world.registry, apply=True).delete == ()
    assert len(list((path / "checkpoints").iterdir())) == 5
    resumed[0].close()


def test_while_it_deletes_the_run_cannot_be_resumed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished_run(world)
    seen = []

    def rmtree(folder: Path) -> None:
        with pytest.raises(ResourceError, match="another run is using the folder"):
            RunFolder.resume(path)
        seen.append(folder.name)

    monkeypatch.setattr(cleaning.shutil, "rmtree", rmtree)
    clean(world.registry, apply=True)
    assert sorted(seen) == ["early", "rejected"]
    RunFolder.resume(path).close()


def test_a_failed_run_without_checkpoints_goes_whole(world: World) -> None:
    path = world.run("r1")
    world.registry.finish_run("r1", RunStatus.FAILED, "nan")
    plan = clean(world.registry, apply=True)
    assert [(item.kind, item.path) for item in plan.delete] == [("run", path)]
    assert not path.exists()
    assert world.registry.run("r1").deleted_utc is not None


def test_a_failed_run_with_a_checkpoint_keeps_it(world: World) -> None:
    world.run("r1")
    world.checkpoint("r1", "only")
    world.registry.finish_run("r1", RunStatus.FAILED, "nan")
    assert reasons(clean(world.registry)) == {"r1": "holds checkpoints", "only": "the last of its run"}


def test_only_what_lies_in_the_runs_own_folder_may_go(world: World, tmp_path: Path) -> None:
    world.run("r1")
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "w").write_text("x")
    world.registry.add_checkpoint(CheckpointRef(str(outside), digest_of("p"), "base", 0), "r1")
    (world.registry.run("r1").folder / "checkpoints" / "link").symlink_to(outside)
    ref = CheckpointRef("checkpoints/link", digest_of("l"), "sft", 1)
    world.registry.add_checkpoint(ref, "r1", files={"w": "0" * 64})
    world.checkpoint("r1", "last")
    plan = clean(world.registry, apply=True)
    assert plan.delete == ()
    assert reasons(plan)["precious"] == reasons(plan)["link"] == "not inside its run's folder"
    assert (outside / "w").exists()


def test_a_folder_that_is_now_another_runs_is_left_alone(world: World) -> None:
    path = world.run("r1")
    world.registry.finish_run("r1", RunStatus.FAILED)
    (path / "run.json").write_text((path / "run.json").read_text().replace("r1", "r2"))
    assert reasons(clean(world.registry)) == {"r1": "now holds run r2"}


def test_a_folder_shared_by_two_rows_stays_if_either_must(world: World) -> None:
    world.run("r1")
    digest = world.promoted("r1", "a")
    again = CheckpointRef("checkpoints/a", digest_of("a again"), "sft", 1)
    world.registry.add_checkpoint(again, "r1")
    world.checkpoint("r1", "last", digest)
    assert deletable(clean(world.registry)) == set()


def test_files_left_by_a_crash_while_cleaning_are_listed_again(world: World) -> None:
    finished_run(world)
    with world.registry.transaction(write=True) as connection:
        connection.exec_driver_sql(f"UPDATE checkpoints SET deleted_utc='x' WHERE digest='{digest_of('early')}'")
    assert deletable(clean(world.registry, apply=True)) == {"early", "rejected"}
    assert world.registry.checkpoint(digest_of("early")).deleted_utc == "x"
