"""Keeps what a run of the main job found: its figures, not its weights.

    python benchmarks/main_job/record.py NAME RUN_FOLDER COMMIT     after `burnish run RECIPE --out RUN_FOLDER`
    python benchmarks/main_job/record.py                            only draw result.md again

Writes NAME.json beside this file, and result.md over all of them: rates on the final set with the comparisons
that matter, each gate's decision, and the wall time of every part. Every recorded run is shown, failures
included. COMMIT is the one that the run was started from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from burnish.core.codec import decode, encode
from burnish.evals.report_data import ModelEntry, ReportData
from burnish.evals.suite import mean_pass_rate
from burnish.observe.events import RunFinished, read_events

HERE = Path(__file__).parent


def summary(name: str, folder: Path, commit: str) -> dict[str, Any]:
    """The figures of a finished run, as plain data."""
    report = decode(ReportData, json.loads((folder / "report" / "report.json").read_text("utf-8")))
    log = read_events(folder / "events.jsonl").records
    if not isinstance(log[-1].event, RunFinished):
        raise SystemExit(f"{folder}: the run has not finished")
    return {
        "name": name,
        "command": f"burnish run recipes/{report.name}.yaml --out DIR",
        "commit": commit,
        "code": report.code,
        "seed": report.seed,
        "recipe": report.recipe_yaml,
        "machine": report.machine,
        "decision": report.decision.value,
        "reasons": list(report.reasons),
        "total_s": round(log[-1].monotonic_s - log[0].monotonic_s, 1),
        "seconds": {part: round(seconds, 1) for part, seconds in report.cost.seconds.items()},
        "peak_memory_bytes": report.cost.peak_memory_bytes,
        "openings": report.openings,
        "identity": report.identity,
        "pass_at_k": report.pass_at_k,
        "few_shot": report.few_shot,
        "models": [_model(entry) for entry in report.models],
        "comparisons": [
            {"candidate": c.candidate, "domain": c.domain or "both", **encode(c.comparison)} for c in report.comparisons
        ],
        "stages": [
            {
                "name": stage.name,
                "promoted": stage.promoted,
                "seconds": round(stage.seconds, 1),
                "reason": stage.reason,
                "best_step": stage.best_step,
                "points": stage.points,
                "gate": None if stage.gate is None else stage.gate.explain(),
            }
            for stage in report.stages
        ],
        "warnings": list(report.warnings),
    }


def _model(entry: ModelEntry) -> dict[str, Any]:
    rates = {domain: mean_pass_rate(entry.result.of_domain(domain)) for domain in entry.result.domains}
    outside = {
        domain: mean_pass_rate(result.of_domain(domain))
        for result in entry.external.values()
        for domain in result.domains
    }
    return {
        "label": entry.label,
        "promoted": entry.promoted,
        "both": mean_pass_rate(entry.result),
        **rates,
        "external": outside,
        "guards": entry.guards,
    }


def draw(runs: list[dict[str, Any]]) -> str:
    """result.md."""
    lines = [
        "# The main job, run by run",
        "",
        "Pass rates on the sealed final set; differences in points, 95 % interval.",
    ]
    for run in runs:
        lines += ["", f"## {run['name']}", ""]
        lines.append(
            f"`{run['command']}` at {run['commit'][:12]}, seed {run['seed']}, {run['machine']['cores']:g} cores "
            f"({run['machine']['cpu']}): **{run['decision'].upper()}** after {run['total_s'] / 60:.1f} minutes ("
            + ", ".join(f"{part} {seconds:.0f} s" for part, seconds in run["seconds"].items())
            + f"), peak memory {run['peak_memory_bytes'] / 2**30:.1f} GiB."
        )
        domains = [key for key in run["models"][0] if key not in ("label", "promoted", "both", "external", "guards")]
        lines += ["", "| model | both | " + " | ".join(domains) + " | outside |", "|---" * (len(domains) + 3) + "|"]
        for model in run["models"]:
            outside = ", ".join(f"{name} {100 * rate:.0f} %" for name, rate in model["external"].items())
            rates = " | ".join(f"{100 * model[d]:.1f} %" for d in ["both", *domains])
            lines.append(f"| {model['label']}{' (promoted)' if model['promoted'] else ''} | {rates} | {outside} |")
        lines += ["", "| compared | both | " + " | ".join(domains) + " |", "|---" * (len(domains) + 2) + "|"]
        pairs = dict.fromkeys((c["candidate"], c["reference"]) for c in run["comparisons"])
        for candidate, reference in pairs:
            cells = [_difference(run, candidate, reference, domain) for domain in ["both", *domains]]
            lines.append(f"| {candidate} - {reference} | " + " | ".join(cells) + " |")
        for stage in run["stages"]:
            lines += ["", f"- {stage['name']}: {stage['seconds']:.0f} s. {stage['gate'] or stage['reason']}"]
    return "\n".join(lines) + "\n"


def _difference(run: dict[str, Any], candidate: str, reference: str, domain: str) -> str:
    for entry in run["comparisons"]:
        if (entry["candidate"], entry["reference"], entry["domain"]) == (candidate, reference, domain):
            if entry["difference"] is None:
                return str(entry["problem"])
            return f"{100 * entry['difference']:+.1f} [{100 * entry['low']:+.1f}, {100 * entry['high']:+.1f}]"
    return ""


def main() -> None:
    if len(sys.argv) not in (1, 4):
        raise SystemExit(__doc__)
    if len(sys.argv) == 4:
        name, folder, commit = sys.argv[1:]
        text = json.dumps(summary(name, Path(folder), commit), indent=1, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(text + "\n", "utf-8")
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(HERE.glob("*.json"))]
    (HERE / "result.md").write_text(draw(runs), "utf-8")


if __name__ == "__main__":
    main()
