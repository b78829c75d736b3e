"""What the documentation says is true: its code runs, its commands parse, its links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from burnish.cli.main import VERBS, Verbs, burnish, main
from burnish.core.types import Message, Role, Split
from burnish.data.sources import load_tasks
from burnish.domains.base import Example, assert_disjoint, check_gold
from burnish.domains.files import FileDomain
from burnish.evals.power import PairedDesign
from burnish.train.recipe import load_recipe
from burnish.verify.cases import run_cases
from burnish.verify.conformance import check_verifier_conformance
from burnish.verify.registry import get_verifier

ROOT = Path(__file__).resolve().parents[2]
TICKETS = ROOT / "examples" / "tickets"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(path.read_text("utf-8")) if kind == language]


# --- code -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every python block of docs/verifier.md under the name in its first line."""
    names = []
    for body in blocks(ROOT / "docs" / "verifier.md", "python"):
        name = re.match(r"# (\w+\.py)\n", body)
        assert name, f"a block without a file name: {body[:60]}"
        names.append(name[1])
        (tmp_path / name[1]).write_text(body, "utf-8")
    assert len(set(names)) == len(names)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in names:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize(
    "spec",
    ["verifier.py:route", "length.py:short", "mended.py:mended", "composed.py:strict", "parity.py:Parity"],
)
def test_verifiers_of_the_page_pass_their_cases_and_the_protocol(folder: Path, spec: str) -> None:
    verifier = get_verifier(spec)
    run_cases(verifier).require()
    check_verifier_conformance(verifier)


def test_the_page_shows_every_verifier_that_is_checked(folder: Path) -> None:
    checked = {"verifier.py", "length.py", "fragile.py", "mended.py", "composed.py", "parity.py"}
    assert {path.name for path in folder.glob("*.py")} == checked | {"test_parity.py"}


def test_the_users_test_of_the_page_passes(folder: Path) -> None:
    space: dict[str, object] = {}
    exec(compile((folder / "test_parity.py").read_text("utf-8"), "test_parity.py", "exec"), space)
    space["test_parity"]()  # type: ignore[operator]


def test_consoles_show_what_the_commands_print(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for body in blocks(ROOT / "docs" / "verifier.md", "console"):
        for command, shown in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", body, re.MULTILINE):
            words = shlex.split(command)
            if words[0] == "cat":
                (folder / words[1]).write_text(shown, "utf-8")
                continue
            assert printed(words, capsys) == shown
            seen += 1
    assert seen == 2


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints, with `| jq -c '[.a, .b]'` done by hand."""
    fields: list[str] = []
    if "|" in words:
        pipe = words.index("|")
        words, (tool, flag, program) = words[:pipe], words[pipe + 1 :]
        assert (tool, flag) == ("jq", "-c")
        fields = re.findall(r"\.(\w+)", program)
    assert words[0] == "burnish"
    assert main(words[1:]) == 0
    out = capsys.readouterr().out
    if not fields:
        return out
    picked = [[json.loads(line)[field] for field in fields] for line in out.splitlines()]
    return "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in picked)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_blocks_are_python(page: Path) -> None:
    for body in blocks(page, "python"):
        ast.parse(body)


# --- the example ------------------------------------------------------------------------------------


def test_the_example_has_the_verifier_of_the_page(folder: Path) -> None:
    _, _, body = (folder / "verifier.py").read_text("utf-8").partition("\n")
    assert body == (TICKETS / "verifier.py").read_text("utf-8")


def test_the_example_can_be_run() -> None:
    tasks = load_recipe(TICKETS / "recipe.yaml").recipe.tasks
    domain = FileDomain(TICKETS / tasks.domains[0], f"{TICKETS / 'verifier.py'}:route")
    counts = {
        Split.TRAIN: tasks.train_labels,
        Split.DEVELOPMENT: tasks.development,
        Split.GATE: tasks.gate,
        Split.FINAL: tasks.final,
    }
    sets = {str(split): domain.generate(split, count, seed=0) for split, count in counts.items()}
    assert_disjoint(sets)
    for examples in sets.values():
        check_gold(examples, {domain.verifier: get_verifier(domain.verifier)})
    assert min(counts.values()) >= load_recipe(TICKETS / "recipe.yaml").recipe.gate_config().min_clusters


def test_the_examples_guard_has_items_enough() -> None:
    rows = load_tasks(TICKETS / "repeat.jsonl", verifier="exact")
    word = rows[0].task.prompt[0].text.rpartition(" ")[2]
    check_gold([Example(rows[0].task, rows[0].gold, Message.of(Role.ASSISTANT, word))])
    assert len({row.task.id for row in rows}) == len(rows) >= 30


def test_yaml_of_the_tutorial_fits_the_example() -> None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    whole = yaml.load((TICKETS / "recipe.yaml").read_text("utf-8"))
    pieces = [yaml.load(body) for body in blocks(ROOT / "docs" / "tutorial.md", "yaml")]
    assert pieces
    for piece in pieces:
        load_recipe(whole | piece)
    shown = next(piece for piece in pieces if "tasks" in piece)
    assert all(whole[key] == value for key, value in shown.items())


def test_the_tutorials_power_is_computed() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) points \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for in_file, gate, points in rows:
        assert 0.15 * int(in_file.replace(",", "")) == int(gate)
        assert f"{100 * PairedDesign(int(gate), int(gate)).minimum_detectable():.1f}" == points


def test_the_tutorial_explains_every_finding_of_preflight() -> None:
    sources = [ROOT / "src/burnish/data" / name for name in ("preflight.py", "row_checks.py")]
    text = "".join(path.read_text("utf-8") for path in sources)
    codes = set(re.findall(r'(?:Problem\(\s*|Severity\.INFO,\s*|ForkKind\.\w+: \(\s*)"([a-z_]+)"', text))
    assert len(codes) > 15
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    assert {code for code in codes if f"`{code}`" not in tutorial} == set()


# --- commands ---------------------------------------------------------------------------------------


def shell_lines(path: Path) -> list[str]:
    """Commands in code blocks, fenced or indented, that start with `burnish`."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    lines = [line for kind in ("sh", "console", "") for body in blocks(path, kind) for line in body.splitlines()]
    lines += re.findall(r"^ {4}(burnish .*)$", text, re.MULTILINE)
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("burnish ")]


