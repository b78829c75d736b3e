"""What would be met at a gate, or after the final set was opened, is met before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burnish.core.errors import ConfigError, DataError, InputError, VerifierError
from burnish.core.gold import Gold
from burnish.core.types import Message, Role, Split, Task, ToolSpec
from burnish.domains.base import Example
from burnish.domains.files import FileDomain
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import load_tokenizer
from burnish.train.pipeline import run
from burnish.train.prepare import prepare
from burnish.train.recipe import load_recipe
from burnish.train.sft import sft_sequences

RECIPE = """
name: mine
model: {{source: {model}, dtype: float32}}
tasks:
  domains: {domains}
  verifier: {verifier}
  {labels}
  development: 10
  gate: 10
  final: 10
few_shot: {{candidates: {candidates}{shots}}}
sampling: {{max_tokens: 12}}
stages:
  - {{kind: {kind}, lr: 1e-3{keys}}}
external: {{bfcl: false}}
{more}
"""

Rows = list[dict[str, Any]]


@pytest.fixture
def task(tmp_path: Path, tiny_folder: Path) -> Callable[..., Path]:
    def write(rows: Rows, *, kind: str = "sft", more: str = "", **values: Any) -> Path:
        keys = ", rows_per_step: 4" if kind == "sft" else ", steps: 2, prompts_per_step: 2, group_size: 4"
        filled: dict[str, Any] = {
            "model": tiny_folder,
            "domains": "[rows.jsonl]",
            "verifier": "exact",
            "labels": "train_labels: 8",
            "candidates": 2,
            "shots": ", shots: 2",
            "kind": kind,
            "keys": keys + str(values.pop("keys", "")),
            "more": more,
        } | values
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
        (tmp_path / "recipe.yaml").write_text(RECIPE.format(**filled), "utf-8")
        return tmp_path / "recipe.yaml"

    return write


def numbered(count: int, **more: Any) -> Rows:
    return [{"prompt": f"Say {i}.", "answer": "ok", **more} for i in range(count)]


def refused(recipe: Path, error: type[InputError], match: str) -> InputError:
    folder = recipe.parent / "run"
    with pytest.raises(error, match=match) as caught:
        run(recipe, out=folder)
    assert not folder.exists()
    assert caught.value.fix
    return caught.value


def test_a_prompt_that_does_not_fit_is_named_before_the_run(task: Callable[..., Path]) -> None:
    for number in (3, 17):  # whichever sets they fall into
        rows = numbered(160)
        rows[number]["prompt"] += " again" * 2_100
        error = refused(task(rows), DataError, r"leaves no room for a reply")
        assert f"rows.jsonl:{number + 1}" in error.where


def test_few_shot_prompts_that_do_not_fit_are_found_with_the_longest_task(task: Callable[..., Path]) -> None:
    rows = numbered(160)
    for row in rows:
        row["prompt"] += " again" * 700
    error = refused(task(rows), ConfigError, "few-shot prompt 0 of rows takes")
    assert "few_shot.shots" in error.where


def test_two_files_of_one_name_are_refused(task: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    recipe = task(numbered(160), domains="[rows.jsonl, other/rows.jsonl]")
    (tmp_path / "other" / "rows.jsonl").write_text("\n".join(map(json.dumps, numbered(160, tags=["b"]))), "utf-8")
    refused(recipe, ConfigError, "two domains are named 'rows'")


def test_every_row_that_rl_may_draw_is_held_against_its_verifier(task: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def same(reply, gold):\n    return float(reply == gold['want'])\n")
    rows = [{"prompt": f"Say {i}.", "reply": "ok", "gold": {"want": "ok"}} for i in range(160)]
    values = {"verifier": "judge.py:same", "labels": "train_labels: 4", "kind": "grpo", "candidates": 2}
    prepare(load_recipe(task(rows, **values)).recipe, tmp_path)
    for broken in ({"want": "no"}, {"wants": "ok"}):
        domain = FileDomain(tmp_path / "rows.jsonl", "exact")
        shown = {e.task.id for e in domain.labelled(4, 0)}
        rows = [{"prompt": f"Say {i}.", "reply": "ok", "gold": {"want": "ok"}} for i in range(160)]
        drawn = [e for e in domain.labelled(domain.limit(Split.TRAIN), 1) if e.task.id not in shown]
        number = int(drawn[0].task.prompt[0].text[4:-1])
        rows[number]["gold"] = broken
        refused(task(rows, **values), VerifierError, "rejects the demonstration|gives no verdict")


def test_gold_without_a_reply_must_be_usable_and_tells_its_components(
    task: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"prompt": f"Say {i}.", "gold": {"schema": {"type": "object"}}} for i in range(160)]
    values = {"verifier": "json_schema", "labels": "", "candidates": 0, "shots": "", "kind": "grpo"}
    prepared = prepare(load_recipe(task(rows, **values)).recipe, tmp_path)
    assert prepared.sets.components == {"parsed", "valid"}
    for row in rows[::10]:
        row["gold"] = {"schema": 5}
    refused(task(rows, **values), VerifierError, "gives no verdict")


def test_guards_are_checked_before_the_run(task: Callable[..., Path], tmp_path: Path) -> None:
    guard = "guards:\n  - {name: mine, tasks: guard.jsonl, verifier: exact, margin: 0.2}"

    def write(count: int, answer: Any = "ok") -> None:
        table = [{"prompt": f"Hi {i}", "answer": "ok"} for i in range(count - 1)] + [{"prompt": "Hi", "gold": answer}]
        (tmp_path / "guard.jsonl").write_text("\n".join(map(json.dumps, table)), "utf-8")

    write(20)
    refused(task(numbered(160), more=guard), DataError, "the guard 'mine' has 20 rows")
    write(30, {"no": "such form"})
    refused(task(numbered(160), more=guard), VerifierError, "gives no verdict")
    write(30)
    prepare(load_recipe(task(numbered(160), more=guard)).recipe, tmp_path)


def test_a_verifier_that_hangs_does_not_hang_the_checks(
    task: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge.py").write_text("import asyncio\nasync def slow(reply, gold):\n    await asyncio.sleep(3600)\n")
    monkeypatch.setattr("burnish.domains.base.verify_one.__kwdefaults__", None)
    monkeypatch.setattr("burnish.domains.base.verify_one.__defaults__", (0.05, 0))
    refused(task(numbered(160), verifier="judge.py:slow"), VerifierError, "no verdict within 0.05 s")


def test_one_event_loop_from_the_first_check_to_the_end(task: Callable[..., Path], tmp_path: Path) -> None:
    """A verifier that keeps a client open is only ever awaited in the loop that it was opened in."""
    (tmp_path / "judge.py").write_text(
        "import asyncio\nLOOPS = []\nasync def kept(reply, gold):\n"
        "    loop = asyncio.get_running_loop()\n    LOOPS.append(loop)\n    assert loop is LOOPS[0]\n    return 1.0\n"
    )
    result = run(task(numbered(160), verifier="judge.py:kept"), out=tmp_path / "run")
    assert result.report_path.is_file()


def test_turns_and_tools_of_the_prompt_are_context_and_only_the_answer_is_learnt(tiny_folder: Path) -> None:
    renderer = Renderer(load_tokenizer(tiny_folder))
    said = (Message.of(Role.USER, "Two and two?"), Message.of(Role.ASSISTANT, "five"), Message.of(Role.USER, "No."))
    tool = ToolSpec("clock", "The time.", {"type": "object", "properties": {}})
    task = Task.create(
        said,
        env="single_turn",
        verifier="exact",
        domain="d",
        split=Split.TRAIN,
        cluster="c",
        source="s",
        licence="l",
        tools=(tool,),
    )
    example = Example(task, Gold.seal("four"), Message.of(Role.ASSISTANT, "four"))
    (sequence,) = sft_sequences([example], renderer, max_tokens=512)
    trained = renderer.tokenizer.decode(sequence.ids[sequence.trained].tolist())
    assert "four" in trained
    assert "five" not in trained
    assert "clock" in renderer.tokenizer.decode(sequence.ids.tolist())
