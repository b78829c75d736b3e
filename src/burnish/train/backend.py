"""The local training backend: one process, one policy, one optimiser.

A step's sequences are packed into micro-batches (shared beginnings once); each micro-batch's loss is already
divided by the whole step's denominators, so losses and gradients add and any split gives the same step.

Legend: T positions of a sequence, N trained tokens of a micro-batch, U positions that predict them (several
tokens may follow one position: samples that agree up to there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.errors import IntegrityError, NonFiniteError
from burnish.core.protocols import Objective, Sampling
from burnish.core.types import CheckpointRef
from burnish.models.allocator import keep_freed_memory, return_freed_memory
from burnish.models.digest import weights_digest
from burnish.models.packing import PackedRows
from burnish.models.policy import Policy
from burnish.objectives.batch import Denominators, ObjectiveOutput, PolicyOutputs, Term, TokenBatch
from burnish.objectives.functional import filtered_logp, linear_token_logp, token_logp_and_entropy
from burnish.train.checkpoint import load_checkpoint, load_optimizer, save_checkpoint
from burnish.train.geometry import ROW_TOKENS, ROWS_AT_ONCE
from burnish.train.optim import clip_grad_norm, make_adamw, set_lr

Members = list[tuple[int, NDArray[np.intp]]]
"""(sequence, its trained positions [n]) in the order of a micro-batch's tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """One sequence of a step.

    Shapes: `ids` int32 [T]; `trained` bool [T], False at position 0; `logp_rollout`, `logp_prox`, `logp_ref`
    float64 [T] or None, read where trained. `group` keys the group. `advantage` and `weight` belong to every
    trained token.
    """

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    group: int
    advantage: float | None = None
    weight: float | None = None
    logp_rollout: NDArray[np.float64] | None = None
    logp_prox: NDArray[np.float64] | None = None
    logp_ref: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if len(self.trained) != len(self.ids) or self.trained[0]:
            raise ValueError("a trained mask has the length of its ids, and nothing predicts the first token")

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return int(self.trained.sum())


@dataclass(slots=True)
class StepOutput:
    """Totals over the micro-batches of one `forward_backward`."""

    loss: float = 0.0
    terms: dict[str, Term] = field(default_factory=dict)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    num_computed_tokens: int = 0
    num_trained_tokens: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """Means and maxima of the objective's metrics over the step."""
        return {name: total / count for name, (total, count) in self.sums.items() if count} | self.maxima

    def add(self, output: ObjectiveOutput) -> None:
        """Add one micro-batch."""
        self.loss += float(output.loss.detach())
        for name, term in output.terms.items():
            before = self.terms[name].value if name in self.terms else 0.0
            self.terms[name] = Term(before + term.value, term.coefficient, term.denominator, term.denominator_value)
        for name, (total, count) in output.metrics.items():
            old_total, old_count = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (old_total + total, old_count + count)
        for name, value in output.maxima.items():
            self.maxima[name] = max(value, self.maxima.get(name, value))


