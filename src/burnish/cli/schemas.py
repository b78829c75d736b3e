"""The JSON Schema of what each verb prints with `--json`.

Made from the types that the verbs print, so the two cannot part; `docs/reference/cli-json.md` shows them and
tests hold real output to them. Leaves out `chat`, which talks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import create_model

from burnish.cli.output import VERSION


@dataclass(frozen=True, slots=True)
class Output:
    """What one verb prints: when, and the schema of it."""

    verb: str
    when: str
    schema: dict[str, Any]


def outputs() -> list[Output]:
    """Every output of every verb, in the order of the help."""
    from burnish.core.types import Decision
    from burnish.data.preflight import PreflightReport
    from burnish.evals.gate import Comparison, GateDecision
    from burnish.registry.cleaning import CleanPlan
    from burnish.registry.records import LineageEntry, PromotionRecord, RunRecord, TreeNode

    return [
        _output("init", "the files that were written", folder=str, files=list[str]),
        _output(
            "run",
            "how a run ended",
            run_id=str,
            folder=str,
            decision=Decision,
            reasons=list[str],
            report=str,
            exit_code=int,
        ),
        _output("dry-run", "burnish run --dry-run", recipe=str, text=str),
        _output(
            "eval",
            "rates by domain, `all` first; `out` is the file with every outcome",
            model=str,
            model_digest=str,
            suite=str,
            split=str,
            sampling=str,
            undecided_frac=float,
            rates=list[_rate()],  # type: ignore[misc]  # a model made at run time
            out=str | None,
        ),
        _output("gate", "the decision and all it rests on", decision=Decision, recorded=bool, gate=GateDecision),
        _output("compare", "by domain, `all` first", a=str, b=str, comparisons=dict[str, Comparison]),
        _output("promote", "what is live now", **get_type_hints(PromotionRecord)),
        _output("rollback", "what is live now", **get_type_hints(PromotionRecord)),
        _output("runs", "newest first; `states` by run id", runs=list[RunRecord], states=dict[str, str]),
        _output("lineage", "without a digest: every checkpoint", tree=list[TreeNode]),
        _output("lineage", "with a digest: the way to it", way=list[LineageEntry]),
        _output("preflight", "all findings", ok=bool, masked_frac=float, **get_type_hints(PreflightReport)),
        _output("verify", "one object a row, in order, with and without --json", **_verdict()),
        _output("check-names", "burnish check KIND without a name", kind=str, names=list[str]),
        _output(
            "check-verifier",
            "burnish check verifier NAME",
            kind=str,
            name=str,
            version=str,
            cases=list[dict[str, str | bool]],
            findings=list[str],
            ok=bool,
        ),
        _output(
            "check-domain",
            "burnish check domain NAME",
            kind=str,
            name=str,
            verifier=str,
            sets=list[dict[str, str | int]],
            findings=list[str],
            ok=bool,
        ),
        _output("rescore", "what changed, by verifier", run=str, verifiers=list[_rescored()]),  # type: ignore[misc]
        _output("doctor", "what this machine can do", **_doctor()),
        _output("report", "where it lies", run=str, page=str, data=str),
        _output("clean", "what may go, or went", applied=bool, num_bytes=int, **get_type_hints(CleanPlan)),
        Output("error", "any verb that fails, on stderr", _error()),
    ]


def _output(verb: str, when: str, /, **fields: Any) -> Output:
    schema = _model(verb, **fields).model_json_schema()
    schema["properties"] = {"schema": {"const": f"burnish/{verb}/{VERSION}"}, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    schema["additionalProperties"] = False
    schema.pop("title")
    return Output(verb, when, schema)


def _model(name: str, /, **fields: Any) -> Any:
    make: Any = create_model  # its signature cannot express fields known at run time only
    return make(name, **{key: (hint, ...) for key, hint in fields.items()})


def _rate() -> Any:
    bound = float | None
    return _model("Rate", domain=str, k=int, rate=bound, low=bound, high=bound, tasks=int, left_out=int)


def _rescored() -> Any:
    # The fields of train.verbs.RescoreSummary, which is not imported here because it brings torch.
    return _model(
        "Rescored",
        verifier=str,
        old_versions=list[str],
        new_version=str,
        num_trajectories=int,
        changed=dict[str, int],
        examples=list[str],
        output=str,
    )


def _verdict() -> dict[str, Any]:
    from burnish.core.types import Verdict

    hints = get_type_hints(Verdict)
    del hints["step_scores"]  # a reply from a file has no steps
    return hints


def _doctor() -> dict[str, Any]:
    from burnish.cli.doctor import Advice
    from burnish.observe.resources import MachineFacts

    numbers, flags = dict[str, float], dict[str, bool]
    return {
        "machine": MachineFacts,
        "gflops": numbers,
        "fastest_dtype": str,
        "tokens_per_s": numbers,
        "largest_params": numbers,
        "packages": flags,
        "tools": flags,
        "sandbox_namespaces": bool,
        "cache": str,
        "registry": str,
        "advice": list[Advice],
    }


def _error() -> dict[str, Any]:
    return _output("error", "", error=str, what=str, where=str, fix=str, exit_code=int).schema
