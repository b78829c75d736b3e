"""Inference decoders: prompts and tokens in, next-token logits out, over a slot-based KV cache.

Two of them share one interface: `FastDecoder` (Llama, Qwen2, Qwen3: fused projections, grouped-query
attention as plain batched matrix products) and `TransformersDecoder` (any causal model of transformers,
slower, whole waves only). Neither samples; see `rollout.engine_sampling`.

Legend: B active sequences, N packed tokens, T cache positions, H query heads, K key/value heads, G = H/K,
D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from burnish.core.errors import ModelError

FAST_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
T_BUCKET = 32
"""Cache length is rounded up to this many positions, so that shapes repeat and allocators reuse."""


class Decoder(Protocol):
    """What the local engine drives. Slots 0..B-1 are always the active ones."""

    continuous: bool
    max_context_tokens: int
    num_computed_tokens: int

    @property
    def num_active(self) -> int: ...
    def load(self, state: Mapping[str, Tensor]) -> None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def admit(self, prompts: Sequence[NDArray[np.int32]], copies: Sequence[int], reserve: Sequence[int]) -> Tensor: ...
    def step(self, tokens: Tensor) -> Tensor: ...
    def release(self, slots: Sequence[int]) -> list[int]: ...
    def flush(self) -> None: ...
    def score_hidden(self, ids: NDArray[np.int32]) -> Tensor: ...
    def project(self, hidden: Tensor) -> Tensor: ...


@dataclass(slots=True)
class _Layer:
    """One layer's weights, projections transposed to [in, out]: 5 to 15 % faster at 16-96 rows in fp32."""

    norm_attn: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class _Prefix:
    """Keys and values [layers, 2, K, P, D] of a prompt prefix that several requests share."""

    ids: NDArray[np.int32]
    kv: Tensor


