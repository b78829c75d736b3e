"""GRPO and its relatives: a clipped policy gradient with group advantages, KL to a reference, entropy.

The three normalisations, S sequences, T_i trained tokens of sequence i, T tokens of the whole step:

| name | loss | what it does | source |
|---|---|---|---|
| "sequence" | 1/S sum_i 1/T_i sum_t l_it | tokens of long replies count less | GRPO, arXiv:2402.03300 eq. 3 |
| "token" | 1/T sum_it l_it | every token counts the same | DAPO, arXiv:2503.14476 eq. 12, there per group |
| "constant" | 1/(S L) sum_it l_it, L constant | unbiased by length | Dr. GRPO, arXiv:2503.20783 section 3.1 |

The KL term. With D = logp - logp_ref, the estimators of KL(policy || reference) from its own samples are
k1 = D, k2 = D^2 / 2, k3 = exp(-D) - 1 + D (Schulman, "Approximating KL divergence", 2020). A value's gradient
is not its value's concern: E[D grad logp] is the gradient wanted, and r is the same ratio as in the policy
term, unclipped.

| estimator | gradient "unbiased" differentiates | gradient "direct" differentiates |
|---|---|---|
| k1 | r k1: r (D + 1) grad logp, unbiased, noisy | refused: E[grad logp] = 0, so it pulls nowhere |
| k2 | stop(r) k2: r D grad logp, unbiased | k2: D grad logp, unbiased only on the policy's own samples |
| k3 | r k3: r D grad logp, unbiased | k3: (1 - exp(-D)) grad logp, the gradient of KL(reference || policy) |

"direct" with k3 is what the GRPO paper and TRL (`use_bias_correction_kl=False`) do. All of them are per
token: the effect of a token on later states is left out, as in every peer.

Leaves out: dual clipping, sequence-level ratios (GSPO), values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.core.errors import ConfigError
from burnish.objectives.batch import Denominators, ObjectiveOutput, PolicyOutputs, Term, TokenBatch, share

Normalisation = Literal["sequence", "token", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]
KLGradient = Literal["unbiased", "direct"]
Importance = Literal["rollout", "prox"]

_CHOICES = {
    "normalisation": ("sequence", "token", "constant"),
    "importance": ("rollout", "prox"),
    "kl_estimator": ("k1", "k2", "k3", None),
    "kl_gradient": ("unbiased", "direct", None),
}
_DENOMINATORS = {"sequence": "sequences", "token": "tokens", "constant": "sequences * max_tokens"}
_REDUCTIONS = {
    "sequence": "mean over sequences of the mean over a sequence's trained tokens of",
    "token": "mean over the trained tokens of the step of",
    "constant": "1 / (sequences * max_tokens) * sum over the trained tokens of the step of",
}


@dataclass(frozen=True, slots=True)
class GRPO:
    """loss = policy + kl_coefficient * kl - entropy_coefficient * entropy.

    `clip_low`, `clip_high`: the ratio r is clipped to [1 - clip_low, 1 + clip_high] (DAPO: 0.2, 0.28).
    `normalisation`: see the module.
    `importance`: what r is relative to. "rollout": the policy as sampled, so r also corrects the difference
    between sampler and trainer. "prox": the trainer's policy at the start of the update.
    `updates_per_step`: optimiser steps taken on one set of rollouts. With "prox" and 1, r is 1 by
    construction (`logp_prox` is `logp` itself, and not needed): clipping never acts, which `describe` says.
    `rollout_weight_cap`: with "prox", the policy term (the KL term is not, as in TRL) is multiplied by
    min(exp(logp_prox - logp_rollout), cap), a truncated importance weight without gradient.
    `kl_coefficient`, `entropy_coefficient`: None leaves the term out. `kl_estimator` (k3 if None) and
    `kl_gradient` ("unbiased" if None): see the module.

    Raises: ConfigError for a value out of range, and for a term that is configured but structurally zero.
    """

    name = "grpo"

    clip_low: float = 0.2
    clip_high: float = 0.2
    normalisation: Normalisation = "token"
    importance: Importance = "rollout"
    updates_per_step: int = 1
    rollout_weight_cap: float | None = None
    kl_coefficient: float | None = None
    kl_estimator: KLEstimator | None = None
    kl_gradient: KLGradient | None = None
    entropy_coefficient: float | None = None

    def __post_init__(self) -> None:
        for key, choices in _CHOICES.items():
            if (value := getattr(self, key)) not in choices:
                wanted = ", ".join(repr(choice) for choice in choices if choice)
                raise _refuse(key, f"{key}={value!r} is none of {wanted}", f"set {key} to one of them")
        if not 0 < self.clip_low <= 1 or not self.clip_high > 0:
            raise _refuse(
                "clip_low",
                f"clip_low={self.clip_low}, clip_high={self.clip_high} leave no range for the ratio",
                "set clip_low in (0, 1] and clip_high above 0",
            )
        if self.updates_per_step < 1:
            raise _refuse(
                "updates_per_step",
                f"updates_per_step={self.updates_per_step} is below 1",
                "set it to 1 or more",
            )
        self._refuse_zero_terms()

    def _refuse_zero_terms(self) -> None:
        for key in ("kl_coefficient", "entropy_coefficient"):
            value = getattr(self, key)
            if value is not None and not 0 < value < float("inf"):
                what = f"{key}={value} is not a number above 0: the term would do nothing, or harm"
                raise _refuse(key, what, f"remove {key}, or set it above 0")
        if self.kl_coefficient is None:
            for key in ("kl_estimator", "kl_gradient"):
                if getattr(self, key) is not None:
                    raise _refuse(
                        key,
                        f"{key}={getattr(self, key)!r} without kl_coefficient has no effect",
                        f"remove {key}, or set kl_coefficient",
                    )
        if self.kl_estimator == "k1" and self.kl_gradient == "direct":
            raise _refuse(
                "kl_gradient",
                "k1 differentiated directly has a gradient of expectation zero: the KL term would be noise",
                "set kl_gradient to 'unbiased', or kl_estimator to 'k2' or 'k3'",
            )
        cap = self.rollout_weight_cap
        if cap is not None and (self.importance != "prox" or not cap > 0):
            raise _refuse(
                "rollout_weight_cap",
                f"rollout_weight_cap={cap} with importance={self.importance!r} "
                + ("is not above 0" if self.importance == "prox" else "has no effect: r holds that weight"),
                "remove it, or set importance to 'prox' and the cap above 0 (2 is common)",
            )

    @property
    def needs(self) -> frozenset[str]:
        """What batch and outputs must hold beyond `logp`."""
        names = {"advantage"}
        if self.importance == "rollout" or self.rollout_weight_cap is not None:
            names.add("logp_rollout")
        if self.importance == "prox" and self.updates_per_step > 1:
            names.add("logp_prox")
        if self.kl_coefficient is not None:
            names.add("logp_ref")
        if self.entropy_coefficient is not None:
            names.add("entropy")
        return frozenset(names)

    def __call__(self, batch: TokenBatch, outputs: PolicyOutputs, denominators: Denominators) -> ObjectiveOutput:
        """This micro-batch's share of the loss.

        Raises: ValueError where batch or outputs lack what `needs` names, or carry row weights.
        """
        self._check_inputs(batch, outputs)
        batch, outputs = batch.select(batch.mask), outputs.select(batch.mask)
        logp = outputs.logp
        prox = self._prox(batch, logp)
        ratio = torch.exp(logp - prox)
        metrics: dict[str, Tensor] = {"ratio_mean": ratio}

        policy = self._policy(batch, ratio, metrics)
        if self.rollout_weight_cap is not None:
            weight = torch.exp(prox - _given(batch.logp_rollout))
            metrics["ratio_mean/rollout_weight"] = weight
            metrics["clip_frac/rollout_weight"] = weight > self.rollout_weight_cap
            policy = policy * weight.clamp(max=self.rollout_weight_cap)
        parts = {"policy": (policy, 1.0)}
        if self.kl_coefficient is not None:
            parts["kl"] = (self._kl(batch, logp, ratio), self.kl_coefficient)
        loss, terms = self._reduce(parts, batch, denominators)

        if self.entropy_coefficient is not None:
            entropy = share(_given(outputs.entropy).sum(), denominators.tokens, "tokens")
            loss = loss - self.entropy_coefficient * entropy
            terms["entropy"] = Term(
                float(entropy.detach()), -self.entropy_coefficient, "tokens", float(denominators.tokens)
            )
        if outputs.entropy is not None:
            metrics["entropy_mean"] = outputs.entropy
        if batch.logp_ref is not None:
            metrics["kl_to_reference"] = kl_estimate(logp, batch.logp_ref, "k3")
        count = float(len(batch))
        sums = {name: (float(value.detach().double().sum()), count) for name, value in metrics.items()}
        maxima = {"ratio_max": float(ratio.detach().max())} if len(batch) else {}
        return ObjectiveOutput(loss, terms, sums, maxima)

    def _check_inputs(self, batch: TokenBatch, outputs: PolicyOutputs) -> None:
        for name in sorted(self.needs):
            found = outputs.entropy if name == "entropy" else getattr(batch, name)
            if found is None:
                raise ValueError(f"GRPO as configured needs {name}, which this batch lacks")
        if batch.weight is not None:
            raise ValueError("GRPO does not read row weights; the batch carries some")
        entropy = outputs.entropy
        if self.entropy_coefficient is not None and outputs.logp.requires_grad and entropy is not None:
            if not entropy.requires_grad:
                raise ValueError("the entropy carries no gradient: its term would be structurally zero")

    def _prox(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """The log-probability that the ratio is relative to."""
        if self.importance == "rollout":
            return _given(batch.logp_rollout)
        return _given(batch.logp_prox) if self.updates_per_step > 1 else logp.detach()

    def _policy(self, batch: TokenBatch, ratio: Tensor, metrics: dict[str, Tensor]) -> Tensor:
        advantage = _given(batch.advantage)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        low = (ratio < 1 - self.clip_low) & (advantage < 0)
        high = (ratio > 1 + self.clip_high) & (advantage > 0)
        metrics |= {"clip_frac": low | high, "clip_frac/low": low, "clip_frac/high": high}
        return -torch.minimum(ratio * advantage, clipped * advantage)

    def _kl(self, batch: TokenBatch, logp: Tensor, ratio: Tensor) -> Tensor:
        estimator = self.kl_estimator or "k3"
        value = kl_estimate(logp, _given(batch.logp_ref), estimator)
        if self.kl_gradient == "direct":
            return value
        return (ratio.detach() if estimator == "k2" else ratio) * value

    def _reduce(
        self, parts: dict[str, tuple[Tensor, float]], batch: TokenBatch, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Term]]:
        divisor = {
            "sequence": denominators.sequences,
            "token": denominators.tokens,
            "constant": denominators.sequences * denominators.max_tokens,
        }[self.normalisation]
        name = _DENOMINATORS[self.normalisation]
        loss, terms = batch.sequence_tokens.new_zeros(()), {}
        for key, (per_token, coefficient) in parts.items():
            if self.normalisation == "sequence":
                per_token = per_token / batch.sequence_tokens
            value = share(per_token.sum(), divisor, name)
            loss = loss + coefficient * value
            terms[key] = Term(float(value.detach()), coefficient, name, float(divisor))
        return loss, terms

    def describe(self, denominators: Denominators | None = None) -> str:
        """The formula as text, with the step's numbers where they are known."""
        reduce = _REDUCTIONS[self.normalisation]
        head = "loss = policy"
        base = "logp_rollout" if self.importance == "rollout" else "logp_prox"
        cap = self.rollout_weight_cap
        weight = "" if cap is None else f" * min(exp(logp_prox - logp_rollout), {cap:g})"
        low, high = f"{1 - self.clip_low:g}", f"{1 + self.clip_high:g}"
        lines = [
            f"  policy  = {reduce} -min(r A, clip(r, {low}, {high}) A){weight}",
            f"  r       = exp(logp - {base})",
        ]
        if self.updates_per_step == 1 and self.importance == "prox":
            lines.append("            one update per set of rollouts: r = 1, so clipping never acts")
        elif self.updates_per_step == 1:
            lines.append("            one update per set of rollouts: r - 1 is sampler against trainer only")
        if self.kl_coefficient is not None:
            head += f" + {self.kl_coefficient:g} * kl"
            lines.append(f"  kl      = {reduce} {self._kl_text()}")
            lines.append("  D       = logp - logp_ref")
        if self.entropy_coefficient is not None:
            head += f" - {self.entropy_coefficient:g} * entropy"
            lines.append("  entropy = mean over the trained tokens of the step of H(policy), nats")
        if denominators is not None:
            d = denominators
            constant = f", max_tokens {d.max_tokens}" if self.normalisation == "constant" else ""
            counts = f"{d.tokens} trained tokens, {d.sequences} sequences, {d.groups} groups"
            lines.append(f"  step    : {counts}{constant}")
        return "\n".join([head, *lines])

    def _kl_text(self) -> str:
        estimator = self.kl_estimator or "k3"
        value = {"k1": "D", "k2": "D^2/2", "k3": "(exp(-D) - 1 + D)"}[estimator]
        if self.kl_gradient == "direct":
            wrong = " (gradient of the reversed KL)" if estimator == "k3" else ""
            return value + wrong
        return f"stop(r) {value}" if estimator == "k2" else f"r {value}"


def kl_estimate(logp: Tensor, logp_other: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of KL(policy || other) from the policy's own samples, with its plain gradient.

    Shapes: [N], [N] -> [N], nats. Source: Schulman, "Approximating KL divergence", 2020.
    """
    difference = logp - logp_other
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.expm1(-difference) + difference


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def _refuse(key: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, where=f"objective.{key}", fix=fix)
