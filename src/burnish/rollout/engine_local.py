"""The local engine: continuous batching beside the trainer, on the same machine.

One scheduler task runs while requests wait: it admits prompts while there is room, advances every active
history by one token, and hands out completions as they end. Completions of a prompt that agree so far are one
history, computed once; where their draws differ they part. Each still draws by its own seed, so nothing about
a completion changes. Everything is deterministic given the order of submission.

Leaves out (so far): grammars, adapters kept apart from the weights, images, sessions, preemption.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from burnish.core.errors import ConfigError, RunError
from burnish.core.outcomes import StopReason
from burnish.core.protocols import Completion, EngineCapabilities, GenerateRequest, Sampling
from burnish.core.types import Timing
from burnish.models.allocator import keep_freed_memory
from burnish.models.decoder import Decoder, make_decoder
from burnish.models.digest import weights_digest
from burnish.models.packing import common_prefix_tokens
from burnish.rollout.engine_sampling import draw_tokens
from burnish.rollout.weights import WeightUpdate


class EngineTokenizer(Protocol):
    """What the engine needs of a tokenizer (see `render.tokenizer.TextTokenizer`)."""

    @property
    def stop_token_ids(self) -> frozenset[int]: ...
    def decode_reply(self, ids: Sequence[int]) -> str: ...


@dataclass(slots=True)
class _Sequence:
    """One completion in flight."""

    request: GenerateRequest
    index: int
    stops: frozenset[int]
    queue: asyncio.Queue[Completion | BaseException]
    submitted_s: float
    prefill_s: float = 0.0
    started_s: float = 0.0
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    logp_unfiltered: list[float] = field(default_factory=list)


_Slot = list[_Sequence]
"""Completions of one request that agree so far: one history in the decoder."""


@dataclass(slots=True)
class _Waiting:
    request: GenerateRequest
    queue: asyncio.Queue[Completion | BaseException]
    submitted_s: float


class LocalEngine:
    """Samples from its own copy of a policy's weights.

    `max_sequences`: sequences in flight together. `max_prefill_tokens`: prompt tokens
    computed in one go, shared beginnings once.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: EngineTokenizer,
        *,
        dtype: torch.dtype = torch.float32,
        max_sequences: int = 64,
        max_prefill_tokens: int = 4096,
        version: int = 0,
    ) -> None:
        keep_freed_memory()
        self.decoder: Decoder = make_decoder(model, dtype=dtype, max_slots=max_sequences)
        self.dtype = dtype
        self.stream_dtype = self.decoder.stream_dtype
        self.version = version
        self.tokens_sampled = 0
        self.busy_s = 0.0
        self._tokenizer = tokenizer
        self._max_sequences = max_sequences
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[_Waiting] = deque()
        self._active: list[_Slot] = []
        self._task: asyncio.Task[None] | None = None

    # --- protocol -----------------------------------------------------------------------------------

    def capabilities(self) -> EngineCapabilities:
        """What this engine can do."""
        return EngineCapabilities(
            name=f"local/{type(self.decoder).__name__}",
            dtype=str(self.dtype).removeprefix("torch."),
            max_context_tokens=self.decoder.max_context_tokens,
            max_sequences=self._max_sequences,
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Completion]:
        """Completions of one prompt as they end, one for each seed.

        Raises: ConfigError for what this engine cannot do; RunError where the engine fails.
        """
        self._check(request)
        queue: asyncio.Queue[Completion | BaseException] = asyncio.Queue()
        self._waiting.append(_Waiting(request, queue, time.monotonic()))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        for _ in request.seeds:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise RunError(f"the local engine failed: {item}", where=request.request_id) from item
            yield item

    async def score(self, ids: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float64]]:
        """Log-probability of every token given those before it, [T] each; the first is NaN."""
        self._require_idle("score")
        return [self._score_one(sequence) for sequence in ids]

    async def abort(self, request_id: str) -> None:
        """End a request's completions now; each comes back with what it has, stop reason `aborted`."""
        for waiting in [w for w in self._waiting if w.request.request_id == request_id]:
            self._waiting.remove(waiting)
            for index in range(len(waiting.request.seeds)):
                sequence = self._sequence(waiting, index)
                sequence.started_s = time.monotonic()
                waiting.queue.put_nowait(self._completion(sequence, StopReason.ABORTED))
        slots = [i for i, members in enumerate(self._active) if members[0].request.request_id == request_id]
        for sequence in [s for i in slots for s in self._active[i]]:
            sequence.queue.put_nowait(self._completion(sequence, StopReason.ABORTED))
        self._release(slots)

    async def load_weights(self, ref: WeightUpdate) -> int:
        """Take new weights by name; every cache of the old ones is dropped."""
        self._require_idle("load weights")
        self.decoder.load(ref.tensors)
        self.version = ref.version
        return self.version

    def digest(self) -> str:
        """Digest of the very tensors that the decoder reads."""
        return weights_digest(self.decoder.tensors())

    # --- scheduler ----------------------------------------------------------------------------------

    def _check(self, request: GenerateRequest) -> None:
        for name in ("session", "adapter", "grammar"):
            if getattr(request, name) is not None:
                raise ConfigError(
                    f"the local engine does not support `{name}`",
                    where=request.request_id,
                    fix=f"leave `{name}` out of the request",
                )
        if request.images:
            raise ConfigError("the local engine takes no images", where=request.request_id, fix="send text only")
        if len(request.ids) == 0 or not request.seeds or request.sampling.max_tokens < 1:
            raise ConfigError(
                f"empty request: {len(request.ids)} prompt tokens, {len(request.seeds)} seeds, "
                f"max_tokens {request.sampling.max_tokens}",
                where=request.request_id,
                fix="give at least one of each",
            )
        if len(request.ids) >= self.decoder.max_context_tokens:
            raise ConfigError(
                f"prompt of {len(request.ids)} tokens does not fit the context of {self.decoder.max_context_tokens}",
                where=request.request_id,
                fix="shorten the prompt or choose a model with a longer context",
            )
        if len(request.seeds) > self._max_sequences:
            raise ConfigError(
                f"a group of {len(request.seeds)} samples exceeds engine.max_sequences={self._max_sequences}",
                where=request.request_id,
                fix="raise engine.max_sequences or lower the group size",
            )

    def _require_idle(self, verb: str) -> None:
        if self._active or self._waiting:
            raise RunError(
                f"cannot {verb} while {self._num_sequences} sequences are in flight",
                fix="await or abort them first",
            )

    async def _run(self) -> None:
        """The scheduler; an exception of the decoder goes to every waiting caller, never to nobody."""
        try:
            while self._waiting or self._active:
                started = time.perf_counter()
                self._admit()
                if self._active:
                    self._advance()
                self.busy_s += time.perf_counter() - started
                await asyncio.sleep(0)
        except Exception as error:
            queues = [s.queue for members in self._active for s in members] + [w.queue for w in self._waiting]
            self._active.clear()
            self._waiting.clear()
            self.decoder.flush()
            for queue in queues:
                queue.put_nowait(error)

    @property
    def _num_sequences(self) -> int:
        return sum(len(members) for members in self._active)

    def _admit(self) -> None:
        free = self._max_sequences - self._num_sequences
        # Prefilling a handful at a time wastes the matrix units: wait for a quarter of the slots.
        may = self.decoder.continuous and free * 4 >= self._max_sequences
        if not self._waiting or not (may or not self._active):
            return
        wave: list[_Waiting] = []
        tokens = 0
        while self._waiting and len(self._waiting[0].request.seeds) <= free:
            ids = self._waiting[0].request.ids
            cost = len(ids) - max((common_prefix_tokens(w.request.ids, ids) for w in wave), default=0)
            if wave and tokens + cost > self._max_prefill_tokens:
                break
            wave.append(self._waiting.popleft())
            free -= len(wave[-1].request.seeds)
            tokens += cost
        if not wave:
            return
        began = time.monotonic()
        logits = self.decoder.admit([w.request.ids for w in wave], [w.request.sampling.max_tokens for w in wave])
        now = time.monotonic()
        fresh = [[self._sequence(w, index) for index in range(len(w.request.seeds))] for w in wave]
        for sequence in [s for members in fresh for s in members]:
            sequence.started_s, sequence.prefill_s = now, now - began
        first = len(self._active)
        self._active.extend(fresh)
        self._take(logits, range(first, len(self._active)))

    def _sequence(self, waiting: _Waiting, index: int) -> _Sequence:
        stops = self._tokenizer.stop_token_ids | frozenset(waiting.request.sampling.stop_token_ids)
        return _Sequence(waiting.request, index, stops, waiting.queue, waiting.submitted_s)

    def _advance(self) -> None:
        logits = self.decoder.step(torch.tensor([members[0].ids[-1] for members in self._active]))
        self._take(logits, range(len(self._active)))

    def _take(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        """Draw a token for every completion of these slots, one row of logits each; end, part and go on."""
        by_sampling: dict[Sampling, list[int]] = {}
        for row, slot in enumerate(slots):
            by_sampling.setdefault(self._active[slot][0].request.sampling, []).append(row)
        for sampling, rows in by_sampling.items():
            members = [s for row in rows for s in self._active[slots[row]]]
            counts = [len(self._active[slots[row]]) for row in rows]
            seeds = np.array([s.request.seeds[s.index] for s in members], dtype=np.uint64)
            positions = np.array([len(s.ids) for s in members], dtype=np.int64)
            picked = logits if len(rows) == len(logits) else logits[torch.tensor(rows)]
            draw = draw_tokens(picked, sampling, seeds, positions, np.repeat(np.arange(len(rows)), counts))
            for member, token, logp, plain in zip(
                members, draw.tokens.tolist(), draw.logp.tolist(), draw.logp_unfiltered.tolist(), strict=True
            ):
                member.ids.append(token)
                member.logp.append(logp)
                member.logp_unfiltered.append(plain)
            self.tokens_sampled += len(members)
        parents, branches, ended = [], [], []
        for slot in slots:
            by_token: dict[int, _Slot] = {}
            for sequence in self._active[slot]:
                reason = self._stop_reason(sequence)
                if reason is None:
                    by_token.setdefault(sequence.ids[-1], []).append(sequence)
                else:
                    sequence.queue.put_nowait(self._completion(sequence, reason))
            going = list(by_token.values())
            if not going:
                ended.append(slot)
                continue
            self._active[slot] = going[0]
            branches += going[1:]
            parents += [slot] * (len(going) - 1)
        if parents:
            self.decoder.fork(parents)
            self._active += branches
        self._release(ended)

    def _stop_reason(self, sequence: _Sequence) -> StopReason | None:
        sampling = sequence.request.sampling
        if sequence.ids[-1] in sequence.stops:
            return StopReason.STOP_TOKEN
        if sampling.stop_strings:
            text = self._tokenizer.decode_reply(sequence.ids)
            if any(stop in text for stop in sampling.stop_strings):
                return StopReason.STOP_STRING
        if len(sequence.ids) >= sampling.max_tokens:
            return StopReason.MAX_TOKENS
        if len(sequence.request.ids) + len(sequence.ids) >= self.decoder.max_context_tokens:
            return StopReason.CONTEXT_FULL
        return None

    def _release(self, slots: Sequence[int]) -> None:
        if slots:
            order = self.decoder.release(slots)
            self._active = [self._active[slot] for slot in order]

    def _completion(self, sequence: _Sequence, reason: StopReason) -> Completion:
        text = self._tokenizer.decode_reply(sequence.ids)
        cuts = [text.index(stop) for stop in sequence.request.sampling.stop_strings if stop in text]
        return Completion(
            request_id=sequence.request.request_id,
            index=sequence.index,
            ids=np.array(sequence.ids, dtype=np.int32),
            logp=np.array(sequence.logp, dtype=np.float64),
            logp_unfiltered=np.array(sequence.logp_unfiltered, dtype=np.float64),
            text=text[: min(cuts)] if cuts else text,
            stop_reason=reason,
            policy_version=self.version,
            timing=Timing(
                queue_s=max(0.0, sequence.started_s - sequence.prefill_s - sequence.submitted_s),
                prefill_s=sequence.prefill_s,
                decode_s=time.monotonic() - sequence.started_s,
            ),
        )

    @torch.no_grad()
    def _score_one(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        hidden = self.decoder.score_hidden(ids)
        targets = torch.from_numpy(ids[1:].astype(np.int64))
        out = np.full(len(ids), np.nan)
        for start in range(0, len(targets), 256):  # 256 rows of a 50k vocabulary in fp32 are 50 MB
            rows = slice(start, min(start + 256, len(targets)))
            logits = self.decoder.project(hidden[rows])
            logp = logits.gather(-1, targets[rows, None])[:, 0] - logits.logsumexp(-1)
            out[rows.start + 1 : rows.stop + 1] = logp.double().numpy()
        return out
