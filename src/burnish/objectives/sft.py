"""Supervised fine-tuning: the negative log-likelihood of trained tokens.

Leaves out label smoothing and any mean by sequence: those make long replies count less per token.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.objectives.batch import Denominators, ObjectiveOutput, PolicyOutputs, Term, TokenBatch, share


@dataclass(frozen=True, slots=True)
class SFT:
    """loss = sum of w * -logp over trained tokens / sum of w over the trained tokens of the step.

    w is the row's weight, 1 by default: then this is the mean over the tokens of the whole optimiser step.
    Departs: peers that average each micro-batch, then the micro-batches, weigh tokens by where they fell.
    Raises: ValueError where trained tokens have weights that do not add up to more than 0.
    """

    name = "sft"

    @property
    def needs(self) -> frozenset[str]:
        """Nothing beyond `logp`."""
        return frozenset()

    def __call__(self, batch: TokenBatch, outputs: PolicyOutputs, denominators: Denominators) -> ObjectiveOutput:
        """This micro-batch's share of the loss."""
        mask = batch.mask
        nll = -outputs.logp[mask]
        weighted = nll if batch.weight is None else nll * batch.weight[mask]
        loss = share(weighted.sum(), denominators.weight, "weight")
        count = float(mask.sum())
        metrics = {"train_loss": (float(nll.detach().double().sum()), count)}
        if outputs.entropy is not None:
            metrics["entropy_mean"] = (float(outputs.entropy.detach()[mask].double().sum()), count)
        term = Term(float(loss.detach()), 1.0, "weight", denominators.weight)
        return ObjectiveOutput(loss, {"nll": term}, metrics)

    def describe(self, denominators: Denominators | None = None) -> str:
        """The formula as text, with the step's numbers where they are known."""
        known = "" if denominators is None else f" ({denominators.weight:g})"
        return (
            "loss = nll\n"
            "  nll = sum over trained tokens of w * -logp\n"
            f"        / sum of w over the trained tokens of the step{known}\n"
            "  w   = the row's weight, 1 where the data gives none"
        )
