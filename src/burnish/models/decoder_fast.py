"""The fast inference decoder: Llama, Qwen2 and Qwen3 over a slot-based KV cache.

Fused projections, weights packed for the processor, grouped-query attention as plain batched matrix products.
What histories share is computed once: beginnings of prompts admitted together (a prefix tree in one pass),
beginnings kept from earlier prompts, and long ones read in place by all their slots.

Legend: B active slots, N packed tokens, T cache positions, H query heads, K key/value heads, G = H/K,
D head dim, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from burnish.core.errors import ModelError
from burnish.models.linear import InferenceLinear
from burnish.models.packing import common_prefix_tokens, tree_order

FAST_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
T_BUCKET = 32
"""Cache length is rounded up to this many positions, so that shapes repeat and allocators reuse."""


MIN_POSITIONS = 256
"""Cache positions to begin with."""
HOLD_TOKENS = 128
"""A shared beginning this long (worked examples, as a rule) is kept once and read by all its slots; a shorter
one is copied into each, which is cheaper than one more product a layer."""


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system provides when they are first used (`torch.zeros` writes them all at once)."""
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)  # anonymous; freed with the last view of it
    return torch.frombuffer(pages, dtype=dtype).view(shape)


@dataclass(slots=True)
class _Layer:
    norm_attn: Tensor
    qkv: InferenceLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: InferenceLinear
    norm_mlp: Tensor
    gate_up: InferenceLinear
    down: InferenceLinear


