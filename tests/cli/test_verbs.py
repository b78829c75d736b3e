from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.core.codec import encode
from burnish.core.outcomes import Outcome, StopReason
from burnish.core.types import CheckpointRef, Decision, Split
from burnish.evals.gate import decide
from burnish.evals.results import SuiteResult, TaskRecord
from burnish.observe.run_folder import RunFolder
from burnish.registry.registry import Registry

from .conftest import Burnish, checked


def suite(passes: int, total: int = 60, digest: str = "c" * 64, prompt: str = "plain") -> SuiteResult:
    records = []
    for index in range(total):
        passed = index < passes
        outcome, score = (Outcome.PASS, 1.0) if passed else (Outcome.FAIL, 0.0)
        records.append(
            TaskRecord(
                f"t{index}", ("sums", "dates")[index % 2], f"k{index % 40}", (outcome,), (score,), (5,),
                (StopReason.STOP_TOKEN,), "exact", "1",
            )
        )  # fmt: skip
    return SuiteResult("target", Split.GATE, digest, prompt, "greedy", tuple(records), 300, 2.0)


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A scripted stand-in for what needs a model; each test sets what it answers."""
    fake = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "burnish.train.verbs", fake)
    return fake


@pytest.fixture
def registered(burnish: Burnish, tmp_path: Path) -> Registry:
    """A base and two checkpoints, the first promoted by its gate, the second rejected."""
    registry = Registry(tmp_path / "registry.sqlite")
    (tmp_path / "run").mkdir()
    registry.add_run(
        "r1", name="quick", folder=tmp_path / "run", config_digest="c", code_digest="d", data_digests={},
        seed=1, base_model="package:m",
    )  # fmt: skip
    registry.add_checkpoint(CheckpointRef("package:m", "aaaa1111", "base", 0), "r1", files={})
    for digest, stage, parent in (("bbbb2222", "sft", "aaaa1111"), ("cccc3333", "grpo", "bbbb2222")):
        folder = tmp_path / "run" / stage
        folder.mkdir()
        (folder / "model.safetensors").write_text(digest, encoding="utf-8")
        registry.add_checkpoint(CheckpointRef(stage, digest, stage, 4, parent), "r1", {"dev_pass_rate": 0.5})
    registry.add_evaluation(
        "bbbb2222", suite="target", split="gate", num_tasks=60, num_undecided=0, results={"pass_rate": 0.5}
    )
    registry.record_decision("bbbb2222", {}, Decision.PROMOTE, ["better"])
    registry.record_decision("cccc3333", {}, Decision.REJECT, ["worse than its parent"])
    return registry


# --- run ----------------------------------------------------------------------------------------------


def run_result(decision: Decision, code: int, folder: Path) -> SimpleNamespace:
    return SimpleNamespace(
        run_id="r1", folder=folder, decision=decision, reasons=("because",), exit_code=code,
        report_path=folder / "report" / "report.html",
    )  # fmt: skip


RECIPE = """\
name: mine
model: {source: m}
tasks: {domains: [a], train_labels: 64}
stages: [{kind: sft, lr: 1e-5}]
"""


@pytest.mark.parametrize(("decision", "code"), [(Decision.PROMOTE, 0), (Decision.INCONCLUSIVE, 3)])
def test_run_prints_decision_and_report(
    burnish: Burnish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: Decision, code: int
) -> None:
    calls: list[dict[str, Any]] = []

    def run(recipe: Path, **given: Any) -> SimpleNamespace:
        calls.append({"recipe": recipe, **given})
        return run_result(decision, code, Path(given["out"]))

    monkeypatch.setitem(sys.modules, "burnish.train.pipeline", SimpleNamespace(run=run))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    answer = burnish("run", recipe, "--set", "seed=3", "--json")
    assert answer.code == code
    assert answer.json["decision"] == decision.value
    assert calls[0]["overrides"] == ("seed=3",)
    assert calls[0]["out"].parent == Path("runs")
    assert calls[0]["out"].name.startswith("mine-")
    text = burnish("run", recipe, "--out", tmp_path / "there").out
    assert text == f"{decision.value.upper()}: because\nreport: {tmp_path / 'there' / 'report' / 'report.html'}\n"
    burnish("run", "--out", tmp_path / "there", "--resume")
    assert calls[-1]["recipe"] == tmp_path / "there" / "config.yaml"
    assert calls[-1]["resume"] is True


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(
    burnish: Burnish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, begun: bool
) -> None:
    def interrupted(recipe: Path, *, out: Path, **given: Any) -> None:
        if begun:
            RunFolder.create(out, {}).close()

        async def work() -> None:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)

        asyncio.run(work())

    monkeypatch.setitem(sys.modules, "burnish.train.pipeline", SimpleNamespace(run=interrupted))
    recipe = tmp_path / "my recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    answer = burnish("run", recipe, "--set", "name=a b", "--out", tmp_path / "out")
    assert answer.code == 130
    again = f"burnish run '{recipe}' --set 'name=a b' --out {tmp_path / 'out'} --resume"
    saved = f"saved; go on with: {again}\n"
    assert answer.err == (saved if begun else "interrupted before the run began: nothing was written\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_dry_run_writes_nothing(burnish: Burnish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(dry_run=lambda recipe, overrides: f"{recipe.name} {overrides}")
    monkeypatch.setitem(sys.modules, "burnish.train.pipeline", fake)
    before = sorted(tmp_path.rglob("*"))
    answer = burnish("run", tmp_path / "r.yaml", "--dry-run", "--set", "seed=2", "--json")
    assert answer.json["text"] == "r.yaml ('seed=2',)"
    assert sorted(tmp_path.rglob("*")) == before


# --- eval, gate, compare, rescore, chat -----------------------------------------------------------------


def test_eval_prints_rates_and_keeps_outcomes(burnish: Burnish, tmp_path: Path, verbs: SimpleNamespace) -> None:
    verbs.evaluate = lambda model, recipe, **given: (suite(45), ())
    out = tmp_path / "outcomes.json"
    answer = burnish("eval", "m", "--recipe", "r.yaml", "--out", out, "--json")
    rates = {rate["domain"]: rate for rate in answer.json["rates"]}
    assert rates["all"]["rate"] == pytest.approx(0.75)
    assert rates["all"]["low"] < 0.75 < rates["all"]["high"]
    assert set(rates) == {"all", "dates", "sums"}
    written = out.read_bytes()
    assert json.loads(written) == json.loads(json.dumps(encode(suite(45))))
    again = burnish("eval", "m", "--recipe", "r.yaml", "--out", out)
    assert again.code == 2
    assert again.error[0] == f"{out} exists"
    assert out.read_bytes() == written
    assert "75.0 %" in burnish("eval", "m", "--recipe", "r.yaml").out


def test_gate_exits_3_unless_it_promotes_and_writes_it_down(
    burnish: Burnish, registered: Registry, verbs: SimpleNamespace
) -> None:
    from burnish.evals.gate import GateConfig

    asked: list[tuple[str, str]] = []
    digest = "cccc3333"

    def gate(candidate: str, parent: str, recipe: Path, **given: Any) -> Any:
        asked.append((candidate, parent))
        config = GateConfig(required_guards=(), resamples=1000, min_clusters=10)
        few_shot = suite(10, digest="a" * 64, prompt="few_shot:x")
        return decide(suite(passes, digest=digest), suite(20, digest="b" * 64), few_shot, (), config, 1)

    verbs.gate_checkpoints = gate
    verbs.why_not_recorded = lambda decision, recipe, overrides: "" if digest == "cccc3333" else "another recipe"
    passes = 50
    answer = burnish("gate", "cccc", "--parent", "package:m", "--recipe", "r.yaml", "--json")
    assert answer.code == 0
    assert answer.json["decision"] == "promote"
    assert answer.json["recorded"] is True
    assert asked == [(str(registered.checkpoint("cccc").ref.path), "package:m")]
    assert registered.lineage("cccc")[-1].decisions[-1].decision is Decision.PROMOTE
    passes, digest = 20, "unknown0"
    answer = burnish("gate", "elsewhere", "--parent", "p", "--recipe", "r.yaml")
    assert answer.code == 3
    assert answer.out.startswith("INCONCLUSIVE: ")
    assert answer.out.rstrip().endswith("not recorded: another recipe")


def test_compare(burnish: Burnish, tmp_path: Path, verbs: SimpleNamespace) -> None:
    from burnish.evals.gate import GateConfig
    from burnish.evals.gate import compare as compare_results

    found = compare_results(suite(50), suite(20, digest="b" * 64), "b/sft", GateConfig(), 1)
    verbs.compare = lambda a, b: {"a": "a/grpo", "b": "b/sft", "comparisons": {"all": encode(found)}}
    answer = burnish("compare", tmp_path, tmp_path, "--json")
    assert answer.json["comparisons"]["all"]["wins"] == 30
    assert burnish("compare", tmp_path, tmp_path).out.splitlines()[0] == "a/grpo against b/sft"
    assert burnish("compare", "no-such-run", tmp_path).error[0] == "no run 'no-such-run' is registered"


def test_rescore_names_both_versions(burnish: Burnish, tmp_path: Path, verbs: SimpleNamespace) -> None:
    from dataclasses import make_dataclass

    names = ["verifier", "old_versions", "new_version", "num_trajectories", "changed", "examples", "output"]
    summary = make_dataclass("Summary", names)
    verbs.rescore = lambda folder, name: summary(name, ("1",), "2", 40, {"fail -> pass": 3}, ("t7: fail",), "f.jsonl")
    answer = burnish("rescore", tmp_path, "--verifier", "exact", "--json")
    assert answer.json["verifiers"][0]["changed"] == {"fail -> pass": 3}
    text = burnish("rescore", tmp_path, "--verifier", "exact").out
    assert text.startswith("exact: version 1 -> 2, 40 replies\n  fail -> pass: 3\n")


@pytest.mark.parametrize(
    ("digest", "flags", "code", "said"),
    [
        ("not-registered", [], 0, ""),
        ("aaaa1111", [], 0, ""),
        ("bbbb2222", [], 0, ""),
        ("cccc3333", [], 3, "its latest gate answered with REJECT"),
        ("cccc3333", ["--unpromoted"], 0, "unpromoted: this checkpoint its latest gate answered with REJECT"),
    ],
)
def test_chat_with_unpromoted_checkpoints_is_said_aloud(
    burnish: Burnish,
    registered: Registry,
    verbs: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    digest: str,
    flags: list[str],
    code: int,
    said: str,
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nbye\n"))
    verbs.open_chat = lambda model, **given: SimpleNamespace(digest=digest, say=lambda text: text.upper())
    answer = burnish("chat", "m", *flags)
    assert answer.code == code
    assert answer.out == ("HELLO\nBYE\n" if code == 0 else "")
    assert said in answer.err
    assert bool(said) == bool(answer.err)


# --- registry -----------------------------------------------------------------------------------------


def test_runs_lineage_promote_rollback_clean(burnish: Burnish, registered: Registry) -> None:
    listed = burnish("runs", "--json").json
    assert [run["run_id"] for run in listed["runs"]] == ["r1"]
    assert listed["states"] == {"r1": "stopped"}  # registered as running, and nothing runs in its folder
    assert burnish("runs", "--name", "zzz").out == "no runs yet\n"
    assert "package:m" in burnish("runs").out

    first = burnish("promote", "bbbb", "--json")
    assert (first.code, first.json["forced"]) == (0, False)
    refused = burnish("promote", "cccc")
    assert refused.code == 3
    assert "its latest gate said reject" in refused.error[0]
    assert burnish("promote", "cccc", "--unpromoted").code == 2  # force needs a reason
    forced = burnish("promote", "cccc", "--unpromoted", "--reason", "a demonstration", "--json")
    assert forced.json["statement"].startswith("FORCED although its latest gate said reject")

    tree = burnish("lineage").out
    assert tree.splitlines()[2].strip() == "cccc3333  grpo 4  reject  LIVE in default"
    way = burnish("lineage", "cccc", "--json").json["way"]
    assert [entry["checkpoint"]["ref"]["stage"] for entry in way] == ["base", "sft", "grpo"]
    assert "gate: REJECT: worse than its parent" in burnish("lineage", "cccc").out
    assert checked(burnish("lineage", "--json").out)["tree"][0]["children"]

    back = burnish("rollback", "--reason", "it was a demonstration", "--json")
    assert back.json["digest"] == "bbbb2222"
    assert burnish("rollback").code == 2  # nothing before it


def test_clean_lists_before_it_deletes(burnish: Burnish, registered: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "early"
    folder.mkdir()
    (folder / "model.safetensors").write_text("x" * 1000, encoding="utf-8")
    registered.add_checkpoint(CheckpointRef("early", "dddd4444", "grpo", 1, "bbbb2222"), "r1")
    last = tmp_path / "run" / "last"
    last.mkdir()
    (last / "model.safetensors").write_text("y", encoding="utf-8")
    registered.add_checkpoint(CheckpointRef("last", "eeee5555", "grpo", 8, "bbbb2222"), "r1")
    plan = burnish("clean", "--json").json
    assert plan["applied"] is False
    assert folder.is_dir()
    assert {Path(item["path"]).name for item in plan["delete"] if item["kind"] == "checkpoint"} == {
        "early",
        "grpo",
    }
    assert "burnish clean --apply deletes them" in burnish("clean").out
    assert burnish("clean", "--apply", "--json").json["applied"] is True
    assert not folder.exists()
    assert last.is_dir()
    assert burnish("clean").out == "nothing to delete\n"


# --- verify, check, init, doctor, report ----------------------------------------------------------------


def test_verify_gives_one_verdict_a_row_in_order(burnish: Burnish, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"gold": "Friday", "reply": "Friday"}\n{"gold": "Friday", "reply": "Monday"}\n', encoding="utf-8")
    answer = burnish("verify", "exact", rows)
    assert answer.code == 0
    verdicts = [checked(line) for line in answer.out.splitlines()]
    assert [verdict["outcome"] for verdict in verdicts] == ["pass", "fail"]
    assert {"outcome", "score", "reason", "evidence", "duration_s"} <= set(verdicts[0])


def test_check_lists_names_and_finds_faults(burnish: Burnish, tmp_path: Path) -> None:
    assert "exact" in burnish("check", "verifier", "--json").json["names"]
    assert "tool_call" in burnish("check", "domain").out.splitlines()
    answer = burnish("check", "verifier", "numeric", "--json")
    assert (answer.code, answer.json["ok"]) == (0, True)
    lenient = tmp_path / "lenient.py"
    lenient.write_text("def yes(reply, gold):\n    return 1.0\n", encoding="utf-8")
    answer = burnish("check", "verifier", f"{lenient}:yes", "--json")
    assert (answer.code, answer.json["findings"]) == (2, ["it has no cases"])
    fooled = lenient.read_text(encoding="utf-8") + (
        "from burnish.core.protocols import VerifierCase as C\n"
        "CASES = [C('a', 'a', 'pass', 'must_pass'), C('a', 'b', 'fail', why='another letter')]\n"
    )
    (tmp_path / "fooled.py").write_text(fooled, encoding="utf-8")
    answer = burnish("check", "verifier", f"{tmp_path / 'fooled.py'}:yes")
    assert answer.code == 2
    assert "finding: case 1 (another letter) wants fail, got pass" in answer.out


def test_check_domain(burnish: Burnish) -> None:
    answer = burnish("check", "domain", "tool_call", "--json")
    assert (answer.code, answer.json["findings"]) == (0, [])
    assert [entry["tasks"] for entry in answer.json["sets"]] == [64] * 4


def test_init_writes_a_folder_that_holds_together(burnish: Burnish, tmp_path: Path) -> None:
    import jsonschema
    from ruamel.yaml import YAML

    from burnish.domains.files import FileDomain
    from burnish.train.recipe import load_recipe

    folder = tmp_path / "new" / "folder"
    answer = burnish("init", folder, "--json")
    assert sorted(answer.json["files"]) == sorted(path.name for path in folder.iterdir())
    recipe = load_recipe(folder / "recipe.yaml").recipe
    schema = json.loads((folder / "recipe.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(YAML(typ="safe").load(folder / "recipe.yaml"), schema)
    assert len((folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    domain = FileDomain(folder / "tasks.jsonl", f"{folder / 'verifier.py'}:right")
    tasks = recipe.tasks
    wanted = (tasks.train_labels, tasks.development, tasks.gate, tasks.final)
    for split, count in zip(Split, wanted, strict=True):
        assert len(domain.generate(split, count, seed=0)) == count
    assert burnish("check", "verifier", f"{folder / 'verifier.py'}:right").code == 0


def test_init_overwrites_nothing(burnish: Burnish, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("mine", encoding="utf-8")
    answer = burnish("init", tmp_path)
    assert answer.code == 2
    assert answer.error[0] == f"{tmp_path} already has tasks.jsonl"
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]
    assert (tmp_path / "tasks.jsonl").read_text(encoding="utf-8") == "mine"


def test_doctor_tells_speed_sizes_and_what_is_missing(burnish: Burnish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    rates = {"float32": 90e9, "bfloat16": 10e9, "int8": 0.0}
    monkeypatch.setitem(sys.modules, "burnish.train.gemm", SimpleNamespace(gemm_rates=lambda: rates))
    asked = []

    def measure_rates(config: Any, dtype: Any, *, autocast: bool) -> SimpleNamespace:
        asked.append((config.num_hidden_layers, str(dtype), autocast))
        return SimpleNamespace(decode_tokens_per_s=167.0, train_tokens_per_s=50.0)

    monkeypatch.setitem(sys.modules, "burnish.train.machine", SimpleNamespace(measure_rates=measure_rates))
    folder = SimpleNamespace(cache_folder=lambda: Path("cache"), llama_config=lambda shape: SimpleNamespace(**shape))
    monkeypatch.setitem(sys.modules, "burnish.models.load", folder)
    data = burnish("doctor", "--json").json
    assert data["fastest_dtype"] == "float32"
    assert data["tokens_per_s"] == {"sampling": 167.0, "training": 50.0}
    assert asked == [(30, "torch.float32", False)]
    assert data["tools"] == {"bwrap": False, "podman": False, "git": False}
    assert any("bubblewrap" in item["fix"] for item in data["advice"])
    text = burnish("doctor").out
    assert "float32 90, bfloat16 10, int8 0 GFLOP/s: dtype auto takes float32" in text
    rates["bfloat16"] = 400e9
    assert burnish("doctor", "--json").json["fastest_dtype"] == "bfloat16"


def test_report_of_a_run_by_folder_or_id(
    burnish: Burnish, registered: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(rebuild_report=lambda folder: folder / "report" / "report.html")
    monkeypatch.setitem(sys.modules, "burnish.evals.report", fake)
    page = str(tmp_path / "run" / "report" / "report.html")
    assert burnish("report", tmp_path / "run").out == page + "\n"
    assert burnish("report", "r1", "--json").json["page"] == page
    assert burnish("report", "r2").code == 2
