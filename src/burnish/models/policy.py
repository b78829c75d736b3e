"""A policy: weights that can be trained, scored and handed to a sampler.

Legend: R rows, T positions, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.errors import ConfigError
from burnish.models.dtype import cast_parameters
from burnish.models.load import load_transformers
from burnish.models.packing import PackedRows, count_tree_tokens, lay_out, plan_rows

TREE_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen2_moe", "qwen3_moe"})
"""Architectures whose attention takes an arbitrary mask in every layer."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "added_tokens.json",
)


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): rank, alpha, and which projections carry them."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReferenceScores:
    """Log-probabilities of sequences, [T] each, first entry NaN, by transformers: `own` from the weights as they are
    and `exact` from the rounded ones, both in fp32; `rounded` from these with the sampler's products and stream.

    `rounded` against `exact` is what rounding does to a sampler, against `own` what it does to a trainer, which rounds
    weights only as it computes.
    """

    own: list[NDArray[np.float64]]
    exact: list[NDArray[np.float64]]
    rounded: list[NDArray[np.float64]]


class Policy:
    """A causal model with its folder of origin, and optionally LoRA.

    `autocast`: run the forward pass of training in bf16 (weights stay in `dtype`).
    """

    def __init__(self, model: Any, folder: Path, *, lora: LoraSpec | None = None, autocast: bool = False) -> None:
        self.folder = folder
        self.lora = lora
        self.autocast = autocast
        self.config = model.config
        self.model = _with_lora(model, lora) if lora is not None else model
        text_config = model.config.get_text_config()
        sliding = (
            getattr(text_config, "sliding_window", None) if getattr(text_config, "use_sliding_window", True) else None
        )
        self.can_share_prefixes = model.config.model_type in TREE_ARCHITECTURES and not sliding

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float32,
        lora: LoraSpec | None = None,
        autocast: bool = False,
    ) -> Policy:
        """The policy in a model folder.

        Raises: ModelError (see `load_transformers`); ConfigError for LoRA targets that do not exist.
        """
        return cls(load_transformers(folder, dtype=dtype), folder, lora=lora, autocast=autocast)

    @property
    def base(self) -> Any:
        """The transformers model, without adapter wrappers around it."""
        return self.model.get_base_model() if self.lora is not None else self.model

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.model.parameters()).dtype

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones once."""
        return sum(p.numel() for p in self.model.parameters())

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Named parameters that training moves."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    # --- forward ------------------------------------------------------------------------------------

    def hidden(self, rows: PackedRows) -> Tensor:
        """Last hidden states after the final norm, flat [R*T, hidden], with gradient where enabled."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            if self.can_share_prefixes:
                bias = torch.zeros(rows.attend.shape, dtype=self.dtype)
                bias.masked_fill_(~rows.attend, torch.finfo(self.dtype).min)
                out = self.base.model(
                    input_ids=rows.ids, attention_mask=bias, position_ids=rows.positions, use_cache=False
                )
            else:
                # One sequence a row, right-padded: padding comes after every real token, so that causal
                # attention alone keeps it out, in full and in sliding layers alike.
                out = self.base.model(input_ids=rows.ids, position_ids=rows.positions, use_cache=False)
        return out.last_hidden_state.flatten(0, 1)

    @property
    def head(self) -> Tensor:
        """Output projection [V, hidden]."""
        return self.base.get_output_embeddings().weight

    @property
    def logit_softcap(self) -> float | None:
        """tanh soft cap of the logits (Gemma 2), or None."""
        return getattr(self.config.get_text_config(), "final_logit_softcapping", None)

    def pack(self, sequences: Sequence[NDArray[np.int32]], *, row_tokens: int, rows_at_once: int) -> list[PackedRows]:
        """Micro-batches for these sequences; beginnings are shared where the architecture allows."""
        rows = plan_rows(sequences, row_tokens, share=self.can_share_prefixes)
        rows.sort(key=lambda row: -count_tree_tokens(sequences, row))
        return [lay_out(sequences, rows[i : i + rows_at_once]) for i in range(0, len(rows), rows_at_once)]

    @torch.no_grad()
    def score(self, sequences: Sequence[NDArray[np.int32]], *, temperature: float = 1.0) -> list[NDArray[np.float64]]:
        """Log-probability of every token given those before it, [T] each, first entry NaN."""
        out = [np.full(len(ids), np.nan) for ids in sequences]
        for packed in self.pack(sequences, row_tokens=512, rows_at_once=4):
            hidden = self.hidden(packed)
            for member, source in packed.sources.items():
                targets = torch.from_numpy(sequences[member][1:].astype(np.int64))
                logits = self.logits(hidden[source]) / temperature
                logp = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
                out[member][1:] = logp.double().numpy()
        return out

    def reference_scores(
        self, sequences: Sequence[NDArray[np.int32]], dtype: torch.dtype, *, stream: torch.dtype = torch.float32
    ) -> ReferenceScores:
        """As `score`, by a model of its own, built for the time of the call: of the weights as they are, and rounded to
        `dtype` with the residual stream in `stream`, as a sampler of that dtype computes."""
        model = type(self.base)(self.base.config).float().eval().requires_grad_(False)
        state = self.sampler_state()

        def load(dtype: torch.dtype) -> None:
            found = {name: tensor.to(dtype).float() for name, tensor in state.items()}
            missing, unexpected = model.load_state_dict(found, strict=False)
            model.tie_weights()
            if unexpected or set(missing) - {"lm_head.weight"}:
                raise RuntimeError(f"the reference model lacks {missing}, does not know {unexpected}")

        load(torch.float32)
        own = Policy(model, self.folder).score(sequences)
        load(dtype)
        exact = Policy(model, self.folder).score(sequences)
        if stream == dtype:
            cast_parameters(model, dtype)
        else:
            model.lm_head.weight = torch.nn.Parameter(self.head.detach().to(dtype), requires_grad=False)
        return ReferenceScores(own, exact, Policy(model, self.folder, autocast=stream != dtype).score(sequences))

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states after the final norm [N, hidden] -> logits [N, V], at least float32."""
        logits = torch.nn.functional.linear(hidden.to(self.head.dtype), self.head)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.logit_softcap:
            logits = torch.tanh(logits / self.logit_softcap) * self.logit_softcap
        return logits

    # --- weights ------------------------------------------------------------------------------------

    @torch.no_grad()
    def sampler_state(self) -> dict[str, Tensor]:
        """Weights by their transformers names as a sampler needs them: adapters merged, tied head left out."""
        state = merged_state(self.model) if self.lora is not None else dict(self.model.state_dict())
        if self.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        return state

    def save(self, folder: Path) -> None:
        """Write config, safetensors (adapters merged) and tokenizer files that transformers and vLLM load."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in self.sampler_state().items()}
        self.base.save_pretrained(folder, state_dict=state)
        for name in TOKENIZER_FILES:
            source = self.folder / name
            if source.is_file() and name != "generation_config.json":
                shutil.copyfile(source, folder / name)
        if (self.folder / "generation_config.json").is_file():
            shutil.copyfile(self.folder / "generation_config.json", folder / "generation_config.json")


