"""Weight sync, and the proof that sampler and trainer speak for the same policy.

After each sync two things are held against each other: the digest of the tensors that the sampler reads
against the digest of the trainer's tensors (cast to the sampler's dtype), and both sides' log-probabilities
on fixed probes. The probes count only where they can tell version v from v-1; where the update was too
small for that they say "undetectable", and the run goes on only because the digests match.

How far two true computations in bf16 lie apart depends on the weights, so no bound in nats separates rounding
from a fault. There a third computation is the judge: the same weights through the transformers model, in fp32 and
in bf16. Each side may lie as far from fp32 with its own weights (the sampler's are rounded, the trainer's are not)
as transformers' bf16 does, times `NOISE_RATIO`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.core.errors import PolicyMismatchError
from burnish.models.digest import weights_digest
from burnish.models.policy import ReferenceScores

PROBE_TOLERANCE: dict[str, float] = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 2.0}
MEAN_TOLERANCE: dict[str, float] = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1}
"""Largest |log-probability difference| in nats between sampler and trainer, on any probe token and in the mean,
by sampler dtype. Measured on a 135M Llama model of 30 layers (docs/lab-notes.md): fp32 2.9e-5 at most; bf16 0.04 to
0.18 in the mean and 0.2 to 0.7 on the worst token, growing as training moves the weights. In bf16 a gap above its
bound is therefore not yet a fault: the fp32 reference decides."""

NOISE_RATIO = 1.5
"""How much farther than transformers' own bf16 sampler or trainer may lie from fp32, in the mean over all probe tokens.
On the same model: the true sampler 0.99; a final norm scaled by 1.02, 2.0; epsilon 1e-3 for 1e-5, 2.9; a rotary base
of 1e4 for 1e5, 13; two norms of one layer exchanged, 93."""

WORST_RATIO = 4.0
"""How much farther sampler and trainer may lie apart on the worst token than transformers' bf16 lies from fp32 on its
worst, where that is more than the bound in nats. A margin, not a measurement: it keeps a single token from being far
off unseen. In 16 RL steps the gap grew to 1.24 nats on the worst token, still below the bound."""

PROBE_ROUNDING: dict[str, float] = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2}
"""Log-probability changes below this are rounding, not evidence: a few units in the last place of a logit
of size 30 (2 ** -24 * 32 = 2e-6 in fp32, 2 ** -9 * 32 = 6e-2 in bf16, which averages down over a sum)."""


_ANOTHER_FUNCTION = "run `burnish doctor`; the engine computes another function than the trainer"


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weights by transformers name, and the policy version that they are."""

    tensors: Mapping[str, Tensor]
    version: int


class ProbedEngine(Protocol):
    """What the proof needs of an engine."""

    dtype: torch.dtype
    stream_dtype: torch.dtype
    version: int

    def digest(self) -> str: ...
    async def score(self, ids: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float64]]: ...


class ProbePower(StrEnum):
    """Whether the probes could have noticed the previous version."""

    TELLS = "tells"
    UNDETECTABLE = "undetectable"
    FIRST = "first"  # there is no previous version yet


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """What was compared at one sync. `gap`, `gap_mean`: largest and mean difference between sampler and trainer, in
    nats; `signal`: largest difference between trainer now and trainer at the previous version, NaN at first;
    `noise_ratio`: mean distance from fp32, in units of what rounding alone does, of whichever side has more; NaN
    where no reference was asked."""

    version: int
    digest_trainer: str
    digest_sampler: str
    dtype: str
    gap: float
    gap_mean: float
    tolerance: float
    signal: float
    power: ProbePower
    noise_ratio: float = float("nan")