def words_of(line: str) -> list[str]:
    """A command's words after `burnish`, up to a pipe, a redirection or a comment."""
    words = shlex.split(line, comments=True)[1:]
    ends = [i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")]
    return words[: ends[0]] if ends else words


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_parse(page: Path) -> None:
    for line in shell_lines(page):
        verb, *rest = words_of(line)
        if verb.startswith("-"):
            continue
        command = Verbs("burnish").get_command(click.Context(burnish), verb)
        assert command is not None, f"{named(page)}: no verb {verb!r}: {line}"
        try:
            command.make_context(verb, rest)
        except click.UsageError as error:
            pytest.fail(f"{named(page)}: {line}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_mentions_name_verbs_and_their_flags(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for mention in re.findall(r"`burnish ([^`]+)`", text):
        verb, *rest = shlex.split(mention)
        if verb.startswith("-"):
            continue
        assert verb in VERBS, f"{named(page)}: no verb {verb!r}"
        command = Verbs("burnish").get_command(click.Context(burnish), verb)
        assert command is not None
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known, f"{named(page)}: {mention}"


# --- links and paths --------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        at = (page.parent / name) if name else page
        assert at.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(at), f"{named(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_names_a_path_of_some_machine(page: Path) -> None:
    found = re.findall(r"(?<![\w.])/(?:work|root|home|tmp|mnt|Users)/\S*", page.read_text("utf-8"))
    assert not found


# --- dependencies -----------------------------------------------------------------------------------


def test_the_dependency_table_names_no_room_that_does_not_import() -> None:
    text = (ROOT / "docs" / "explain" / "dependencies.md").read_text("utf-8")
    base = text.partition("## Base install")[2].partition("\n## ")[0]
    wrong = []
    for name, rooms in re.findall(r"^\| `([^`]+)` \| [^|]*\| ([^|]*) \|", base, re.MULTILINE):
        module = {"ruamel-yaml": "ruamel", "huggingface-hub": "huggingface_hub"}.get(name, name)
        pattern = re.compile(rf"^\s*(?:import|from) {module}\b", re.MULTILINE)
        for room in re.findall(r"\w+", re.sub(r"none yet.*", "", rooms)):
            sources = (ROOT / "src" / "burnish" / room).rglob("*.py")
            if not any(pattern.search(path.read_text("utf-8")) for path in sources):
                wrong.append(f"{name}: {room}")
    assert wrong == []
