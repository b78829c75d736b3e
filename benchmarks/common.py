"""What benchmarks share: the machine without its name, the commit, and a result written twice."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from burnish.observe.resources import machine_facts


def describe(options: dict[str, Any]) -> dict[str, Any]:
    """Command, commit, machine and versions."""
    facts = machine_facts(Path.cwd())
    here = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "../src"], cwd=here, capture_output=True, text=True, check=True
    )
    return {
        "command": "python " + " ".join(["benchmarks/" + "/".join(Path(sys.argv[0]).parts[-2:]), *sys.argv[1:]]),
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
        "cpu": facts.cpu_model,
        "cpu_flags": [f for f in facts.cpu_flags if f.startswith(("avx", "amx"))],
        "cores": facts.cores,
        "memory_gib": round(facts.memory_total_bytes / 2**30, 1),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "options": options,
    }


def write_result(folder: Path, title: str, setting: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    """result.json and result.md in the benchmark's folder."""
    body = {"setting": setting, "result": found}
    (folder / "result.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", "utf-8")
    columns = list(dict.fromkeys(key for row in found.values() for key in row))
    lines = [f"# {title}", "", f"`{setting['command']}` at {setting['commit'][:12]}, {setting['cores']:g} cores.", ""]
    lines += ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in found.items():
        cells = [f"{row[c]:.3g}" if isinstance(row.get(c), float) else str(row.get(c, "")) for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (folder / "result.md").write_text("\n".join(lines) + "\n", "utf-8")
