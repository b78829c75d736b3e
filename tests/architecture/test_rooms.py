"""The shape of the code base: rooms, import order, torch-free rooms, sizes, boundaries, seals, start-up
time.

The rooms and their order are read from the import-linter contract in pyproject.toml, so there is one
statement of them. import-linter checks import chains; here every single import statement is checked, those
inside functions and under TYPE_CHECKING included, and what really happens at run time.
"""

from __future__ import annotations

import ast
import resource
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "burnish"

ROOMS = [
    *("core", "observe", "sandbox", "render", "verify", "models", "data", "envs", "domains"),
    *("objectives", "rollout", "evals", "registry", "train", "serve", "dashboard", "cli"),
]

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 120

# Where torch may be named, relative to src/burnish.
TORCH_FILES = (
    "models/*",
    "objectives/*",
    "train/*",
    "serve/*",
    "rollout/engine_*.py",
    "rollout/weights.py",
)
# Packages that import torch themselves, so that naming them is naming torch.
TORCH_PACKAGES = {"torch", "peft", "accelerate", "trl"}

# How often a file may catch everything without raising it again, and which boundary it is: a verifier, an
# environment, a tool, or a worker. Each must record what it caught. Paths are relative to src/burnish.
CATCH_ALL = {
    "rollout/driver.py": 3,  # environment: reset, step and finish; recorded in the trajectory
    "verify/base.py": 1,  # verifier: recorded in the verdict
    "verify/functions.py": 1,  # verifier: the thread hands it to its caller
    "verify/registry.py": 1,  # verifier: a user's module may raise anything while loading
    "domains/registry.py": 1,  # a user's module may raise anything while loading
    "rollout/engine_local.py": 1,  # worker: the scheduler hands it to every caller that waits
}

# Names that, in a string, could open a gold through getattr or import_module.
SEAL_BREAKERS = ("burnish.verify.gold", "_sealed", "open_gold")

FORBIDDEN_MODULE_NAMES = {"utils", "util", "helpers", "common", "misc"}


@cache
def sources() -> dict[str, ast.Module]:
    """Path relative to src/burnish -> syntax tree, for every module."""
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no modules under {PACKAGE}: this test would check nothing"
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(), str(path)) for path in files}