def _gaps(a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Differences of all tokens but each first."""
    return np.concatenate([np.abs(x[1:] - y[1:]) for x, y in zip(a, b, strict=True)])


class IdentityProver:
    """Holds the probes, and the trainer's answers at the previous version."""

    def __init__(self, probes: Sequence[NDArray[np.int32]], expected_dtype: torch.dtype) -> None:
        if not probes or any(len(probe) < 2 for probe in probes):
            raise ValueError("identity probes need at least two tokens each")
        self.probes = list(probes)
        self.expected_dtype = expected_dtype
        self._previous: list[NDArray[np.float64]] | None = None

    async def prove(
        self,
        engine: ProbedEngine,
        trainer_tensors: Mapping[str, Tensor],
        trainer_logp: Sequence[NDArray[np.float64]],
        version: int,
        reference: Callable[[], ReferenceScores] | None = None,
    ) -> IdentityProof:
        """Compare once after a sync.

        `trainer_logp`: the trainer's own log-probabilities of the probes, [T] each, first entry NaN; `reference`:
        the same by transformers (see `Policy.reference_scores`); called in bf16 at the first sync and wherever a
        gap is above its bound. Without it those bounds alone decide.

        Raises: PolicyMismatchError on a wrong version, dtype, digest or log-probability.
        """
        dtype = str(engine.dtype).removeprefix("torch.")
        if engine.dtype != self.expected_dtype:
            raise PolicyMismatchError(
                f"the sampler computes in {dtype}, the recipe says {str(self.expected_dtype).removeprefix('torch.')}",
                fix="set model.dtype to what the engine uses, or restart the engine",
            )
        if engine.version != version:
            raise PolicyMismatchError(
                f"the sampler is at policy version {engine.version}, the trainer at {version}",
                fix="a weight sync was missed; resume from the last checkpoint",
            )
        sampler_logp = await engine.score(self.probes)
        gaps = _gaps(sampler_logp, trainer_logp)
        gap = float(gaps.max())
        noise_ratio = float("nan")
        tolerance = PROBE_TOLERANCE[dtype]
        above = not (float(gaps.mean()) <= MEAN_TOLERANCE[dtype] and gap <= tolerance)
        if reference is not None and engine.dtype == torch.bfloat16 and (above or self._previous is None):
            true = reference()
            sampler = _gaps(sampler_logp, true.exact).mean() / _gaps(true.rounded, true.exact).mean()
            trainer = _gaps(trainer_logp, true.own).mean() / _gaps(true.rounded, true.own).mean()
            noise_ratio = float(np.maximum(sampler, trainer))  # NaN stays NaN
            worst = max(_gaps(true.rounded, fp32).max() for fp32 in (true.exact, true.own))
            tolerance = max(tolerance, WORST_RATIO * float(worst))
        signal = float("nan") if self._previous is None else float(_gaps(self._previous, trainer_logp).max())
        power = ProbePower.FIRST
        if self._previous is not None:
            power = ProbePower.TELLS if signal > 2 * max(gap, PROBE_ROUNDING[dtype]) else ProbePower.UNDETECTABLE
        proof = IdentityProof(
            version=version,
            digest_trainer=weights_digest(trainer_tensors, dtype=engine.dtype),
            digest_sampler=engine.digest(),
            dtype=dtype,
            gap=gap,
            gap_mean=float(gaps.mean()),
            tolerance=tolerance,
            signal=signal,
            power=power,
            noise_ratio=noise_ratio,
        )
        self._refuse(proof)
        self._previous = [values.copy() for values in trainer_logp]
        return proof

    def _refuse(self, proof: IdentityProof) -> None:
        where = f"policy version {proof.version}"
        if proof.digest_trainer != proof.digest_sampler:
            raise PolicyMismatchError(
                f"the sampler's weights ({proof.digest_sampler[:12]}) are not the trainer's "
                f"({proof.digest_trainer[:12]}); largest probe gap {proof.gap:.3g} nats",
                where=where,
                fix="a sync was stale or an adapter is missing; resume from the last checkpoint",
            )
        if not math.isnan(proof.noise_ratio):
            if not (proof.noise_ratio <= NOISE_RATIO and proof.gap <= proof.tolerance):
                raise PolicyMismatchError(
                    f"same weights, but sampler or trainer lies {proof.noise_ratio:.3g} times as far from its fp32 "
                    f"log-probabilities as rounding explains (allowed: {NOISE_RATIO:g}), and {proof.gap:.3g} nats from "
                    f"the trainer at most (allowed: {proof.tolerance:g})",
                    where=where,
                    fix=_ANOTHER_FUNCTION,
                )
            return
        mean_tolerance = MEAN_TOLERANCE[proof.dtype]
        if not (proof.gap <= proof.tolerance and proof.gap_mean <= mean_tolerance):
            raise PolicyMismatchError(
                f"same weights, but log-probabilities differ by {proof.gap:.3g} nats at most and {proof.gap_mean:.3g} "
                f"in the mean (tolerances {proof.tolerance:g} and {mean_tolerance:g} in {proof.dtype})",
                where=where,
                fix=_ANOTHER_FUNCTION,
            )
