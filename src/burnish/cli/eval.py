"""`burnish eval`: a model on one set of a recipe's tasks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from burnish.cli.options import find_model, json_option, recipe_option, set_option
from burnish.cli.output import emit, percent, table
from burnish.core.errors import ResourceError

if TYPE_CHECKING:
    from burnish.evals.passk import PassAtK


@click.command("eval")
@click.argument("model")
@recipe_option
@click.option(
    "--split",
    default="development",
    show_default=True,
    help="development, gate, final (sealed: looks are counted), or bfcl (the external check).",
)
@click.option(
    "--samples", default=1, show_default=True, type=click.IntRange(min=1), help="Replies a task; 1 is greedy."
)
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="Also write every task's outcome to this JSON file.")
@json_option
def command(
    model: str,
    recipe: Path,
    split: str,
    samples: int,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure MODEL (a folder, file, hub name, package:NAME or checkpoint digest)."""
    from burnish.cli.progress import Progress
    from burnish.core.codec import encode
    from burnish.evals.passk import suite_pass_at_k
    from burnish.observe.disk import atomic_write, writing
    from burnish.train.verbs import evaluate

    if out is not None and out.exists():
        raise ResourceError(f"{out} exists", where=str(out), fix="name another file; nothing is overwritten")
    if out is not None:
        with writing(out.parent):  # found now, not after the evaluation
            out.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=out.parent).close()
    with Progress() as progress:
        result, _ = evaluate(
            find_model(model),
            recipe,
            split=split,
            overrides=overrides,
            num_samples=samples,
            on_progress=progress.report,
        )
    ks = sorted({1, samples})
    found = {k: suite_pass_at_k(result, k) for k in ks}
    rates = [
        {"domain": name, **_rate(k, value)}
        for k in ks
        for name, value in (("all", found[k].pooled), *found[k].by_domain.items())
    ]
    data = {
        "model": model,
        "model_digest": result.model_digest,
        "suite": result.suite,
        "split": result.split.value,
        "sampling": result.sampling,
        "undecided_frac": result.undecided_frac,
        "rates": rates,
        "out": None if out is None else str(out),
    }
    rows = [
        (
            r["domain"],
            f"pass@{r['k']}",
            percent(r["rate"]),
            f"{percent(r['low'])} to {percent(r['high'])}",
            r["tasks"],
        )
        for r in rates
    ]
    text = table(("domain", "", "rate", "95 % interval", "tasks"), rows)
    emit("eval", data, f"{text}\nundecided: {percent(result.undecided_frac)}", as_json=as_json)
    if out is not None:
        atomic_write(out, (json.dumps(encode(result), ensure_ascii=False) + "\n").encode("utf-8"))


def _rate(k: int, found: PassAtK) -> dict[str, Any]:
    from burnish.evals.report_tables import rate_of

    rate = rate_of(found)
    return {
        "k": k,
        "rate": rate.mean,
        "low": rate.low,
        "high": rate.high,
        "tasks": rate.num_tasks,
        "left_out": found.left_out,
    }