def imports(relative: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a module imports, wherever the statement stands.

    `from a import b` yields both `a` and `a.b`, since b may be a module.
    """
    package = ["burnish", *Path(relative).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, origin
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def all_imports() -> Iterator[tuple[str, int, str]]:
    for relative, tree in sources().items():
        for line, name in imports(relative, tree):
            yield relative, line, name


@cache
def layers() -> list[list[str]]:
    """The rooms as pyproject.toml orders them, highest first; rooms of one layer are independent."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    order = next(contract for contract in contracts if contract["id"] == "rooms")["layers"]
    return [[room.strip() for room in layer.split("|")] for layer in order]


def room_of(relative: str) -> str:
    """The room a file is in; "" for burnish/__init__.py."""
    parts = Path(relative).parts
    return parts[0] if len(parts) > 1 else ""


# ------------------------------------------------------------------------------------------------- the rooms


def test_contract_names_every_room() -> None:
    assert sorted(room for layer in layers() for room in layer) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_room_exists_and_says_what_it_is_for(room: str) -> None:
    path = PACKAGE / room / "__init__.py"
    assert path.is_file(), f"{path} is missing"
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def test_nothing_lies_outside_the_rooms() -> None:
    found = {room_of(relative) for relative in sources()}
    assert found - {""} <= set(ROOMS)
    assert [relative for relative in sources() if room_of(relative) == ""] == ["__init__.py"]


def test_imports_point_downwards() -> None:
    rank = {room: index for index, layer in enumerate(layers()) for room in layer}
    wrong = []
    for relative, line, name in all_imports():
        importer, parts = room_of(relative), name.split(".")
        if not importer or parts[0] != "burnish" or len(parts) < 2 or parts[1] not in rank:
            continue
        imported = parts[1]
        if imported != importer and rank[imported] <= rank[importer]:
            wrong.append(f"{relative}:{line} imports {name}, which is not below {importer}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_torch_is_named_only_where_weights_are() -> None:
    wrong = [
        f"{relative}:{line} imports {name}"
        for relative, line, name in all_imports()
        if name.split(".")[0] in TORCH_PACKAGES and not any(fnmatch(relative, glob) for glob in TORCH_FILES)
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_gold_is_opened_only_in_verify() -> None:
    wrong = [
        f"{relative}:{line} imports {name}"
        for relative, line, name in all_imports()
        if f"{name}.".startswith("burnish.verify.gold.") and room_of(relative) != "verify"
    ]
    for relative, tree in sources().items():
        if relative == "core/gold.py" or room_of(relative) == "verify":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "_sealed":
                wrong.append(f"{relative}:{node.lineno} reaches into a sealed gold")
            if isinstance(node, ast.Constant) and node.value in SEAL_BREAKERS:
                wrong.append(f"{relative}:{node.lineno} names {node.value} in a string")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_no_room_for_odds_and_ends() -> None:
    wrong = [
        relative for relative in sources() if FORBIDDEN_MODULE_NAMES & {Path(p).stem for p in Path(relative).parts}
    ]
    assert not wrong, f"a line belongs to the room whose question it answers, not to {wrong}"


# ----------------------------------------------------------------------------------------------------- sizes


def test_files_are_readable_in_one_sitting() -> None:
    wrong = []
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        num_lines = len(path.read_text().splitlines())
        if num_lines > MAX_FILE_LINES:
            wrong.append(f"{path.relative_to(ROOT)}: {num_lines} lines, at most {MAX_FILE_LINES}")
    assert not wrong, "\n".join(wrong)


def test_functions_are_readable_in_one_look() -> None:
    wrong = []
    for relative, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    where = f"{relative}:{node.lineno} {node.name}"
                    wrong.append(f"{where}: {num_lines} lines, at most {MAX_FUNCTION_LINES}")
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------------ boundaries


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Whether a handler stops any exception: a broad type, and no bare `raise` as its last statement."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in types
    )
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_everything_is_caught_only_at_the_boundaries() -> None:
    found: dict[str, int] = {}
    lines = []
    for relative, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and catches_all(node):
                found[relative] = found.get(relative, 0) + 1
                lines.append(f"{relative}:{node.lineno}")
    where = "\n".join(lines)
    assert found == CATCH_ALL, f"catch what you expect, or defend the boundary in CATCH_ALL:\n{where}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("try: f()\nexcept Exception: g()", True),
        ("try: f()\nexcept: g()", True),
        ("try: f()\nexcept (ValueError, BaseException) as e: g(e)", True),
        ("try: f()\nexcept BaseException:\n    g()\n    raise", False),
        ("try: f()\nexcept (ValueError, KeyError): g()", False),
    ],
)
def test_catch_all_is_recognised(source: str, expected: bool) -> None:
    handler = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ExceptHandler))
    assert catches_all(handler) is expected


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from . import a\nfrom ..core import types\nfrom torch import nn\nimport os.path")
    assert [name for _, name in imports("verify/compose.py", tree)] == [
        "burnish.verify",
        "burnish.verify.a",
        "burnish.core",
        "burnish.core.types",
        "torch",
        "torch.nn",
        "os.path",
    ]


# -------------------------------------------------------------------------------------------------- run time


def python(code: str) -> str:
    """Run code in a fresh interpreter, return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "burnish",
        "burnish.cli.main",
        "burnish.core",
        "burnish.dashboard",
        "burnish.data",
        "burnish.domains",
        "burnish.envs",
        "burnish.observe",
        "burnish.registry",
        "burnish.render",
        "burnish.sandbox",
        "burnish.verify",
    ],
)
def test_importing_loads_no_torch(module: str) -> None:
    heavy = "torch transformers peft trl"
    loaded = python(f"import sys, {module}; print(*(set('{heavy}'.split()) & set(sys.modules)))")
    assert loaded.split() == []


def test_importing_prints_and_warns_nothing() -> None:
    code = "import burnish.cli.main"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """It promises 0.3 s; CPU time is bounded at twice that, so that a busy machine is no failure."""
    code = "import sys; sys.argv = ['burnish', '--help']; from burnish.cli.main import main; sys.exit(main())"
    times_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "Usage" in python(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    median_s = statistics.median(times_s)
    with capsys.disabled():
        print(f"\nburnish --help: {median_s:.3f} s of CPU time (median of 5; promised 0.3)")
    assert median_s < 0.6