def _with_lora(model: Any, lora: LoraSpec) -> Any:
    from peft import LoraConfig, get_peft_model

    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    unknown = sorted(set(lora.target_modules) - names)
    if unknown:
        raise ConfigError(
            f"LoRA target {unknown[0]!r} is no module of this model",
            where="model.lora.target_modules",
            fix="choose among q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        )
    ends = [module for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module is not None]
    tied = sorted(name for name, module in model.named_modules() if any(module is end for end in ends))
    at_ends = [name for name in tied if name.rsplit(".", 1)[-1] in lora.target_modules]
    if at_ends:
        raise ConfigError(
            f"LoRA target {at_ends[0].rsplit('.', 1)[-1]!r} is an embedding or the output projection, which is trained "
            "whole or not at all",
            where="model.lora.target_modules",
            fix="choose among q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        )
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0)
    return get_peft_model(model, config).eval()


@torch.no_grad()
def merged_state(model: Any) -> dict[str, Tensor]:
    """The base model's state with every active LoRA delta added, under the base model's names."""
    from peft.tuners.lora import LoraLayer

    state: dict[str, Tensor] = {}
    deltas: dict[str, Tensor] = {}
    base = model.get_base_model()
    for name, module in base.named_modules():
        if isinstance(module, LoraLayer):
            deltas[f"{name}.weight"] = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
    for name, tensor in base.state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        delta = deltas.get(plain)
        # An adapter that is still zero leaves the bytes as they are: adding 0.0 would turn -0.0 into 0.0.
        state[plain] = tensor if delta is None or not delta.any() else tensor + delta.to(tensor.dtype)
    return state


def merge_into(model: Any, state: Mapping[str, Tensor]) -> None:
    """Copy a state into a model by name (tests and rollback)."""
    model.load_state_dict(dict(state), strict=False)