@dataclass(slots=True)
class _Prefix:
    """Keys and values [layers, 2, K, P, D] of a prompt prefix that several requests share."""

    ids: NDArray[np.int32]
    kv: Tensor

    @property
    def is_held(self) -> bool:
        """Read where it is, instead of copied into slots."""
        return len(self.ids) >= HOLD_TOKENS


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a sequence adds to a forward pass over a prefix tree.

    `fresh`: its new tokens; `path` int64 [n]: columns, among the pass's new tokens, of all its tokens after
    `past`, its own included. The first `num_shared` of the path were other pieces' new tokens.
    """

    fresh: NDArray[np.int32]
    path: NDArray[np.int64]
    past: _Prefix | None = None

    @property
    def past_tokens(self) -> int:
        return 0 if self.past is None else len(self.past.ids)

    @property
    def held(self) -> _Prefix | None:
        return self.past if self.past is not None and self.past.is_held else None

    @property
    def copied_tokens(self) -> int:
        return self.past_tokens if self.held is None else 0

    @property
    def num_shared(self) -> int:
        return len(self.path) - len(self.fresh)


class FastDecoder:
    """The fast path for Llama-type models; holds its own copy of the weights, refreshed by `load`.

    Prompts admitted together compute every shared beginning once; the most useful beginnings of
    `min_prefix_tokens` or more are kept for later prompts until the next `load` or `flush`.
    """

    continuous = True

    def __init__(
        self,
        model: Any,
        *,
        dtype: torch.dtype,
        max_slots: int = 64,
        max_prefixes: int = 8,
        min_prefix_tokens: int = 16,
    ) -> None:
        config = model.config
        if config.model_type not in FAST_ARCHITECTURES:
            raise ModelError(
                f"no fast decoder for architecture {config.model_type!r}",
                fix="use the transformers decoder (engine chooses it by itself)",
            )
        self.dtype = dtype
        # As training under autocast does: products in bf16, the residual stream, norms and rotation in fp32.
        self.stream_dtype = torch.float32 if dtype == torch.bfloat16 else dtype
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps: float = config.rms_norm_eps
        self.tied: bool = bool(config.tie_word_embeddings)
        self.max_context_tokens: int = config.max_position_embeddings
        self._rotary = model.model.rotary_emb
        self._embed = torch.empty(0)
        self._head: InferenceLinear  # set by `load`
        self._norm = torch.empty(0)
        self._layers: list[_Layer] = []
        self._cos = self._sin = torch.empty(0)
        self._max_slots, self._max_prefixes, self._min_prefix = max_slots, max_prefixes, min_prefix_tokens
        self._prefixes: list[_Prefix] = []
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._lengths = np.zeros(0, np.int64)  # of the slots' own cache, after what they hold
        self._held: list[_Prefix | None] = []
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
        self._head = InferenceLinear(self._embed if self.tied else take("lm_head.weight"))
        self._norm = take("model.norm.weight").clone()
        self._layers = []
        for index in range(self.num_layers):
            at = f"model.layers.{index}."
            attn, mlp = at + "self_attn.", at + "mlp."
            has_bias = f"{attn}q_proj.bias" in state
            self._layers.append(
                _Layer(
                    norm_attn=take(at + "input_layernorm.weight").clone(),
                    qkv=InferenceLinear(
                        torch.cat([take(f"{attn}{p}_proj.weight") for p in "qkv"]),
                        torch.cat([take(f"{attn}{p}_proj.bias") for p in "qkv"]) if has_bias else None,
                    ),
                    q_norm=optional(attn + "q_norm.weight"),
                    k_norm=optional(attn + "k_norm.weight"),
                    out=InferenceLinear(take(attn + "o_proj.weight")),
                    norm_mlp=take(at + "post_attention_layernorm.weight").clone(),
                    gate_up=InferenceLinear(torch.cat([take(mlp + "gate_proj.weight"), take(mlp + "up_proj.weight")])),
                    down=InferenceLinear(take(mlp + "down_proj.weight")),
                )
            )

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The weights that this decoder reads, back under their transformers names (views where possible).

        A tied head that is packed is a copy; it appears under its own name should it differ from its embedding.
        """
        named: dict[str, Tensor] = {"model.embed_tokens.weight": self._embed, "model.norm.weight": self._norm}
        head = self._head.weight
        if not self.tied or not torch.equal(head, self._embed):
            named["lm_head.weight"] = head
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv * self.head_dim
        for index, layer in enumerate(self._layers):
            at = f"model.layers.{index}."
            attn, mlp = at + "self_attn.", at + "mlp."
            named[at + "input_layernorm.weight"] = layer.norm_attn
            named[at + "post_attention_layernorm.weight"] = layer.norm_mlp
            split = layer.qkv.weight.split([q_rows, kv_rows, kv_rows])
            named.update({f"{attn}{p}_proj.weight": part for p, part in zip("qkv", split, strict=True)})
            if layer.qkv.bias is not None:
                parts = layer.qkv.bias.split([q_rows, kv_rows, kv_rows])
                named.update({f"{attn}{p}_proj.bias": part for p, part in zip("qkv", parts, strict=True)})
            if layer.q_norm is not None and layer.k_norm is not None:
                named[attn + "q_norm.weight"], named[attn + "k_norm.weight"] = layer.q_norm, layer.k_norm
            named[attn + "o_proj.weight"] = layer.out.weight
            gate, up = layer.gate_up.weight.chunk(2)
            named[mlp + "gate_proj.weight"], named[mlp + "up_proj.weight"] = gate, up
            named[mlp + "down_proj.weight"] = layer.down.weight
        return named

    def flush(self) -> None:
        """Forget cached prefixes and active slots."""
        self._prefixes = []
        self._held = []
        self._lengths = np.zeros(0, np.int64)

    # --- shared arithmetic --------------------------------------------------------------------------

    def _rope_table(self, length: int) -> None:
        if len(self._cos) < length:
            size = -(-length // 256) * 256
            positions = torch.arange(size)[None]
            cos, sin = self._rotary(torch.zeros(1, dtype=torch.float32), positions)
            self._cos, self._sin = cos[0].to(self.stream_dtype), sin[0].to(self.stream_dtype)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), self.eps).to(self.dtype)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return (x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin).to(self.dtype)

    def _project_qkv(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, hidden] -> rotated q [N, H, D], rotated k [N, K, D], v [N, K, D]."""
        qkv = layer.qkv(self._rms(x, layer.norm_attn)).view(len(x), self.num_heads + 2 * self.num_kv, self.head_dim)
        q, k, v = qkv.split([self.num_heads, self.num_kv, self.num_kv], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms(q, layer.q_norm), self._rms(k, layer.k_norm)
            return self._rotate(q, cos, sin), self._rotate(k, cos, sin), v
        both = self._rotate(qkv[:, : self.num_heads + self.num_kv], cos, sin)
        return both[:, : self.num_heads], both[:, self.num_heads :], v

    def _finish_layer(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = layer.out.add_to(attended, x)
        gate, up = layer.gate_up(self._rms(x, layer.norm_mlp)).chunk(2, dim=-1)
        return layer.down.add_to(F.silu(gate).mul_(up), x)

    def project(self, hidden: Tensor) -> Tensor:
        """Final hidden states [N, hidden] -> logits [N, V] in float32."""
        return self._head(self._rms(hidden, self._norm)).float()

    # --- prompts ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _forward_tree(self, pieces: Sequence[_Piece], slots: Sequence[int] | None) -> Tensor:
        """Run the new tokens of several sequences at once -> hidden [N, hidden], in the order of the pieces.

        With `slots`, the keys and values of piece i go to slot `slots[i]`, with those of its past unless held.
        """
        depths = [np.arange(p.past_tokens + p.num_shared, p.past_tokens + len(p.path)) for p in pieces]
        self._rope_table(max(p.past_tokens + len(p.path) for p in pieces))
        positions = torch.from_numpy(np.concatenate(depths))
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        tokens = torch.from_numpy(np.concatenate([p.fresh for p in pieces]).astype(np.int64))
        x = self._embed[tokens].to(self.stream_dtype)
        paths = [torch.from_numpy(p.path) for p in pieces]
        column = torch.cat(paths)
        slot = torch.from_numpy(np.repeat(slots or np.zeros(len(pieces), int), [len(p.path) for p in pieces]))
        depth = torch.from_numpy(np.concatenate([p.copied_tokens + np.arange(len(p.path)) for p in pieces]))
        ends = np.cumsum([len(p.fresh) for p in pieces])
        for index, layer in enumerate(self._layers):
            q, k, v = self._project_qkv(layer, x, cos, sin)
            attended = torch.empty(len(x), self.num_heads * self.head_dim, dtype=self.dtype)
            for piece, path, end in zip(pieces, paths, ends, strict=True):
                rows = slice(int(end) - len(piece.fresh), int(end))
                if rows.start < rows.stop:
                    attended[rows] = self._attend_prompt(q[rows], k[path], v[path], index, piece)
            if slots is not None:
                keys, values = self._keys[index], self._values[index]
                keys[slot, :, depth], values[slot, :, depth] = k[column], v[column]
                for at, piece in zip(slots, pieces, strict=True):
                    if piece.past is not None and piece.copied_tokens:
                        keys[at, :, : piece.past_tokens] = piece.past.kv[index, 0]
                        values[at, :, : piece.past_tokens] = piece.past.kv[index, 1]
            x = self._finish_layer(layer, x, attended)
        self.num_computed_tokens += len(x)
        return x

    def _attend_prompt(self, q: Tensor, k: Tensor, v: Tensor, layer: int, piece: _Piece) -> Tensor:
        """q [n, H, D] after its past and the shared part of its path, k and v [path, K, D] -> [n, H*D], causal."""
        n = len(q)
        keys, values = k.transpose(0, 1), v.transpose(0, 1)
        if piece.past is not None:
            keys = torch.cat((piece.past.kv[layer, 0], keys), dim=1)
            values = torch.cat((piece.past.kv[layer, 1], values), dim=1)
        before = keys.shape[1] - n
        mask = torch.ones(n, before + n, dtype=torch.bool).tril(before) if before and n > 1 else None
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=before == 0 and n > 1,
            enable_gqa=self.num_kv != self.num_heads,
        )
        return out[0].transpose(0, 1).reshape(n, -1)

    def _best_prefix(self, ids: NDArray[np.int32]) -> _Prefix | None:
        """The longest cached prefix that `ids` begins with and goes beyond."""
        fits = [p for p in self._prefixes if len(p.ids) < len(ids) and np.array_equal(p.ids, ids[: len(p.ids)])]
        return max(fits, key=lambda p: len(p.ids), default=None)

    def _plan_pieces(self, prompts: Sequence[NDArray[np.int32]]) -> tuple[list[int], list[_Piece]]:
        """Tree order of the prompts, and for each (in that order) what it adds; every last token is computed."""
        order = tree_order(prompts)
        pieces: list[_Piece] = []
        at = 0
        for rank, index in enumerate(order):
            ids, past = prompts[index], self._best_prefix(prompts[index])
            start = 0 if past is None else len(past.ids)
            shared = 0
            if pieces and pieces[-1].past is past:
                # A prompt keeps one token of its own, so that there is a last position to read logits from.
                shared = min(common_prefix_tokens(prompts[order[rank - 1]], ids), len(ids) - 1) - start
            fresh = ids[start + shared :]
            path = np.concatenate([pieces[-1].path[:shared] if shared else [], np.arange(at, at + len(fresh))])
            pieces.append(_Piece(fresh, path.astype(np.int64), past))
            at += len(fresh)
        return order, pieces

    def _shared_beginnings(self, ordered: Sequence[NDArray[np.int32]]) -> list[tuple[int, NDArray[np.int32]]]:
        """(rank of a prompt that has it, ids) of the beginnings whose cache spares most, for prompts in tree order."""
        lengths = [min(common_prefix_tokens(a, b), len(a) - 1, len(b) - 1) for a, b in itertools.pairwise(ordered)]
        spared: dict[tuple[int, int], int] = {}  # (first rank, tokens) -> tokens spared
        for rank, length in enumerate(lengths):
            if length < self._min_prefix:
                continue
            first, last = rank, rank + 1
            while first > 0 and lengths[first - 1] >= length:
                first -= 1
            while last < len(lengths) and lengths[last] >= length:
                last += 1
            spared[first, length] = (last - first) * length
        best = sorted(spared, key=lambda key: -spared[key])[: self._max_prefixes]
        return [(first, ordered[first][:length]) for first, length in best]

    def _keep_prefix(self, ids: NDArray[np.int32], slot: int) -> None:
        """Keep this beginning of what `slot` caches (all of it in the slot, nothing held)."""
        pairs = zip(self._keys, self._values, strict=True)
        kv = torch.stack([torch.stack((k[slot, :, : len(ids)], v[slot, :, : len(ids)])) for k, v in pairs])
        self._prefixes.append(_Prefix(ids.copy(), kv))
        del self._prefixes[: -self._max_prefixes]

    def _is_news(self, ids: NDArray[np.int32], num_tokens: int) -> bool:
        """Whether at least so many tokens of this beginning are in no cached prefix."""
        known = self._best_prefix(np.append(ids, np.int32(-1)))
        return len(ids) - (0 if known is None else len(known.ids)) >= num_tokens

    @torch.no_grad()
    def admit(self, prompts: Sequence[NDArray[np.int32]], reserve: Sequence[int]) -> Tensor:
        """Prefill prompts into new slots, which follow the active ones in the order of the prompts.

        `reserve[i]`: tokens that may follow. Returns logits [len(prompts), V] of each one's next token.
        """
        first = self.num_active
        beginnings = self._shared_beginnings([prompts[i] for i in tree_order(prompts)])
        for _, ids in beginnings:
            if self._is_news(ids, HOLD_TOKENS):
                self._reserve(first + 1, len(ids))
                self._forward_tree([_Piece(ids, np.arange(len(ids)))], [first])
                self._keep_prefix(ids, first)
        order, pieces = self._plan_pieces(prompts)
        own = [len(piece.path) + piece.copied_tokens for piece in pieces]
        self._reserve(first + len(prompts), max(n + reserve[i] for n, i in zip(own, order, strict=True)))
        slots = [first + i for i in order]
        hidden = self._forward_tree(pieces, slots)
        for rank, ids in beginnings:
            if pieces[rank].held is None and self._is_news(ids, self._min_prefix):
                self._keep_prefix(ids, slots[rank])
        back = np.argsort(order)
        self._lengths = np.concatenate([self._lengths, np.array(own)[back]]).astype(np.int64)
        self._held += [pieces[rank].held for rank in back]
        ends = np.cumsum([len(piece.fresh) for piece in pieces]) - 1
        return self.project(hidden[torch.from_numpy(ends[back])])

    def _reserve(self, slots: int, positions: int) -> None:
        """Grow the cache to at least so many slots and positions, keeping what is active.

        Generous, because the pages of slots and positions that are never used are never touched.
        """
        have_slots = self._keys[0].shape[0] if self._keys else 0
        have_positions = self._keys[0].shape[2] if self._keys else 0
        if slots <= have_slots and positions <= have_positions:
            return
        slots = max(slots, have_slots, self._max_slots)
        positions = max(2 * positions, MIN_POSITIONS) if positions > have_positions else have_positions
        positions = -(-positions // T_BUCKET) * T_BUCKET
        active, longest = self.num_active, int(self._lengths.max(initial=0))
        for cache in (self._keys, self._values):
            for index in range(self.num_layers):
                tensor = _untouched_zeros((slots, self.num_kv, positions, self.head_dim), self.dtype)
                if index < len(cache):
                    tensor[:active, :, :longest] = cache[index][:active, :, :longest]
                    cache[index] = tensor
                else:
                    cache.append(tensor)

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
        positions = lengths + torch.tensor([0 if held is None else len(held.ids) for held in self._held])
        self._rope_table(int(positions.max()) + 1)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        t = min(-(-int(self._lengths.max() + 1) // T_BUCKET) * T_BUCKET, self._keys[0].shape[2])
        bias = torch.zeros(b, 1, t, dtype=self.dtype)
        bias.masked_fill_((torch.arange(t)[None] > lengths[:, None])[:, None], float("-inf"))
        bias = bias.repeat_interleave(self.num_kv, dim=0)
        holders = self._holders()
        longest = max((len(prefix.ids) for prefix, _ in holders), default=0)
        before = torch.full((b, self.num_kv, groups, longest), float("-inf"), dtype=self.dtype)
        rows = torch.arange(b)
        x = self._embed[tokens].to(self.stream_dtype)
        scale = self.head_dim**-0.5
        for index, layer in enumerate(self._layers):
            q, k, v = self._project_qkv(layer, x, cos, sin)
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, lengths], values[rows, :, lengths] = k, v
            keys, values = self._batched(keys[:b, :, :t]), self._batched(values[:b, :, :t])
            q = q.reshape(b * self.num_kv, groups, self.head_dim)
            weights = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=scale)
            if holders:
                self._score_held(holders, index, q.view(b, self.num_kv, groups, -1) * scale, before)
                weights = torch.cat((before.flatten(0, 1), weights), dim=-1).softmax(-1)
                attended = torch.bmm(weights[..., longest:], values).view(b, self.num_kv, groups, -1)
                self._add_held(holders, index, weights.view(b, self.num_kv, groups, -1), attended)
            else:
                attended = torch.bmm(weights.softmax(-1), values)
            x = self._finish_layer(layer, x, attended.reshape(b, self.num_heads * self.head_dim))
        self._lengths = self._lengths + 1
        return self.project(x)

    def _batched(self, x: Tensor) -> Tensor:
        """[B, K, t, D], a part of the cache -> [B*K, t, D] as its products are fastest.

        The library's bf16 product copies what has gaps, ten times slower than a copy beforehand; the fp32 one
        reads it in place (128 slots, 160 positions, ms: bf16 3.9 -> 1.5, fp32 3.2 -> 4.5 if copied).
        """
        return (x.contiguous() if self.dtype == torch.bfloat16 else x).flatten(0, 1)

    def _holders(self) -> list[tuple[_Prefix, Tensor]]:
        """Every held beginning, and the slots that hold it [n]."""
        found: dict[int, tuple[_Prefix, list[int]]] = {}
        for slot, held in enumerate(self._held):
            if held is not None:
                found.setdefault(id(held), (held, []))[1].append(slot)
        return [(held, torch.tensor(slots)) for held, slots in found.values()]

    def _score_held(self, holders: Sequence[tuple[_Prefix, Tensor]], layer: int, q: Tensor, scores: Tensor) -> None:
        """Fill scores [B, K, G, longest] of scaled queries [B, K, G, D] against what their slots hold."""
        for prefix, slots in holders:
            mine = q[slots].transpose(0, 1)  # [K, n, G, D]
            found = mine.flatten(1, 2) @ prefix.kv[layer, 0].transpose(1, 2)
            scores[slots, :, :, : len(prefix.ids)] = found.view(*mine.shape[:3], -1).transpose(0, 1)

    def _add_held(
        self, holders: Sequence[tuple[_Prefix, Tensor]], layer: int, weights: Tensor, attended: Tensor
    ) -> None:
        """Add the held values, by their weights [B, K, G, longest + t], to `attended` [B, K, G, D]."""
        for prefix, slots in holders:
            mine = weights[slots, :, :, : len(prefix.ids)].transpose(0, 1)
            found = mine.flatten(1, 2) @ prefix.kv[layer, 1]
            attended[slots] += found.view(*mine.shape[:3], -1).transpose(0, 1)

    @torch.no_grad()
    def fork(self, slots: Sequence[int]) -> None:
        """Copy these slots' histories into new slots after the active ones."""
        first, n = self.num_active, len(slots)
        self._reserve(first + n, 0)
        source = torch.tensor(slots)
        longest = int(self._lengths[slots].max())
        for cache in (*self._keys, *self._values):
            cache[first : first + n, :, :longest] = cache[source, :, :longest]
        self._lengths = np.concatenate([self._lengths, self._lengths[slots]])
        self._held += [self._held[slot] for slot in slots]

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
                self._held[slot] = self._held[last]
                order[slot] = order[last]
            order.pop()
            self._held.pop()
            self._lengths = self._lengths[:-1]
        return order

    def score_hidden(self, ids: NDArray[np.int32]) -> Tensor:
        """Hidden states [T, hidden] of a whole sequence, before the final norm."""
        return self._forward_tree([_Piece(ids, np.arange(len(ids)))], None)
