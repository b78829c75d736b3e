"""Inference decoders: prompts and tokens in, next-token logits out, over a slot-based KV cache.

Two of them share one interface: `decoder_fast.FastDecoder` (Llama, Qwen2, Qwen3) and `TransformersDecoder` (any
causal model of transformers, slower, whole waves only). Neither samples; see `rollout.engine_sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from burnish.core.errors import ModelError
from burnish.models.decoder_fast import FAST_ARCHITECTURES, FastDecoder
from burnish.models.dtype import cast_parameters


class Decoder(Protocol):
    """What the local engine drives. Slots 0..B-1 are always the active ones.

    A slot is a history, not a completion: completions that agree so far are one slot, forked where they part.
    """

    continuous: bool
    max_context_tokens: int
    num_computed_tokens: int
    stream_dtype: torch.dtype  # of the residual stream, norms and rotation

    @property
    def num_active(self) -> int: ...
    def load(self, state: Mapping[str, Tensor]) -> None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def admit(self, prompts: Sequence[NDArray[np.int32]], reserve: Sequence[int]) -> Tensor: ...
    def step(self, tokens: Tensor) -> Tensor: ...
    def fork(self, slots: Sequence[int]) -> None: ...
    def release(self, slots: Sequence[int]) -> list[int]: ...
    def flush(self) -> None: ...
    def score_hidden(self, ids: NDArray[np.int32]) -> Tensor: ...
    def project(self, hidden: Tensor) -> Tensor: ...


class TransformersDecoder:
    """Any causal model through transformers' own forward and cache.

    Costs against the fast path: whole waves (a finished row is dropped, but nothing joins), no prefix shared
    between different prompts, and transformers' per-layer overhead. Holds its own copy of the model.
    """

    continuous = False

    def __init__(self, model: Any, *, dtype: torch.dtype) -> None:
        self.dtype = self.stream_dtype = dtype
        self._model = cast_parameters(type(model)(model.config), dtype).eval()
        self._model.requires_grad_(False)
        self.max_context_tokens = int(model.config.get_text_config().max_position_embeddings)
        self._cache: Any = None
        self._mask = torch.empty(0, 0, dtype=torch.int64)
        self.num_computed_tokens = 0
        self.load(model.state_dict())

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights by name."""
        self.flush()
        own = self.tensors()
        missing = sorted(set(own) - set(state))
        if missing:
            raise ModelError(f"weights lack {missing[0]!r} ({len(missing)} tensors)", fix="pass the whole state")
        for name, tensor in own.items():
            tensor.copy_(state[name].detach())

    def tensors(self) -> dict[str, Tensor]:
        """The weights that this decoder reads, by their transformers names; a tied head is left out."""
        state = dict(self._model.state_dict())
        if self._model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        return state

    def flush(self) -> None:
        """Forget active slots."""
        self._cache = None
        self._mask = torch.empty(0, 0, dtype=torch.int64)

    @property
    def num_active(self) -> int:
        """Sequences in the cache."""
        return len(self._mask)

    @torch.no_grad()
    def admit(self, prompts: Sequence[NDArray[np.int32]], reserve: Sequence[int]) -> Tensor:
        """Prefill a wave, left-padded; see `FastDecoder.admit`. Refused while slots are active."""
        if self.num_active:
            raise RuntimeError("a wave decoder admits only when it is empty")
        longest = max(len(ids) for ids in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
            mask[row, longest - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
        self.num_computed_tokens += int(mask.sum())
        self._cache, self._mask = out.past_key_values, mask
        logits: Tensor = out.logits[:, -1].float()
        return logits

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every active slot: tokens int64 [B] -> logits float32 [B, V]."""
        self._mask = F.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(1, keepdim=True) - 1
        out = self._model(
            tokens[:, None],
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = out.past_key_values
        return out.logits[:, -1].float()

    def fork(self, slots: Sequence[int]) -> None:
        """Copy these slots' histories into new slots after the active ones."""
        self._select([*range(self.num_active), *slots])

    def release(self, slots: Sequence[int]) -> list[int]:
        """Free slots, keeping the order of the rest."""
        gone = set(slots)
        order = [slot for slot in range(self.num_active) if slot not in gone]
        if order:
            self._select(order)
        else:
            self.flush()
        return order

    def _select(self, order: Sequence[int]) -> None:
        keep = torch.tensor(order)
        self._cache.batch_select_indices(keep)
        self._mask = self._mask[keep]

    @torch.no_grad()
    def score_hidden(self, ids: NDArray[np.int32]) -> Tensor:
        """Logits' hidden states [T, hidden] after the model's own final norm."""
        out = self._model.model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
        return out.last_hidden_state[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, hidden] -> logits float32 [N, V], with the model's own soft-capping if any."""
        logits = self._model.lm_head(hidden)
        cap = getattr(self._model.config.get_text_config(), "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits.float()


def make_decoder(model: Any, *, dtype: torch.dtype, max_slots: int = 64) -> Decoder:
    """The fast decoder where the architecture has one, else the transformers decoder."""
    config = model.config
    plain = getattr(config, "sliding_window", None) in (None, 0) or not getattr(config, "use_sliding_window", True)
    if config.model_type in FAST_ARCHITECTURES and plain and config.hidden_act == "silu":
        return FastDecoder(model, dtype=dtype, max_slots=max_slots)
    return TransformersDecoder(model, dtype=dtype)
