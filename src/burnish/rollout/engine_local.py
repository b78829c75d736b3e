"""The local engine: continuous batching beside the trainer, on the same machine.

One scheduler task runs while requests wait: it admits prompts while slots are free (each prompt computed
once for all its samples), advances every active sequence by one token, and hands out completions as they
end. Everything is deterministic given the order of submission.

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
from burnish.models.decoder import Decoder, make_decoder
from burnish.models.digest import weights_digest
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


@dataclass(slots=True)
class _Waiting:
    request: GenerateRequest
    queue: asyncio.Queue[Completion | BaseException]
    submitted_s: float


class LocalEngine:
    """Samples from its own copy of a policy's weights.

    `max_sequences`: sequences decoded together. `max_prefill_tokens`: prompt tokens admitted in one go.
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
        self.decoder: Decoder = make_decoder(model, dtype=dtype)
        self.dtype = dtype
        self.version = version
        self.tokens_sampled = 0
        self.busy_s = 0.0
        self._tokenizer = tokenizer
        self._max_sequences = max_sequences
        self._max_prefill_tokens = max_prefill_tokens
        self._waiting: deque[_Waiting] = deque()
        self._active: list[_Sequence] = []
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
        slots = [i for i, s in enumerate(self._active) if s.request.request_id == request_id]
        self._end(dict.fromkeys(slots, StopReason.ABORTED))

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
                f"cannot {verb} while {len(self._active)} sequences are in flight",
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
            queues = [s.queue for s in self._active] + [w.queue for w in self._waiting]
            self._active.clear()
            self._waiting.clear()
            self.decoder.flush()
            for queue in queues:
                queue.put_nowait(error)

    def _admit(self) -> None:
        free = self._max_sequences - len(self._active)
        # Prefilling a handful at a time wastes the matrix units: wait for a quarter of the slots.
        may = self.decoder.continuous and free * 4 >= self._max_sequences
        if not self._waiting or not (may or not self._active):
            return
        wave: list[_Waiting] = []
        tokens = 0
        while self._waiting and len(self._waiting[0].request.seeds) <= free:
            cost = len(self._waiting[0].request.ids)
            if wave and tokens + cost > self._max_prefill_tokens:
                break
            wave.append(self._waiting.popleft())
            free -= len(wave[-1].request.seeds)
            tokens += cost
        if not wave:
            return
        began = time.monotonic()
        logits = self.decoder.admit(
            [w.request.ids for w in wave],
            [len(w.request.seeds) for w in wave],
            [w.request.sampling.max_tokens for w in wave],
        )
        now = time.monotonic()
        fresh = [self._sequence(w, index) for w in wave for index in range(len(w.request.seeds))]
        for sequence in fresh:
            sequence.started_s, sequence.prefill_s = now, now - began
        first = len(self._active)
        self._active.extend(fresh)
        self._take(logits, range(first, len(self._active)))

    def _sequence(self, waiting: _Waiting, index: int) -> _Sequence:
        stops = self._tokenizer.stop_token_ids | frozenset(waiting.request.sampling.stop_token_ids)
        return _Sequence(waiting.request, index, stops, waiting.queue, waiting.submitted_s)

    def _advance(self) -> None:
        logits = self.decoder.step(torch.tensor([s.ids[-1] for s in self._active]))
        self._take(logits, range(len(self._active)))

    def _take(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        """Draw one token for each slot from its row of logits, and end what is complete."""
        by_sampling: dict[Sampling, list[int]] = {}
        for row, slot in enumerate(slots):
            by_sampling.setdefault(self._active[slot].request.sampling, []).append(row)
        for sampling, rows in by_sampling.items():
            members = [self._active[slots[row]] for row in rows]
            seeds = np.array([s.request.seeds[s.index] for s in members], dtype=np.uint64)
            positions = np.array([len(s.ids) for s in members], dtype=np.int64)
            picked = logits if len(rows) == len(logits) else logits[torch.tensor(rows)]
            draw = draw_tokens(picked, sampling, seeds, positions)
            for member, token, logp, plain in zip(
                members, draw.tokens.tolist(), draw.logp.tolist(), draw.logp_unfiltered.tolist(), strict=True
            ):
                member.ids.append(token)
                member.logp.append(logp)
                member.logp_unfiltered.append(plain)
        self.tokens_sampled += len(slots)
        ended = {slot: reason for slot in slots if (reason := self._stop_reason(self._active[slot])) is not None}
        self._end(ended)

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

    def _end(self, ended: dict[int, StopReason]) -> None:
        if not ended:
            return
        for slot, reason in ended.items():
            sequence = self._active[slot]
            sequence.queue.put_nowait(self._completion(sequence, reason))
        order = self.decoder.release(list(ended))
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
