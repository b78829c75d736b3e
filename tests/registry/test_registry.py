from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from burnish.core.errors import ConfigError, DataError, IntegrityError
from burnish.core.types import CheckpointRef, Decision
from burnish.registry.records import RunStatus
from burnish.registry.registry import Registry

from .conftest import World, digest_of


def test_everything_written_comes_back_from_a_registry_opened_anew(world: World) -> None:
    world.run("r1")
    base = world.checkpoint("r1", "base", stage="base", step=0)
    child = world.checkpoint("r1", "child", base, step=20)
    world.registry.add_evaluation(
        child,
        suite="tool_call",
        split="gate",
        num_tasks=200,
        num_undecided=1,
        results={"pass_rate": 0.5, "by": {"a": 1}},
    )
    world.judge(child, Decision.REJECT)
    world.registry.finish_run("r1", RunStatus.FINISHED, "no gain")

    again = Registry(world.registry.path)
    run = again.run("r1")
    assert (run.status, run.reason, run.seed, run.data_digests) == (
        RunStatus.FINISHED,
        "no gain",
        1,
        {"train": "d0"},
    )
    assert run.finished_utc is not None
    assert [record.ref.digest for record in again.checkpoints("r1")] == [base, child]
    record = again.checkpoint(child)
    assert (record.ref.stage, record.ref.step, record.ref.parent) == ("sft", 20, base)
    assert Path(record.ref.path).is_dir()
    assert record.metrics == {"dev_pass_rate": 0.5}
    assert sorted(record.files) == ["config.json", "model.safetensors"]
    leaf = again.lineage(child)[-1]
    assert leaf.evaluations[0].results == {"pass_rate": 0.5, "by": {"a": 1}}
    assert leaf.decisions[0].decision is Decision.REJECT
    assert leaf.decisions[0].reasons == ("it says reject",)
    assert leaf.decisions[0].gate == {"lower": 0.01}


def test_resuming_a_run_adds_nothing_and_marks_it_running(world: World) -> None:
    path = world.run("r1")
    digest = world.checkpoint("r1", "a")
    world.registry.finish_run("r1", RunStatus.INTERRUPTED, "SIGINT")
    world.register_run("r1", path)
    run = world.registry.run("r1")
    assert (run.status, run.finished_utc, run.reason) == (RunStatus.RUNNING, None, "")
    first = world.registry.checkpoint(digest)
    again = world.registry.add_checkpoint(CheckpointRef("checkpoints/a", digest, "sft", 1), "r1")
    assert again == first
    assert len(world.registry.runs()) == len(world.registry.checkpoints("r1")) == 1


def test_a_run_id_with_another_config_is_refused(world: World) -> None:
    path = world.run("r1")
    with pytest.raises(ConfigError, match="another config"):
        world.register_run("r1", path, config_digest="c1")


def test_a_run_goes_on_with_the_data_it_began_with(world: World) -> None:
    path = world.run("r1")
    with pytest.raises(ConfigError, match="begun with other train tasks") as caught:
        world.register_run("r1", path, data="d1")
    assert "start a new run" in caught.value.fix
    assert world.registry.run("r1").data_digests == {"train": "d0"}


def test_the_code_that_a_run_was_last_worked_on_with_is_known(world: World) -> None:
    assert world.registry.code_of("r1") == ""
    path = world.run("r1")
    assert world.registry.code_of("r1") == "git:abc"
    world.register_run("r1", path, code="git:def")
    assert world.registry.code_of("r1") == "git:def"


def test_checkpoints_follow_a_run_folder_that_moved(world: World) -> None:
    path = world.run("r1")
    digest = world.checkpoint("r1", "a")
    moved = world.folder / "elsewhere"
    shutil.move(path, moved)
    assert not world.registry.verify_files(digest).ok
    world.register_run("r1", moved)
    assert world.registry.verify_files(digest).ok
    assert Path(world.registry.checkpoint(digest).ref.path) == moved / "checkpoints" / "a"