class LocalBackend:
    """`TrainingBackend` in this process.

    `row_tokens`: capacity of a packed row; `rows_at_once`: rows of a micro-batch. `sampling` says which
    distribution log-probabilities belong to: the one that rollouts were drawn from (None: plain softmax).
    With `frozen` there is no optimiser: a reference that only scores.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        row_tokens: int = ROW_TOKENS,
        rows_at_once: int = ROWS_AT_ONCE,
        sampling: Sampling | None = None,
        frozen: bool = False,
    ) -> None:
        keep_freed_memory()
        self.policy = policy
        self._optimizer = None if frozen else make_adamw(policy.model, lr=0.0, weight_decay=weight_decay)
        self._max_grad_norm = max_grad_norm
        self._row_tokens, self._rows_at_once = row_tokens, rows_at_once
        self._temperature = 1.0 if sampling is None else sampling.temperature
        self._top_k = 0 if sampling is None else sampling.top_k
        self._top_p = 1.0 if sampling is None else sampling.top_p

    # --- forward ------------------------------------------------------------------------------------

    def _token_outputs(self, hidden: Tensor, rows: Tensor, ids: Tensor) -> PolicyOutputs:
        """Log-probability and entropy of tokens `ids` [N], token n predicted by hidden state `rows[n]` of [U, D]."""
        if self._top_k or self._top_p < 1.0:
            logits = self.policy.logits(hidden)[rows]
            return PolicyOutputs(filtered_logp(logits, ids, self._temperature, self._top_k, self._top_p))
        if self.policy.logit_softcap:
            logp, entropy = token_logp_and_entropy(self.policy.logits(hidden)[rows], ids, self._temperature)
        else:
            # Under autocast the head multiplies in bf16, as the sampler's does; sums stay in float32.
            hidden = hidden.to(torch.bfloat16 if self.policy.autocast else self.policy.head.dtype)
            logp, entropy = linear_token_logp(hidden, self.policy.head, ids, self._temperature, rows=rows)
        return PolicyOutputs(logp, entropy)

    def _predict(self, packed: PackedRows, at: Tensor, ids: Tensor) -> PolicyOutputs:
        """One forward pass; `at` [N]: the flat positions that predict `ids` [N]."""
        unique, rows = torch.unique(at, return_inverse=True)
        return self._token_outputs(self.policy.hidden(packed)[unique], rows, ids)

    def _gather(self, packed: PackedRows, sequences: Sequence[TrainSequence]) -> tuple[Tensor, Members]:
        """Flat positions [N] that predict the trained tokens, and (member, token positions) in the same order."""
        sources, members = [], []
        for member, source in packed.sources.items():
            at = np.nonzero(sequences[member].trained)[0]
            if len(at):
                sources.append(source[torch.from_numpy(at - 1)])
                members.append((member, at))
        return (torch.cat(sources) if sources else torch.empty(0, dtype=torch.int64)), members

    def _batch(self, sequences: Sequence[TrainSequence], members: Members) -> TokenBatch:
        def per_token(name: str) -> Tensor | None:
            values = [getattr(sequences[m], name) for m, _ in members]
            if any(value is None for value in values):
                return None
            rows = [
                np.full(len(at), v) if np.isscalar(v) else v[at] for v, (_, at) in zip(values, members, strict=True)
            ]
            return torch.from_numpy(np.concatenate(rows).astype(np.float64)).to(_accumulator(self.policy.dtype))

        counts = np.concatenate([np.full(len(at), sequences[m].num_trained, np.float64) for m, at in members])
        ids = np.concatenate([sequences[m].ids[at] for m, at in members]).astype(np.int64)
        return TokenBatch(
            ids=torch.from_numpy(ids),
            sequence=torch.from_numpy(np.concatenate([np.full(len(at), m) for m, at in members])),
            group=torch.from_numpy(np.concatenate([np.full(len(at), sequences[m].group) for m, at in members])),
            sequence_tokens=torch.from_numpy(counts).to(_accumulator(self.policy.dtype)),
            mask=torch.ones(len(ids), dtype=torch.bool),
            advantage=per_token("advantage"),
            weight=per_token("weight"),
            logp_rollout=per_token("logp_rollout"),
            logp_prox=per_token("logp_prox"),
            logp_ref=per_token("logp_ref"),
        )

    def _micro_batches(self, sequences: Sequence[TrainSequence]) -> list[PackedRows]:
        return self.policy.pack(
            [s.ids for s in sequences], row_tokens=self._row_tokens, rows_at_once=self._rows_at_once
        )

    @torch.no_grad()
    def forward(self, sequences: Sequence[TrainSequence]) -> list[NDArray[np.float64]]:
        """Log-probabilities [T] under the sampled distribution, NaN where not trained."""
        out = [np.full(len(s.ids), np.nan) for s in sequences]
        for packed in self._micro_batches(sequences):
            source, members = self._gather(packed, sequences)
            if not members:
                continue
            ids = self._batch(sequences, members).ids
            logp = self._predict(packed, source, ids).logp.double().numpy()
            offset = 0
            for member, at in members:
                out[member][at] = logp[offset : offset + len(at)]
                offset += len(at)
        return out

    def forward_backward(
        self, sequences: Sequence[TrainSequence], objective: Objective, denominators: Denominators
    ) -> StepOutput:
        """Add the gradient of the objective over these sequences.

        Raises: NonFiniteError where the loss is not finite.
        """
        step = StepOutput()
        for packed in self._micro_batches(sequences):
            source, members = self._gather(packed, sequences)
            if not members:
                continue
            batch = self._batch(sequences, members)
            outputs = self._predict(packed, source, batch.ids)
            output = objective(batch, outputs, denominators)
            if not torch.isfinite(output.loss):
                worst = [s.group for s in sequences][:1]
                raise NonFiniteError(
                    f"the loss is {float(output.loss.detach())}",
                    where=f"a micro-batch of {len(batch)} tokens, first group {worst}",
                    fix="lower the learning rate, or resume from the last checkpoint",
                )
            output.loss.backward()
            step.add(output)
            step.num_computed_tokens += packed.num_tokens
            step.num_trained_tokens += len(batch)
        return step

    # --- weights ------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """The optimiser; a frozen backend has none."""
        if self._optimizer is None:
            raise RuntimeError("a frozen backend only scores")
        return self._optimizer

    def optim_step(self, lr: float) -> float:
        """Clip, step, clear; returns the gradient's norm before clipping.

        Raises: NonFiniteError with the parameter's name.
        """
        norm = clip_grad_norm(self.policy.trainable(), self._max_grad_norm)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return_freed_memory()
        return norm

    def save_for_sampler(self, folder: str, *, stage: str = "", step: int = 0, parent: str = "") -> CheckpointRef:
        """Write a model folder that transformers, vLLM and Burnish load."""
        self.policy.save(Path(folder))
        return CheckpointRef(folder, weights_digest(self.policy.sampler_state()), stage, step, parent)

    def save_state(self, folder: str, *, step: int = 0, trainer: Mapping[str, Any] | None = None) -> Path:
        """Trainable weights, optimiser and the loop's counters as one atomic checkpoint (`train.checkpoint`)."""
        weights = {name: p.detach() for name, p in self.policy.trainable()}
        return save_checkpoint(
            Path(folder),
            step,
            model=weights,
            optimizer=self.optimizer.state_dict(),
            trainer=trainer or {},
            keep=1,
        )

    @torch.no_grad()
    def load_state(self, folder: str) -> tuple[int, dict[str, Any]]:
        """Put back what `save_state` wrote in this checkpoint folder; returns step and the loop's counters.

        Raises: IntegrityError where bytes changed, or the state is another model's.
        """
        state = load_checkpoint(Path(folder))
        parameters = dict(self.policy.trainable())
        if set(parameters) != set(state.model) or state.optimizer is None:
            raise IntegrityError(
                "the checkpoint is of another model",
                where=folder,
                fix="resume with the recipe that the run began with",
            )
        for name, tensor in state.model.items():
            parameters[name].copy_(tensor)
        load_optimizer(self.optimizer, state.optimizer)
        return state.step, state.trainer


def step_denominators(sequences: Sequence[TrainSequence], *, max_tokens: int = 0) -> Denominators:
    """The counts of a whole optimiser step."""
    tokens = [s.num_trained for s in sequences]
    counted = Denominators.from_counts(tokens, [s.group for s in sequences], max_tokens=max_tokens)
    if all(s.weight is None for s in sequences):
        return counted
    weight = float(sum(n * (1.0 if s.weight is None else s.weight) for n, s in zip(tokens, sequences, strict=True)))
    return Denominators(counted.tokens, counted.sequences, counted.groups, weight, max_tokens)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
