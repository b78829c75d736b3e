"""What a user extends: six protocols and the small types that cross them.

What waits is async; formulas are plain functions. Each protocol has a conformance suite in its room. The
two tensor protocols (`Objective`, `TrainingBackend`) name their tensors `Any` here, because this room does
not import torch; their concrete shapes are in `objectives.batch` and `train.backend`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from burnish.core.gold import Gold
from burnish.core.outcomes import StopReason
from burnish.core.types import Artifacts, CheckpointRef, Message, Task, Timing, ToolSpec, Trajectory, Verdict

# --- verifier ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifierCase:
    """One test of a verifier: this reply to this gold must PASS or FAIL (`want`), and why it is here.

    `kind`: `must_pass`, `must_fail`, or `has_fooled_others`. `prompt` and `tools` serve verifiers that
    read the task.
    """

    gold: Any
    reply: str
    want: str
    kind: str = "must_fail"
    why: str = ""
    prompt: str = ""
    tools: tuple[ToolSpec, ...] = ()


@runtime_checkable
class Verifier(Protocol):
    """Is the answer right? Never raises on any text; a fault of its own is UNDECIDED."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def cases(self) -> Sequence[VerifierCase]: ...

    async def verify(self, task: Task, gold: Gold, trajectory: Trajectory, artifacts: Artifacts) -> Verdict: ...


# --- environment and tools --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment says next: messages to append, and whether the episode is over."""

    messages: tuple[Message, ...] = ()
    done: bool = False


@runtime_checkable
class Environment(Protocol):
    """Who answers the model between its turns. Speaks messages only; never sees tokens or gold."""

    async def reset(self, task: Task, seed: int) -> Step: ...
    async def step(self, message: Message) -> Step: ...
    async def finish(self) -> Artifacts: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned; `is_fault` marks a fault of ours rather than of the call."""

    text: str
    is_error: bool = False
    is_fault: bool = False


@runtime_checkable
class Tool(Protocol):
    """A function the model may call; `spec` is its JSON Schema."""

    @property
    def spec(self) -> ToolSpec: ...
    async def call(self, arguments: Mapping[str, Any], session: str, deadline_s: float) -> ToolResult: ...


# --- rollout engine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy; `top_p` 1.0 and `top_k` 0 are off.

    `stop_token_ids` end a completion and stay in its ids; `stop_strings` end it once its text contains
    one, and the text is cut before it (ids keep what was sampled).
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt, `len(seeds)` completions: a group's prompt is computed once.

    `ids` int32 [P]. `session` keeps caches between turns; `adapter`, `grammar` and `images` are refused by
    an engine whose capabilities lack them.
    """

    request_id: str
    ids: NDArray[np.int32]
    sampling: Sampling
    seeds: tuple[int, ...]
    session: str | None = None
    adapter: str | None = None
    grammar: str | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled continuation.

    Shapes: `ids` int32 [N], `logp` and `logp_unfiltered` float64 [N] (see `Trajectory`). `index` is the
    position of its seed in the request. `text` is decoded from `ids`, without stop tokens.
    """

    request_id: str
    index: int
    ids: NDArray[np.int32]
    logp: NDArray[np.float64]
    logp_unfiltered: NDArray[np.float64]
    text: str
    stop_reason: StopReason
    policy_version: int
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do; the driver refuses what it cannot."""

    name: str
    dtype: str
    max_context_tokens: int
    max_sequences: int
    logp: bool = True
    logp_unfiltered: bool = True
    adapters: bool = False
    grammars: bool = False
    images: bool = False
    sessions: bool = False


@runtime_checkable
class RolloutEngine(Protocol):
    """Who asks a policy for tokens. `generate` yields completions as each one ends."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Completion]: ...
    async def score(self, ids: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float64]]: ...
    async def abort(self, request_id: str) -> None: ...
    async def load_weights(self, ref: Any) -> int: ...
    def capabilities(self) -> EngineCapabilities: ...


# --- training ---------------------------------------------------------------------------------------


@runtime_checkable
class Objective(Protocol):
    """A formula: `(batch, outputs, denominators) -> ObjectiveOutput` (see `objectives.batch`).

    `needs` names what `outputs` and `batch` must hold beyond `logp`.
    """

    @property
    def needs(self) -> frozenset[str]: ...
    def __call__(self, batch: Any, outputs: Any, denominators: Any) -> Any: ...


@runtime_checkable
class TrainingBackend(Protocol):
    """What moves weights, behind one handle: a local process, sharded processes, or a remote service."""

    def forward(self, batch: Any) -> Any: ...
    def forward_backward(self, batch: Any, objective: Objective, denominators: Any) -> Any: ...
    def optim_step(self, lr: float) -> Any: ...
    def save_state(self, folder: str) -> None: ...
    def load_state(self, folder: str) -> None: ...
    def save_for_sampler(self, folder: str) -> CheckpointRef: ...


@runtime_checkable
class TextModel(Protocol):
    """A model as rooms below `models` see it: text in, text out, and log-probabilities of text."""

    async def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, seed: int
    ) -> list[str]: ...
    async def score(self, texts: Sequence[str]) -> list[NDArray[np.float64]]: ...