def test_an_unknown_run_or_parent_is_refused(world: World) -> None:
    world.run("r1")
    with pytest.raises(ConfigError, match="no run 'r9'"):
        world.registry.finish_run("r9", RunStatus.FAILED)
    with pytest.raises(DataError, match=r"parent .* is not registered"):
        world.checkpoint("r1", "child", digest_of("never"))
    with pytest.raises(ConfigError, match="no checkpoint"):
        world.judge(digest_of("never"), Decision.PROMOTE)


def test_a_checkpoint_without_files_is_refused_unless_that_is_said(world: World) -> None:
    world.run("r1")
    ref = CheckpointRef("package:smol", digest_of("base"), "base", 0)
    with pytest.raises(IntegrityError, match="without files"):
        world.registry.add_checkpoint(ref, "r1")
    record = world.registry.add_checkpoint(ref, "r1", files={})
    assert record.ref.path == "package:smol"
    assert not world.registry.verify_files(ref.digest).ok


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_results_that_are_no_plain_json_are_refused(world: World, value: object) -> None:
    world.run("r1")
    digest = world.checkpoint("r1", "a")
    with pytest.raises(DataError, match="not plain JSON"):
        world.registry.record_decision(digest, {"lower": value}, Decision.PROMOTE, [])
    assert world.registry.lineage(digest)[0].decisions == ()


def test_runs_are_filtered_and_newest_first(world: World) -> None:
    for run_id in ("r1", "r2", "r3"):
        world.run(run_id)
    world.registry.finish_run("r2", RunStatus.FAILED, "nan")
    assert [run.run_id for run in world.registry.runs()] == ["r3", "r2", "r1"]
    assert [run.run_id for run in world.registry.runs(status=RunStatus.FAILED)] == ["r2"]
    assert [run.run_id for run in world.registry.runs(name="demo r3")] == ["r3"]
    assert world.registry.runs(name="%") == []
    assert world.registry.runs(base_model="other") == []


def test_digest_prefixes_resolve_where_unique(world: World) -> None:
    world.run("r1")
    for digest in ("abcd1111", "abcd2222", "abcd22", "ffff0000"):
        world.registry.add_checkpoint(CheckpointRef("by-name", digest, "base", 0), "r1", files={})
    assert world.registry.resolve("ffff") == "ffff0000"
    assert world.registry.resolve("abcd1") == "abcd1111"
    assert world.registry.resolve("abcd22") == "abcd22"  # whole, although another begins so too
    with pytest.raises(ConfigError, match="begins 3 digests: abcd1111, abcd22, abcd2222"):
        world.registry.resolve("abcd")
    for unknown in ("eeee", "ab%d", "____"):
        with pytest.raises(ConfigError, match="no checkpoint"):
            world.registry.resolve(unknown)
    with pytest.raises(ConfigError, match="too short"):
        world.registry.resolve("fff")


def test_lineage_runs_from_root_to_leaf_across_runs(world: World) -> None:
    world.run("r1")
    base = world.checkpoint("r1", "base", stage="base", step=0)
    sft = world.promoted("r1", "sft", base)
    world.run("r2")
    rl = world.checkpoint("r2", "rl", sft, stage="rl", step=10)
    way = world.registry.lineage(rl[:8])
    assert [entry.checkpoint.ref.digest for entry in way] == [base, sft, rl]
    assert [entry.run.run_id for entry in way] == ["r1", "r1", "r2"]
    assert [entry.live_in for entry in way] == [(), ("default",), ()]


def test_a_stage_that_changed_nothing_makes_no_cycle(world: World) -> None:
    world.run("r1")
    base = world.checkpoint("r1", "base", stage="base", step=0)
    ref = CheckpointRef("checkpoints/base", base, "sft", 5, base)
    world.registry.add_checkpoint(ref, "r1")
    way = world.registry.lineage(base)
    assert [(entry.checkpoint.ref.stage, entry.checkpoint.ref.step) for entry in way] == [
        ("base", 0),
        ("sft", 5),
    ]


