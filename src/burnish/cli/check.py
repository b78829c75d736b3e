"""`burnish check`: a verifier's own cases, or a domain's promises."""

from __future__ import annotations

from collections.abc import Mapping

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit, table
from burnish.core.errors import ExitCode

TASKS = 64
"""Tasks that are drawn from each set of a domain: enough for every template of the built-in ones."""


@click.command("check")
@click.argument("kind", type=click.Choice(["verifier", "domain"]))
@click.argument("name", required=False)
@json_option
def command(kind: str, name: str | None, as_json: bool) -> int:
    """Check the verifier or domain NAME; without a name, list those that are known.

    A verifier must decide its own cases and keep its protocol on nasty texts; a domain's right replies must
    pass, and its sets must share nothing. Exit code 2 where they do not.
    """
    if name is None:
        return _list(kind, as_json)
    return _check_verifier(name, as_json) if kind == "verifier" else _check_domain(name, as_json)


def _list(kind: str, as_json: bool) -> int:
    from burnish.domains.registry import domain_names
    from burnish.verify.registry import verifier_names

    names = list(verifier_names() if kind == "verifier" else domain_names())
    emit("check-names", {"kind": kind, "names": names}, "\n".join(names), as_json=as_json)
    return int(ExitCode.OK)


def _check_verifier(name: str, as_json: bool) -> int:
    from burnish.core.errors import VerifierError
    from burnish.verify.cases import run_cases
    from burnish.verify.conformance import check_verifier_conformance
    from burnish.verify.registry import get_verifier

    verifier = get_verifier(name)
    report = run_cases(verifier)
    findings = list(report.findings)
    if report.ok:
        try:
            check_verifier_conformance(verifier)
        except VerifierError as error:
            findings.append(error.what)
    cases = [
        {
            "kind": result.case.kind,
            "why": result.case.why,
            "want": result.case.want,
            "found": result.verdict.outcome.value,
            "reason": result.verdict.reason,
            "ok": result.ok,
        }
        for result in report.results
    ]
    rows = [("ok" if c["ok"] else "WRONG", c["want"], c["found"], c["kind"], c["why"]) for c in cases]
    lines = [table(("", "want", "found", "kind", "why"), rows)] if rows else []
    lines += [f"finding: {finding}" for finding in findings]
    lines.append(f"{report.verifier} {report.version}: {len(cases)} cases, {len(findings)} findings")
    data = {"name": report.verifier, "version": report.version, "cases": cases}
    return _finish("verifier", data, findings, lines, as_json)


def _check_domain(name: str, as_json: bool) -> int:
    from burnish.core.errors import DataError, VerifierError
    from burnish.core.types import Split
    from burnish.domains.base import assert_disjoint, check_gold
    from burnish.domains.registry import get_domain

    domain = get_domain(name)
    findings: list[str] = []
    sets = {}
    for split in Split:
        if domain.limit(split) == 0:  # public tasks, say, have no training set
            continue
        try:
            sets[str(split)] = domain.generate(split, TASKS, seed=0)
            check_gold(sets[str(split)])
        except (DataError, VerifierError) as error:
            findings.append(f"{split}: {error.what}")
    try:
        assert_disjoint(sets)
    except DataError as error:
        findings.append(error.what)
    rows = [(split, len(tasks), len({e.task.cluster for e in tasks})) for split, tasks in sets.items()]
    lines = [table(("set", "tasks", "clusters"), rows), *(f"finding: {finding}" for finding in findings)]
    lines.append(f"{domain.name}, judged by {domain.verifier}: {len(findings)} findings")
    data = {
        "name": domain.name,
        "verifier": domain.verifier,
        "sets": [{"split": split, "tasks": tasks, "clusters": clusters} for split, tasks, clusters in rows],
    }
    return _finish("domain", data, findings, lines, as_json)


def _finish(kind: str, data: Mapping[str, object], findings: list[str], lines: list[str], as_json: bool) -> int:
    found = {"kind": kind, **data, "findings": findings, "ok": not findings}
    emit(f"check-{kind}", found, "\n".join(lines), as_json=as_json)
    return int(ExitCode.BAD_INPUT if findings else ExitCode.OK)
