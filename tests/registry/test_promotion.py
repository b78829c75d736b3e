from __future__ import annotations

from pathlib import Path

import pytest

from burnish.core.errors import ConfigError, GateRefusedError, IntegrityError
from burnish.core.types import Decision
from burnish.registry.records import PromotionKind

from .conftest import World


def test_only_what_its_latest_gate_promoted_goes_live(world: World) -> None:
    world.run("r1")
    digest = world.checkpoint("r1", "a")
    with pytest.raises(GateRefusedError, match="no gate has judged it") as caught:
        world.registry.promote(digest, by="me", reason="x")
    assert caught.value.exit_code == 3
    for decision in (Decision.REJECT, Decision.INCONCLUSIVE):
        world.judge(digest, decision)
        with pytest.raises(GateRefusedError, match=f"said {decision.value}"):
            world.registry.promote(digest, by="me", reason="x")
    assert world.registry.current() is None
    world.judge(digest, Decision.PROMOTE)
    record = world.registry.promote(digest[:10], by="me", reason="gate 7")
    assert (record.digest, record.forced, record.previous_digest) == (digest, False, "")
    assert world.registry.current() == record


def test_a_later_rejection_outweighs_an_earlier_promotion(world: World) -> None:
    world.run("r1")
    digest = world.checkpoint("r1", "a")
    world.judge(digest, Decision.PROMOTE)
    world.judge(digest, Decision.REJECT)
    with pytest.raises(GateRefusedError, match="said reject"):
        world.registry.promote(digest, by="me", reason="x")


def test_force_needs_a_reason_and_is_said_aloud(world: World) -> None:
    world.run("r1")
    digest = world.checkpoint("r1", "a")
    world.judge(digest, Decision.INCONCLUSIVE)
    with pytest.raises(ConfigError, match="needs a reason"):
        world.registry.promote(digest, by="me", reason="  ", unpromoted_ok=True)
    record = world.registry.promote(digest, by="me", reason="demo tomorrow", unpromoted_ok=True)
    assert record.forced
    assert record.statement == "FORCED although its latest gate said inconclusive: demo tomorrow"


def test_leave_to_force_does_not_make_an_honest_promotion_forced(world: World) -> None:
    world.run("r1")
    digest = world.checkpoint("r1", "a")
    world.judge(digest, Decision.PROMOTE)
    assert not world.registry.promote(digest, by="me", reason="gate", unpromoted_ok=True).forced


def test_promoting_what_is_live_adds_nothing(world: World) -> None:
    world.run("r1")
    digest = world.promoted("r1", "a")
    world.registry.promote(digest, by="again", reason="resumed")
    assert len(world.registry.promotions()) == 1


def test_rollback_walks_down_the_stack_and_keeps_all_history(world: World) -> None:
    world.run("r1")
    a, b, c = (world.promoted("r1", name) for name in "abc")
    first = world.registry.rollback(by="me", reason="c is slow")
    assert (first.kind, first.digest, first.previous_digest) == (PromotionKind.ROLLBACK, b, c)
    assert "c is slow" in first.statement
    assert world.registry.rollback(by="me", reason="b too").digest == a
    with pytest.raises(ConfigError, match="first promotion"):
        world.registry.rollback(by="me", reason="and a")
    d = world.promoted("r1", "d")
    assert world.registry.rollback(by="me", reason="d no").digest == a
    assert [record.digest for record in world.registry.promotions()] == [a, b, c, b, a, d, a]


def test_rollback_to_an_earlier_one_by_prefix(world: World) -> None:
    world.run("r1")
    a, _, c = (world.promoted("r1", name) for name in "abc")
    stranger = world.checkpoint("r1", "stranger")
    for target in (stranger, c):
        with pytest.raises(ConfigError, match="not an earlier promotion"):
            world.registry.rollback(to=target, by="me", reason="x")
    assert world.registry.rollback(to=a[:8], by="me", reason="x").digest == a
    with pytest.raises(ConfigError, match="first promotion"):
        world.registry.rollback(by="me", reason="x")


def test_rollback_with_nothing_promoted_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="nothing was ever promoted"):
        world.registry.rollback(by="me", reason="x")


def test_channels_do_not_touch_each_other(world: World) -> None:
    world.run("r1")
    a, b = (world.promoted("r1", name) for name in "ab")
    world.registry.promote(a, channel="canary", by="me", reason="gate")
    assert world.registry.current("canary").digest == a  # type: ignore[union-attr]
    assert world.registry.current().digest == b  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="'canary'"):
        world.registry.rollback(channel="canary", by="me", reason="x")
    assert len(world.registry.promotions("canary")) == 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def test_damaged_files_are_neither_promoted_nor_rolled_back_to(world: World) -> None:
    folder = world.run("r1") / "checkpoints"
    world.promoted("r1", "a")
    b = world.promoted("r1", "b")
    flip(folder / "a" / "model.safetensors")
    with pytest.raises(IntegrityError) as caught:
        world.registry.rollback(by="me", reason="x")
    assert caught.value.where == str(folder / "a" / "model.safetensors")
    c = world.checkpoint("r1", "c")
    world.judge(c, Decision.PROMOTE)
    flip(folder / "c" / "model.safetensors")
    with pytest.raises(IntegrityError):
        world.registry.promote(c, by="me", reason="x")
    assert world.registry.current().digest == b  # type: ignore[union-attr]