def test_equal_weights_of_two_runs_keep_to_their_own_parents(world: World) -> None:
    for run_id in ("r1", "r2"):
        world.run(run_id)
        world.registry.add_checkpoint(CheckpointRef("smol", digest_of("base"), "base", 0), run_id, files={})
        ref = CheckpointRef("x", digest_of("same"), "sft", 1, digest_of("base"))
        world.registry.add_checkpoint(ref, run_id, files={})
    ways = [world.registry.lineage(digest_of("same"))]
    assert [entry.run.run_id for entry in ways[0]] == ["r2", "r2"]
    assert [[child.checkpoint.run_id for child in root.children] for root in world.registry.tree()] == [
        ["r1"],
        ["r2"],
    ]


def test_the_tree_holds_every_checkpoint_once_with_its_decision(world: World) -> None:
    world.run("r1")
    base = world.checkpoint("r1", "base", stage="base", step=0)
    left = world.promoted("r1", "left", base)
    right = world.checkpoint("r1", "right", base)
    world.judge(right, Decision.INCONCLUSIVE)
    leaf = world.checkpoint("r1", "leaf", left, stage="rl")
    (root,) = world.registry.tree()
    assert root.checkpoint.ref.digest == base
    assert [node.checkpoint.ref.digest for node in root.children] == [left, right]
    assert [node.decision for node in root.children] == [Decision.PROMOTE, Decision.INCONCLUSIVE]
    assert root.children[0].live_in == ("default",)
    assert [node.checkpoint.ref.digest for node in root.children[0].children] == [leaf]
    assert root.decision is None


def test_a_flipped_byte_a_missing_and_an_added_file_are_told_apart(world: World) -> None:
    path = world.run("r1") / "checkpoints" / "a"
    digest = world.checkpoint("r1", "a")
    check = world.registry.verify_files(digest)
    assert (check.ok, check.num_checked) == (True, 2)
    (path / "notes.txt").write_text("mine")
    assert world.registry.verify_files(digest).added == ("notes.txt",)
    assert world.registry.verify_files(digest).ok

    weights = bytearray((path / "model.safetensors").read_bytes())
    weights[7] ^= 1
    (path / "model.safetensors").write_bytes(weights)
    (path / "config.json").unlink()
    check = world.registry.verify_files(digest)
    assert (check.missing, check.changed) == (("config.json",), ("model.safetensors",))
    with pytest.raises(IntegrityError, match=r"config\.json is missing, and 1 more") as caught:
        check.require_ok()
    assert caught.value.where == str(path / "config.json")


def test_a_link_in_a_checkpoint_is_refused(world: World) -> None:
    path = world.run("r1") / "checkpoints" / "a"
    path.mkdir()
    (path / "model.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(IntegrityError, match="link"):
        world.registry.add_checkpoint(CheckpointRef("checkpoints/a", "d" * 64, "sft", 1), "r1")


def test_looks_at_a_final_set_are_counted_by_who_looked(world: World) -> None:
    look = world.registry.open_final_set
    assert look("s1", domain="toy", by="recipe a", models=["m2", "m1"]) == 0
    assert look("s1", domain="toy", by="recipe a", models=["m1", "m2"]) == 0  # a resumed run, or another seed
    assert look("s1", domain="toy", by="burnish eval", models=["m1"]) == 1
    assert look("s1", domain="toy", by="recipe b", models=["m3"]) == 2
    assert look("s2", domain="toy", by="recipe b", models=["m3"]) == 0
    with world.registry.transaction(write=False) as connection:
        rows = connection.exec_driver_sql("SELECT set_digest, by FROM final_openings ORDER BY id").all()
    first = [("s1", who) for who in ("recipe a", "burnish eval", "recipe b")]
    assert [tuple(row) for row in rows] == [*first, ("s2", "recipe b")]