def common_prefix_tokens(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Number of equal leading tokens."""
    limit = min(len(a), len(b))
    different = np.nonzero(a[:limit] != b[:limit])[0]
    return int(different[0]) if len(different) else limit


class FastDecoder:
    """The fast path for Llama-type models; holds its own copy of the weights, refreshed by `load`.

    Prompts that share a prefix of `min_prefix_tokens` or more compute it once and keep it until the next
    `load` or `flush`.
    """

    continuous = True

    def __init__(self, model: Any, *, dtype: torch.dtype, max_prefixes: int = 8, min_prefix_tokens: int = 16) -> None:
        config = model.config
        if config.model_type not in FAST_ARCHITECTURES:
            raise ModelError(
                f"no fast decoder for architecture {config.model_type!r}",
                fix="use the transformers decoder (engine chooses it by itself)",
            )
        self.dtype = dtype
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps: float = config.rms_norm_eps
        self.tied: bool = bool(config.tie_word_embeddings)
        self.max_context_tokens: int = config.max_position_embeddings
        self._rotary = model.model.rotary_emb
        self._embed = torch.empty(0)
        self._head = torch.empty(0)
        self._norm = torch.empty(0)
        self._layers: list[_Layer] = []
        self._cos = self._sin = torch.empty(0)
        self._max_prefixes, self._min_prefix = max_prefixes, min_prefix_tokens
        self._prefixes: list[_Prefix] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._lengths = np.zeros(0, np.int64)
        self.num_computed_tokens = 0
        self.load(model.state_dict())

    # --- weights ------------------------------------------------------------------------------------

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights by their transformers names, and drop every cached prefix of the old ones."""
        self.flush()

        def take(name: str) -> Tensor:
            return state[name].detach().to(self.dtype)

        def optional(name: str) -> Tensor | None:
            return take(name).clone() if name in state else None

        self._embed = take("model.embed_tokens.weight").clone()
        self._head = self._embed if self.tied else take("lm_head.weight").clone()
        self._norm = take("model.norm.weight").clone()
        self._layers = []
        for index in range(self.num_layers):
            at = f"model.layers.{index}."
            attn, mlp = at + "self_attn.", at + "mlp."
            biases = [state.get(f"{attn}{p}_proj.bias") for p in "qkv"]
            self._layers.append(
                _Layer(
                    norm_attn=take(at + "input_layernorm.weight").clone(),
                    qkv=torch.cat([take(f"{attn}{p}_proj.weight") for p in "qkv"]).t().contiguous(),
                    qkv_bias=None if biases[0] is None else torch.cat([take(f"{attn}{p}_proj.bias") for p in "qkv"]),
                    q_norm=optional(attn + "q_norm.weight"),
                    k_norm=optional(attn + "k_norm.weight"),
                    out=take(attn + "o_proj.weight").t().contiguous(),
                    norm_mlp=take(at + "post_attention_layernorm.weight").clone(),
                    gate_up=torch.cat([take(mlp + "gate_proj.weight"), take(mlp + "up_proj.weight")]).t().contiguous(),
                    down=take(mlp + "down_proj.weight").t().contiguous(),
                )
            )

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The weights that this decoder reads, back under their transformers names (views where possible)."""
        named: dict[str, Tensor] = {"model.embed_tokens.weight": self._embed, "model.norm.weight": self._norm}
        if not self.tied:
            named["lm_head.weight"] = self._head
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv * self.head_dim
        for index, layer in enumerate(self._layers):
            at = f"model.layers.{index}."
            attn, mlp = at + "self_attn.", at + "mlp."
            named[at + "input_layernorm.weight"] = layer.norm_attn
            named[at + "post_attention_layernorm.weight"] = layer.norm_mlp
            split = layer.qkv.t().split([q_rows, kv_rows, kv_rows])
            named.update({f"{attn}{p}_proj.weight": part for p, part in zip("qkv", split, strict=True)})
            if layer.qkv_bias is not None:
                parts = layer.qkv_bias.split([q_rows, kv_rows, kv_rows])
                named.update({f"{attn}{p}_proj.bias": part for p, part in zip("qkv", parts, strict=True)})
            if layer.q_norm is not None and layer.k_norm is not None:
                named[attn + "q_norm.weight"], named[attn + "k_norm.weight"] = layer.q_norm, layer.k_norm
            named[attn + "o_proj.weight"] = layer.out.t()
            gate, up = layer.gate_up.t().chunk(2)
            named[mlp + "gate_proj.weight"], named[mlp + "up_proj.weight"] = gate, up
            named[mlp + "down_proj.weight"] = layer.down.t()
        return named

    def flush(self) -> None:
        """Forget cached prefixes and active slots."""
        self._prefixes = []
        self._lengths = np.zeros(0, np.int64)

    # --- shared arithmetic --------------------------------------------------------------------------

    def _rope_table(self, length: int) -> None:
        if len(self._cos) < length:
            size = -(-length // 256) * 256
            positions = torch.arange(size)[None]
            cos, sin = self._rotary(torch.zeros(1, dtype=torch.float32), positions)
            self._cos, self._sin = cos[0].to(self.dtype), sin[0].to(self.dtype)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    def _project_qkv(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, hidden] -> rotated q [N, H, D], rotated k [N, K, D], v [N, K, D]."""
        h = self._rms(x, layer.norm_attn)
        qkv = h @ layer.qkv if layer.qkv_bias is None else torch.addmm(layer.qkv_bias, h, layer.qkv)
        qkv = qkv.view(len(x), self.num_heads + 2 * self.num_kv, self.head_dim)
        q, k, v = qkv.split([self.num_heads, self.num_kv, self.num_kv], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms(q, layer.q_norm), self._rms(k, layer.k_norm)
            return self._rotate(q, cos, sin), self._rotate(k, cos, sin), v
        both = self._rotate(qkv[:, : self.num_heads + self.num_kv], cos, sin)
        return both[:, : self.num_heads], both[:, self.num_heads :], v

    def _finish_layer(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = torch.addmm(x, attended, layer.out)
        gate, up = (self._rms(x, layer.norm_mlp) @ layer.gate_up).chunk(2, dim=-1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.down)

    def project(self, hidden: Tensor) -> Tensor:
        """Final hidden states [N, hidden] -> logits [N, V] in float32."""
        return F.linear(self._rms(hidden, self._norm), self._head).float()

    # --- prompts ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _forward_packed(
        self, pieces: Sequence[NDArray[np.int32]], pasts: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run new tokens of several sequences at once, each after its own past.

        Shapes: `pasts[i]` [layers, 2, K, P_i, D] or None -> hidden [N, hidden] in order, and for each piece
        its new keys and values [layers, 2, K, n_i, D].
        """
        starts = [0 if past is None else past.shape[3] for past in pasts]
        lengths = [len(piece) for piece in pieces]
        self._rope_table(max(s + n for s, n in zip(starts, lengths, strict=True)))
        positions = torch.from_numpy(
            np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
        )
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        x = self._embed[torch.from_numpy(np.concatenate(pieces).astype(np.int64))]
        kv = [torch.empty(self.num_layers, 2, self.num_kv, n, self.head_dim, dtype=self.dtype) for n in lengths]
        for index, layer in enumerate(self._layers):
            q, k, v = self._project_qkv(layer, x, cos, sin)
            attended = torch.empty(len(x), self.num_heads * self.head_dim, dtype=self.dtype)
            offset = 0
            for piece, (start, n) in enumerate(zip(starts, lengths, strict=True)):
                rows = slice(offset, offset + n)
                kv[piece][index, 0], kv[piece][index, 1] = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
                past = pasts[piece]
                attended[rows] = self._attend_prompt(
                    q[rows], kv[piece][index], None if past is None else past[index], start
                )
                offset += n
            x = self._finish_layer(layer, x, attended)
        self.num_computed_tokens += len(x)
        return x, kv

    def _attend_prompt(self, q: Tensor, new: Tensor, past: Tensor | None, start: int) -> Tensor:
        """q [n, H, D], new [2, K, n, D], past [2, K, P, D] -> [n, H*D], causal."""
        n = len(q)
        keys, values = (
            (new[0], new[1])
            if past is None
            else (
                torch.cat((past[0], new[0]), dim=1),
                torch.cat((past[1], new[1]), dim=1),
            )
        )
        mask = None
        if past is not None and n > 1:
            mask = torch.ones(n, start + n, dtype=torch.bool).tril(start)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=past is None and n > 1,
            enable_gqa=self.num_kv != self.num_heads,
        )
        return out[0].transpose(0, 1).reshape(n, -1)

    def _best_prefix(self, ids: NDArray[np.int32]) -> _Prefix | None:
        """The longest cached prefix that `ids` begins with and goes beyond."""
        fits = [p for p in self._prefixes if len(p.ids) < len(ids) and np.array_equal(p.ids, ids[: len(p.ids)])]
        return max(fits, key=lambda p: len(p.ids), default=None)

    def _learn_prefixes(self, prompts: Sequence[NDArray[np.int32]]) -> None:
        """Compute the prefixes that neighbours (in sorted order) of this wave share, once each."""
        ordered = sorted(prompts, key=lambda ids: ids.tolist())
        run: list[NDArray[np.int32]] = []
        shared = 0
        found: list[NDArray[np.int32]] = []
        for ids in [*ordered, np.zeros(0, np.int32)]:
            # A prompt needs one token of its own, so that there is a last position to read logits from.
            length = min(common_prefix_tokens(run[-1], ids), len(run[-1]) - 1, len(ids) - 1) if run else 0
            kept = min(shared, length) if len(run) > 1 else length
            # A run goes on while its shared prefix stays worth it; half is the point where splitting pays.
            if kept >= self._min_prefix and kept * 2 >= shared:
                run, shared = [*run, ids], kept
                continue
            if len(run) > 1:
                found.append(run[0][:shared])
            run, shared = [ids], 0
        for ids in found:
            known = self._best_prefix(np.append(ids, np.int32(-1)))
            start = 0 if known is None else len(known.ids)
            if len(ids) - start < self._min_prefix:
                continue
            _, (kv,) = self._forward_packed([ids[start:]], [None if known is None else known.kv])
            full = kv if known is None else torch.cat((known.kv, kv), dim=3)
            self._prefixes.append(_Prefix(ids, full))
            del self._prefixes[: -self._max_prefixes]

    @torch.no_grad()
    def admit(self, prompts: Sequence[NDArray[np.int32]], copies: Sequence[int], reserve: Sequence[int]) -> Tensor:
        """Prefill prompts into new slots (each prompt into `copies[i]` of them), computing each once.

        `reserve[i]`: tokens that may follow. Returns logits [sum(copies), V] of each new slot's next token,
        in the order of the new slots, which follow the active ones.
        """
        if len(prompts) > 1:
            self._learn_prefixes(prompts)
        prefixes = [self._best_prefix(ids) for ids in prompts]
        pasts = [None if p is None else p.kv for p in prefixes]
        pieces = [ids if p is None else ids[len(p.ids) :] for ids, p in zip(prompts, prefixes, strict=True)]
        hidden, kv = self._forward_packed(pieces, pasts)
        ends = np.cumsum([len(piece) for piece in pieces]) - 1
        logits = self.project(hidden[torch.from_numpy(ends)])
        first = self.num_active
        needed = max(len(ids) + extra for ids, extra in zip(prompts, reserve, strict=True))
        self._reserve(first + sum(copies), needed)
        slot = first
        for ids, past, new, count in zip(prompts, pasts, kv, copies, strict=True):
            full = new if past is None else torch.cat((past, new), dim=3)
            for index in range(self.num_layers):
                self._keys[index][slot : slot + count, :, : len(ids)] = full[index, 0]
                self._values[index][slot : slot + count, :, : len(ids)] = full[index, 1]
            slot += count
        self._lengths = np.concatenate(
            [self._lengths, np.repeat([len(ids) for ids in prompts], copies).astype(np.int64)]
        )
        return logits.repeat_interleave(torch.tensor(list(copies)), dim=0)

    def _reserve(self, slots: int, positions: int) -> None:
        """Grow the cache to at least so many slots and positions, keeping what is active."""
        have_slots = self._keys[0].shape[0] if self._keys else 0
        have_positions = self._keys[0].shape[2] if self._keys else 0
        if slots <= have_slots and positions <= have_positions:
            return
        positions = max(have_positions, -(-positions // T_BUCKET) * T_BUCKET)
        slots = max(have_slots, slots)
        active = self.num_active
        for cache in (self._keys, self._values):
            grown: list[Tensor] = []
            for index in range(self.num_layers):
                tensor = torch.zeros(slots, self.num_kv, positions, self.head_dim, dtype=self.dtype)
                if cache:
                    tensor[:active, :, :have_positions] = cache[index][:active]
                grown.append(tensor)
            cache[:] = grown

    # --- tokens -------------------------------------------------------------------------------------

    @property
    def num_active(self) -> int:
        """Sequences in the cache."""
        return len(self._lengths)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every active slot: tokens int64 [B] -> logits float32 [B, V]."""
        b, groups = self.num_active, self.num_heads // self.num_kv
        lengths = torch.from_numpy(self._lengths)
        self._rope_table(int(self._lengths.max()) + 1)
        cos, sin = self._cos[lengths][:, None], self._sin[lengths][:, None]
        t = min(-(-int(self._lengths.max() + 1) // T_BUCKET) * T_BUCKET, self._keys[0].shape[2])
        bias = torch.zeros(b, 1, t, dtype=self.dtype)
        bias.masked_fill_((torch.arange(t)[None] > lengths[:, None])[:, None], float("-inf"))
        bias = bias.repeat_interleave(self.num_kv, dim=0)
        rows = torch.arange(b)
        x = self._embed[tokens]
        scale = self.head_dim**-0.5
        for index, layer in enumerate(self._layers):
            q, k, v = self._project_qkv(layer, x, cos, sin)
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, lengths], values[rows, :, lengths] = k, v
            keys, values = keys[:b, :, :t].flatten(0, 1), values[:b, :, :t].flatten(0, 1)
            q = q.reshape(b * self.num_kv, groups, self.head_dim)
            scores = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=scale)
            attended = torch.bmm(scores.softmax(-1), values).view(b, self.num_heads * self.head_dim)
            x = self._finish_layer(layer, x, attended)
        self._lengths = self._lengths + 1
        return self.project(x)

    def release(self, slots: Sequence[int]) -> list[int]:
        """Free slots; the last active ones move into the gaps.

        Returns the new order: entry i is the old slot that now is slot i.
        """
        order = list(range(self.num_active))
        for slot in sorted(slots, reverse=True):
            last = len(order) - 1
            if slot != last:
                length = int(self._lengths[last])
                for keys, values in zip(self._keys, self._values, strict=True):
                    keys[slot, :, :length] = keys[last, :, :length]
                    values[slot, :, :length] = values[last, :, :length]
                self._lengths[slot] = self._lengths[last]
                order[slot] = order[last]
            order.pop()
            self._lengths = self._lengths[:-1]
        return order

    def score_hidden(self, ids: NDArray[np.int32]) -> Tensor:
        """Hidden states [T, hidden] of a whole sequence, before the final norm."""
        hidden, _ = self._forward_packed([ids], [None])
        return hidden


class TransformersDecoder:
    """Any causal model through transformers' own forward and cache.

    Costs against the fast path: whole waves (a finished row is dropped, but nothing joins), no prefix shared
    between different prompts, and transformers' per-layer overhead. Holds its own copy of the model.
    """

    continuous = False

    def __init__(self, model: Any, *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._model = type(model)(model.config).to(dtype).eval()
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
    def admit(self, prompts: Sequence[NDArray[np.int32]], copies: Sequence[int], reserve: Sequence[int]) -> Tensor:
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
        repeats = torch.tensor(list(copies))
        self._cache = out.past_key_values
        self._cache.batch_select_indices(torch.arange(len(prompts)).repeat_interleave(repeats))
        self._mask = mask.repeat_interleave(repeats, dim=0)
        return out.logits[:, -1].float().repeat_interleave(repeats, dim=0)

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

    def release(self, slots: Sequence[int]) -> list[int]:
        """Free slots, keeping the order of the rest."""
        gone = set(slots)
        order = [slot for slot in range(self.num_active) if slot not in gone]
        if not order:
            self.flush()
            return order
        keep = torch.tensor(order)
        self._cache.batch_select_indices(keep)
        self._mask = self._mask[keep]
        return order

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


def make_decoder(model: Any, *, dtype: torch.dtype) -> Decoder:
    """The fast decoder where the architecture has one, else the transformers decoder."""
    config = model.config
    plain = getattr(config, "sliding_window", None) in (None, 0) or not getattr(config, "use_sliding_window", True)
    if config.model_type in FAST_ARCHITECTURES and plain and config.hidden_act == "silu":
        return FastDecoder(model, dtype=dtype)
    return TransformersDecoder(model, dtype=dtype)
