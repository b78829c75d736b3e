from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image, pyplot

from burnish.core.errors import ResourceError, RunError
from burnish.observe.curves import plot_curves
from burnish.observe.events import StepMetrics


def rows(stage: str = "rl", steps: int = 12) -> list[StepMetrics]:
    rng = np.random.default_rng(0)
    return [
        StepMetrics(
            stage,
            step,
            {
                "reward_mean": float(0.4 + 0.03 * step + rng.normal() * 0.02),
                "truncated_frac": 0.02 * step,
                "peak_memory_bytes": 3.1 * 2**30 + step * 2**24,
                "dev_pass_rate/tool_call": 0.5,
                "dev_pass_rate/structured_extraction": 0.4 + 0.02 * step,
            },
        )
        for step in range(1, steps + 1)
    ]


def test_one_picture_for_each_stage_and_group_none_of_them_blank(tmp_path: Path) -> None:
    paths = plot_curves([*rows("sft", 3), *rows("rl")], tmp_path)
    assert [path.name for path in paths] == [
        f"{stage}-{group}.png" for stage in ("sft", "rl") for group in ("quality", "replies", "cost")
    ]
    for path in paths:
        pixels = image.imread(path)
        assert pixels.shape[0] >= 250
        assert pixels.shape[1] >= 500
        assert 0.01 < (pixels[..., :3].min(axis=-1) < 0.95).mean() < 0.9


def test_values_outside_the_healthy_range_are_marked_and_others_are_not(tmp_path: Path) -> None:
    def alarms(value: float) -> int:
        path = plot_curves([StepMetrics("a", s, {"truncated_frac": value + s * 1e-4}) for s in range(9)], tmp_path)[0]
        colour = np.array([0xC2, 0x41, 0x0C]) / 255
        return int((np.abs(image.imread(path)[..., :3] - colour).max(axis=-1) < 0.02).sum())

    assert alarms(0.5) > 50
    assert alarms(0.05) == 0


def test_a_single_point_and_a_constant_can_be_drawn(tmp_path: Path) -> None:
    assert len(plot_curves([StepMetrics("rl", 0, {"reward_mean": 0.0, "lr": 1e-5})], tmp_path)) == 2


def test_nothing_to_draw_draws_nothing(tmp_path: Path) -> None:
    assert plot_curves([], tmp_path) == []


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    before = pyplot.get_fignums()
    plot_curves(rows(), tmp_path)
    assert pyplot.get_fignums() == before


def test_an_undeclared_metric_and_an_unwritable_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="vibes"):
        plot_curves([StepMetrics("rl", 1, {"vibes": 1.0})], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        plot_curves(rows(), tmp_path / "file")
