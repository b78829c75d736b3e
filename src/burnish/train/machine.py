"""How fast this machine runs a model: estimated from two products of its own size, in about a second.

The figures are for planning (`--dry-run`, the memory check); a run reports what it measured.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from burnish.models.dtype import choose_dtype
from burnish.train.geometry import MachineRates
from burnish.train.recipe import Recipe

DECODE_SHARE, PREFILL_SHARE, TRAIN_SHARE = 0.6, 0.7, 0.7
"""Share of the plain product's speed that each kind of work reaches. Measured with a 135M Llama model on two
AVX2 cores: decoding 64 sequences 0.6, prompts 0.7, training 0.7."""

FORWARD_FLOPS, TRAIN_FLOPS = 2.0, 6.0
"""Floating-point operations a weight and token: forward, and forward with backward (Kaplan et al. 2020,
arXiv 2001.08361, table 1)."""


def measure_rates(folder: Path, recipe: Recipe) -> MachineRates:
    """Estimated rates of the model in a folder, from its shape and two timed matrix products."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config = config.get("text_config", config)
    sampler_dtype, autocast = choose_dtype(recipe.model.dtype)
    params = _num_parameters(folder, config)
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    train_dtype = torch.bfloat16 if autocast else torch.float32
    decode = _flops_per_s(recipe.engine.max_sequences, hidden, sampler_dtype)
    wide = _flops_per_s(512, hidden, train_dtype)
    lora = recipe.model.lora
    return MachineRates(
        decode_tokens_per_s=DECODE_SHARE * decode / (FORWARD_FLOPS * params),
        prefill_tokens_per_s=PREFILL_SHARE * wide / (FORWARD_FLOPS * params),
        train_tokens_per_s=TRAIN_SHARE * wide / (TRAIN_FLOPS * params),
        params=params,
        kv_bytes_per_token=2 * layers * kv_heads * head_dim * sampler_dtype.itemsize,
        # What transformers' layers keep for the backward pass: about 34 values of hidden size a layer
        # (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1), in float32.
        activation_bytes_per_token=34 * layers * hidden * 4,
        bytes_per_weight=4,
        trainable_frac=1.0 if lora is None else _lora_frac(lora.rank, hidden, params, layers, len(lora.target_modules)),
    )


def _num_parameters(folder: Path, config: dict[str, Any]) -> int:
    """Weights in the folder's safetensors, from their headers."""
    from safetensors import safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                size = 1
                for side in file.get_slice(name).get_shape():
                    size *= side
                count += size
    return count


def _lora_frac(rank: int, hidden: int, params: int, layers: int, modules: int) -> float:
    """Share of weights that adapters add: two matrices of rank x about 2 hidden for each module."""
    return min(1.0, layers * modules * rank * 3 * hidden / params)


def _flops_per_s(rows: int, hidden: int, dtype: torch.dtype) -> float:
    a, b = torch.randn(rows, hidden).to(dtype), torch.randn(4 * hidden, hidden).to(dtype)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        torch.nn.functional.linear(a, b)
        best = min(best, time.perf_counter() - began)
    return 2.0 * rows * hidden * 4 * hidden / best
