"""The types that flow through Burnish.

    Task -> (Environment x RolloutEngine) -> Trajectory + Artifacts -> Verifier(Gold) -> Verdict

Shape legend: T positions of one trajectory (prompt and every later token, in order).

Hot types are slotted dataclasses; what goes to disk passes through `core.codec`, which versions it. Leaves
out tensors (see `objectives.batch`) and gold (see `core.gold`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from burnish.core.outcomes import Ending, Outcome, StopReason

# --- messages ---------------------------------------------------------------------------------------


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by the SHA-256 of its bytes; the bytes live in the run's blob store."""

    sha256: str
    media_type: str = "image/png"
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Text the model wrote for itself."""

    text: str
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A call the model asked for; `arguments` is a JSON object."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    kind: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """What a tool answered to the call `call_id`."""

    text: str
    call_id: str = ""
    name: str = ""
    is_error: bool = False
    kind: Literal["tool_result"] = "tool_result"


Part = TextPart | ImagePart | ReasoningPart | ToolCallPart | ToolResultPart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, in typed parts."""

    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, role: Role | str, text: str) -> Message:
        """A message with one text part."""
        return cls(Role(role), (TextPart(text),))

    @property
    def text(self) -> str:
        """The text parts, joined; other parts are left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


# --- tasks ------------------------------------------------------------------------------------------


class Split(StrEnum):
    """Which set a task belongs to. The three evaluation sets and training are disjoint by hash."""

    TRAIN = "train"
    DEVELOPMENT = "development"
    GATE = "gate"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Task:
    """The public half of a task; its gold is sealed elsewhere under the same `id`.

    `id` is a hash of everything the model sees and of how it is judged, so equal tasks collide on purpose.
    `cluster` names the template that the task was drawn from: the unit of resampling in every statistic.
    `difficulty` is the author's, in [0, 1], or None.
    """

    id: str
    prompt: tuple[Message, ...]
    env: str
    verifier: str
    domain: str
    split: Split
    cluster: str
    source: str
    licence: str
    difficulty: float | None = None
    tools: tuple[ToolSpec, ...] = ()
    tags: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        prompt: tuple[Message, ...],
        *,
        env: str,
        verifier: str,
        domain: str,
        split: Split,
        cluster: str,
        source: str,
        licence: str,
        difficulty: float | None = None,
        tools: tuple[ToolSpec, ...] = (),
        tags: tuple[str, ...] = (),
    ) -> Task:
        """A task with its content-hash id."""
        task_id = content_id(prompt=prompt, env=env, verifier=verifier, domain=domain, tools=tools)
        return cls(task_id, prompt, env, verifier, domain, split, cluster, source, licence, difficulty, tools, tags)


def content_id(**content: Any) -> str:
    """A 16-hex-digit content hash of dataclasses, enums and plain JSON values."""
    from burnish.core.codec import to_plain

    text = json.dumps(to_plain(content), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# --- trajectories -----------------------------------------------------------------------------------


class TokenSource(IntEnum):
    """Where a token came from."""

    PROMPT = 0
    SAMPLED = 1
    INJECTED = 2  # environment text and template glue after the prompt


class TokenUse(IntEnum):
    """Whether a token is trained, and if not, why."""

    TRAINED = 0
    IS_PROMPT = 1
    IS_INJECTED = 2
    NOT_ASSISTANT = 3
    UNDECIDED = 4  # its trajectory has no decided verdict
    TRUNCATED = 5  # masked because the reply was cut and the recipe says so
    SHARED_PREFIX = 6  # trained once, in the parent trajectory
    STALE = 7  # sampled by a policy version outside the staleness bound
    ZERO_ADVANTAGE = 8  # its group has no variance


class ParseState(StrEnum):
    """What became of a place where the model could have called a tool: three states, never two."""

    CALL = "call"
    NO_CALL = "no_call"
    UNPARSEABLE = "unparseable"


@dataclass(frozen=True, slots=True)
class Turn:
    """Token positions [start, end) of one message; `sampled` turns are the policy's own."""

    start: int
    end: int
    role: Role
    sampled: bool
    parse_state: ParseState = ParseState.NO_CALL


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, monotonic: waiting in the queue, computing the prompt, sampling, verifying."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer about one trajectory.

    `score` is present iff the outcome is decided. `components` are named partial credits, for reading;
    they enter the reward only where a recipe says so. `flags` name suspected exploits.
    """

    outcome: Outcome
    score: float | None
    reason: str
    verifier: str
    version: str
    components: dict[str, float] = field(default_factory=dict)
    step_scores: tuple[float, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    ending: Ending = Ending.VERIFIED
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        decided = self.outcome is not Outcome.UNDECIDED
        if decided != (self.score is not None):
            raise ValueError(f"a verdict has a score iff it is decided: {self.outcome} with score {self.score}")
        if self.score is not None and not np.isfinite(self.score):
            raise ValueError(f"a verdict's score is finite, not {self.score}")


@dataclass(slots=True, eq=False)
class Trajectory:
    """Everything recorded about one sample of one task; tokens exactly as sampled.

    Shapes: every array is [T]. `ids` int32; `source` and `use` uint8 (`TokenSource`, `TokenUse`);
    `logp_rollout` float64 under the distribution that was sampled from (after temperature, top-p, top-k),
    `logp_unfiltered` under the plain softmax at temperature 1; both NaN where a token was not sampled;
    `policy_version` int32, -1 where not sampled.

    `fork_token`: with a `parent_id`, the number of leading tokens shared with the parent. `routing`: room
    for mixture-of-experts routes, [T, layers, experts_per_token] int16, or None.
    """

    id: str
    task_id: str
    domain: str
    cluster: str
    sample: int
    seed: int
    ids: NDArray[np.int32]
    source: NDArray[np.uint8]
    use: NDArray[np.uint8]
    logp_rollout: NDArray[np.float64]
    logp_unfiltered: NDArray[np.float64]
    policy_version: NDArray[np.int32]
    turns: tuple[Turn, ...]
    reply: Message
    reply_text: str
    stop_reason: StopReason
    ending: Ending = Ending.VERIFIED
    timing: Timing = field(default_factory=Timing)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    parent_id: str | None = None
    fork_token: int = 0
    routing: NDArray[np.int16] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        length = len(self.ids)
        for name in ("source", "use", "logp_rollout", "logp_unfiltered", "policy_version"):
            found = len(getattr(self, name))
            if found != length:
                raise ValueError(f"trajectory {self.id}: {name} has {found} entries for {length} tokens")

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return int((self.source == TokenSource.SAMPLED).sum())

    @property
    def num_trained(self) -> int:
        """Number of tokens that training uses."""
        return int((self.use == TokenUse.TRAINED).sum())

    @property
    def main(self) -> Verdict | None:
        """The verdict that decides, or None before verification."""
        return self.verdicts.get("main")

    def with_verdict(self, role: str, verdict: Verdict) -> Trajectory:
        """A copy that carries one more verdict."""
        return replace(self, verdicts={**self.verdicts, role: verdict})

    def masked(self, why: TokenUse) -> Trajectory:
        """A copy in which no token is trained, for the reason given; other reasons are kept."""
        use = self.use.copy()
        use[use == TokenUse.TRAINED] = why
        return replace(self, use=use)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What an environment hands over at `finish()`, copied out after its box is dead.

    `files` are small text files by relative path; `state` is any final state as plain JSON; `blobs` are
    larger things by SHA-256.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, str] = field(default_factory=dict)


# --- lineage ----------------------------------------------------------------------------------------


class Decision(StrEnum):
    """The three answers of a gate."""

    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint by path and weight digest, with its parent's digest ('' for a base model)."""

    path: str
    digest: str
    stage: str
    step: int
    parent: str = ""
