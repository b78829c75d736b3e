from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from burnish.core.errors import ResourceError
from burnish.observe.event_log import EventLog
from burnish.observe.events import EvalFinished, StepMetrics, Warning_
from burnish.observe.trackers import TensorBoardSink


def test_tensorboard_reads_back_what_the_log_says(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with EventLog(tmp_path / "events.jsonl") as log, TensorBoardSink(tmp_path / "tb") as sink:
        log.subscribe(sink.write)
        for step in range(1, 4):
            log.append(StepMetrics("rl", step, {"reward_mean": step / 4, "dev_pass_rate/tool_call": 0.5}))
        log.append(Warning_("no number here"))
        log.append(EvalFinished("rl", "both", "gate", "d", 200, 0, {"pass_rate": 0.75}))
    accumulator = EventAccumulator(str(tmp_path / "tb"))
    accumulator.Reload()
    assert sorted(accumulator.Tags()["scalars"]) == [
        "rl/both/gate/pass_rate",
        "rl/dev_pass_rate/tool_call",
        "rl/reward_mean",
    ]
    scalars = accumulator.Scalars("rl/reward_mean")
    assert [(event.step, event.value) for event in scalars] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [event.step for event in accumulator.Scalars("rl/both/gate/pass_rate")] == [3]


def test_without_tensorboard_the_error_is_an_install_command(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['tensorboard'] = None\n"
        "from pathlib import Path\n"
        "from burnish.core.errors import MissingDependencyError\n"
        "from burnish.observe.trackers import TensorBoardSink\n"
        "try:\n"
        "    TensorBoardSink(Path(sys.argv[1]))\n"
        "except MissingDependencyError as error:\n"
        "    sys.exit(0 if error.fix.startswith('pip install') else 3)\n"
        "sys.exit(4)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60).returncode == 0


def test_an_unwritable_folder_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        TensorBoardSink(tmp_path / "file" / "tb")


def test_the_room_loads_neither_torch_nor_matplotlib_nor_tensorboard() -> None:
    script = (
        "import sys\n"
        "import burnish.observe.curves, burnish.observe.resources, burnish.observe.run_folder\n"
        "import burnish.observe.trackers, burnish.observe.trajectories\n"
        "heavy = {'torch', 'matplotlib', 'tensorboard', 'transformers', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
