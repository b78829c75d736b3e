"""Rehearsal: how far the policy has moved from a reference on text that the reference wrote.

    loss = coefficient * mean over the trained tokens of the step of exp(D) - 1 - D,   D = logp - logp_ref

The tokens are the reference's own samples, so the expectation of each term is KL(reference || policy) at its
position, and its gradient, (exp(D) - 1) * grad logp, is zero for every single sample while the two agree: a
likelihood of the same tokens has that gradient in the mean only. Leaves out the text (`train.replay`).

Source: the estimator is k3 of Schulman, "Approximating KL divergence", 2020; rehearsal of what was known: Robins,
Connection Science 7 (1995).
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.core.errors import ConfigError
from burnish.objectives.batch import Denominators, ObjectiveOutput, PolicyOutputs, Term, TokenBatch, share
from burnish.objectives.grpo import kl_estimate


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """`coefficient` times the mean of KL(reference || policy) over the trained tokens of the step, in nats.

    Raises: ConfigError where the coefficient is not a finite number above 0.
    """

    coefficient: float = 1.0

    name = "rehearsal"

    def __post_init__(self) -> None:
        if not 0 < self.coefficient < float("inf"):
            raise ConfigError(
                f"coefficient={self.coefficient} is not a number above 0: the term would do nothing, or harm",
                where="objective.coefficient",
                fix="set it above 0, or leave rehearsal out",
            )

    @property
    def needs(self) -> frozenset[str]:
        """What the batch must hold beyond ids."""
        return frozenset({"logp_ref"})

    def __call__(self, batch: TokenBatch, outputs: PolicyOutputs, denominators: Denominators) -> ObjectiveOutput:
        """This micro-batch's share of the loss.

        Raises: ValueError where the batch has no `logp_ref`.
        """
        if batch.logp_ref is None:
            raise ValueError("rehearsal needs logp_ref, which this batch lacks")
        mask = batch.mask
        divergence = kl_estimate(batch.logp_ref[mask], outputs.logp[mask], "k3")
        value = share(divergence.sum(), denominators.tokens, "tokens")
        term = Term(float(value.detach()), self.coefficient, "tokens", float(denominators.tokens))
        metrics = {"replay_kl": (float(divergence.detach().double().sum()), float(mask.sum()))}
        return ObjectiveOutput(self.coefficient * value, {"rehearsal": term}, metrics)

    def describe(self, denominators: Denominators | None = None) -> str:
        """The formula as text, with the step's numbers where they are known."""
        known = "" if denominators is None else f" ({denominators.tokens})"
        return (
            f"loss = {self.coefficient:g} * rehearsal\n"
            f"  rehearsal = mean over the replayed tokens of the step{known} of exp(D) - 1 - D\n"
            "  D         = logp - logp_ref, of tokens that the reference sampled"
        )
