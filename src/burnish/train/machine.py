"""How large a model is, and how fast this machine runs it.

Sizes are read from the model's folder. Rates are measured on the model itself, made shallow: sampling, prompts
and training are each timed with one layer and with three, of random weights, in the recipe's precision, and what
a layer adds is counted for all of them. Leaves out what a run measures and reports: proofs, optimiser, verifiers.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnish.core.protocols import Sampling
from burnish.models.decoder import make_decoder
from burnish.models.dtype import choose_dtype
from burnish.models.load import read_config, shallow_model
from burnish.models.policy import LoraSpec, Policy
from burnish.objectives.sft import SFT
from burnish.rollout.engine_sampling import draw_tokens
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators
from burnish.train.context import lora_spec
from burnish.train.geometry import MICRO_BATCH_TOKENS, MachineRates, ModelSize, TokenLengths
from burnish.train.recipe import Recipe

FEW_LAYERS, MORE_LAYERS = 1, 3
REPEATS = 3
"""Timed repetitions; the fastest counts, since other processes only ever slow one down."""
MAX_WIDTH, ADMITTED_AT_ONCE = 128, 32
FULL_SHARE = 0.8
"""Share of the sampler's slots that a run keeps busy: rounds end with a few long replies."""


def measure_size(folder: Path, recipe: Recipe) -> ModelSize:
    """Sizes of the model in a folder, from its config and the headers of its weights."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config = config.get("text_config", config)
    sampler_dtype, _ = choose_dtype(recipe.model.dtype)
    params = _num_parameters(folder)
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    lora = recipe.model.lora
    return ModelSize(
        params=params,
        kv_bytes_per_token=2 * layers * kv_heads * head_dim * sampler_dtype.itemsize,
        # What transformers' layers keep for the backward pass: about 34 values of hidden size a layer
        # (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1), in float32.
        activation_bytes_per_token=34 * layers * hidden * 4,
        bytes_per_weight=4,
        trainable_frac=1.0 if lora is None else _lora_frac(lora.rank, hidden, params, layers, len(lora.target_modules)),
    )


def _num_parameters(folder: Path) -> int:
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


def recipe_rates(folder: Path, recipe: Recipe) -> MachineRates:
    """Rates of the model in a folder as a recipe would run it."""
    dtype, autocast = choose_dtype(recipe.model.dtype)
    width = min(recipe.engine.max_sequences, MAX_WIDTH)
    return measure_rates(read_config(folder), dtype, autocast=autocast, lora=lora_spec(recipe), width=width)


def measure_rates(
    config: Any, dtype: torch.dtype, *, autocast: bool, lora: LoraSpec | None = None, width: int = MAX_WIDTH
) -> MachineRates:
    """Rates on this machine of a model with this transformers configuration; takes seconds with a small model.

    `dtype`: the sampler's; `autocast`: whether training multiplies in bf16; `width`: sequences in flight.
    """
    layers = int(config.get_text_config().num_hidden_layers)
    with torch.random.fork_rng():
        few, more = (
            _token_seconds(shallow_model(config, depth), dtype, autocast, lora, width)
            for depth in (FEW_LAYERS, MORE_LAYERS)
        )
    whole = few + np.maximum(more - few, 0.0) / (MORE_LAYERS - FEW_LAYERS) * (layers - FEW_LAYERS)
    decode, prefill, train = (1.0 / whole).tolist()
    return MachineRates(FULL_SHARE * decode, prefill, train)


def _token_seconds(
    model: Any, dtype: torch.dtype, autocast: bool, lora: LoraSpec | None, width: int
) -> NDArray[np.float64]:
    """Seconds a token [3]: sampled at this width, of a prompt, trained."""
    rng = np.random.default_rng(0)
    lengths = TokenLengths()
    vocabulary = int(model.config.get_text_config().vocab_size)

    def some(tokens: float) -> NDArray[np.int32]:
        return rng.integers(0, vocabulary, int(tokens), dtype=np.int32)

    prompts = [some(lengths.prompt) for _ in range(width)]
    sampled, prompted = _sampler_seconds(model, dtype, prompts)
    policy = Policy(model, Path(), lora=lora, autocast=autocast)
    rows: list[TrainSequence] = []
    while sum(len(row.ids) for row in rows) < MICRO_BATCH_TOKENS:
        ids = some(lengths.prompt + lengths.reply)
        rows.append(TrainSequence(ids, np.arange(len(ids)) >= lengths.prompt, group=len(rows)))
    return np.array([sampled, prompted, _trainer_seconds(policy, rows)])


def _sampler_seconds(model: Any, dtype: torch.dtype, prompts: list[NDArray[np.int32]]) -> tuple[float, float]:
    """Seconds a sampled token and a prompt's token, with as many sequences in flight as there are prompts."""
    width = len(prompts)
    if not (decoder := make_decoder(model, dtype=dtype, max_slots=width)).continuous:
        prompts = prompts[:ADMITTED_AT_ONCE]
    seeds = np.arange(len(prompts), dtype=np.uint64)
    sampling = Sampling(max_tokens=REPEATS + 1, temperature=1.0)
    prompted, logits = [], []
    for start in range(0, len(prompts), ADMITTED_AT_ONCE):
        some = prompts[start : start + ADMITTED_AT_ONCE]
        began = time.perf_counter()
        logits.append(decoder.admit(some, [REPEATS + 1] * len(some)))
        prompted.append((time.perf_counter() - began) / sum(len(ids) for ids in some))
    sampled, latest = [], torch.cat(logits)
    for position in range(REPEATS + 1):
        began = time.perf_counter()
        drawn = draw_tokens(latest, sampling, seeds, np.full(len(prompts), position, dtype=np.int64))
        latest = decoder.step(drawn.tokens)
        sampled.append((time.perf_counter() - began) / len(prompts))
    return min(sampled), min(prompted)


def _trainer_seconds(policy: Policy, rows: list[TrainSequence]) -> float:
    """Seconds a token of one micro-batch, forward and backward."""
    backend = LocalBackend(policy)
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step = backend.forward_backward(rows, SFT(), step_denominators(rows))
        found.append((time.perf_counter() - began) / step.num_computed_tokens)
    return min(found)
