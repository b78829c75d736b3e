"""The suite that every objective must pass: run it on your own as Burnish runs it on its own.

It draws random steps on the policy's own samples (ratio 1, so nothing is clipped) and checks the promises
that training relies on. Leaves out whether the formula is the one its name says.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from burnish.core.errors import ConfigError
from burnish.core.protocols import Objective
from burnish.objectives.batch import Denominators, PolicyOutputs, TokenBatch, sequence_token_counts

# Relative, in float64: sums of a few hundred terms in another order differ by some 1e-14.
TOLERANCE = 1e-10

_OPTIONAL = ("advantage", "logp_rollout", "logp_prox", "logp_ref")


def require_conformance(objective: Objective, *, seed: int = 0) -> None:
    """Raises: ConfigError with every broken promise of this objective."""
    if problems := conformance_problems(objective, seed=seed):
        raise ConfigError(
            f"{type(objective).__name__} breaks {len(problems)} promises: " + "; ".join(problems),
            where=f"{type(objective).__module__}:{type(objective).__name__}",
            fix="mend the formula and run burnish.objectives.conformance again",
        )


def conformance_problems(objective: Objective, *, seed: int = 0) -> list[str]:
    """What this objective gets wrong, one line a fault; empty if nothing."""
    checks: dict[str, Callable[[Objective, int], str]] = {
        "every trained token moves the policy": _check_gradient,
        "a step split anywhere gives the same loss and gradient": _check_split,
        "masked tokens have no effect, whatever they hold": _check_mask,
        "an all-masked step gives a loss of 0 and no gradient": _check_all_masked,
        "the loss is the sum of its terms": _check_terms,
    }
    found = []
    for promise, check in checks.items():
        if problem := check(objective, seed):
            found.append(f"{promise}: {problem}")
    return found


def random_step(
    objective: Objective, seed: int, *, num_tokens: int = 40, num_sequences: int = 6
) -> tuple[TokenBatch, Tensor, Tensor]:
    """A step with what the objective needs: (batch, logp [N], entropy [N]); some tokens are masked."""
    random = torch.Generator().manual_seed(seed)

    def draw(scale: float, shift: float = 0.0) -> Tensor:
        return torch.randn(num_tokens, generator=random, dtype=torch.float64) * scale + shift

    sequence = torch.randint(num_sequences, (num_tokens,), generator=random)
    mask = torch.rand(num_tokens, generator=random) < 0.8
    logp = draw(0.5, -2.0)
    values = {
        "advantage": torch.where(draw(1.0) > 0, 1.0, -1.0).double() * (draw(0.1).abs() + 0.5),
        "logp_rollout": logp.clone(),
        "logp_prox": logp.clone(),
        "logp_ref": logp + draw(0.3),
    }
    batch = TokenBatch(
        ids=torch.randint(100, (num_tokens,), generator=random),
        sequence=sequence,
        group=sequence // 2,
        sequence_tokens=sequence_token_counts(sequence, mask),
        mask=mask,
        **{name: values[name] for name in _OPTIONAL if name in objective.needs},
    )
    return batch, logp, draw(0.2, 1.5).abs()


def _run(
    objective: Objective, batch: TokenBatch, logp: Tensor, entropy: Tensor, cuts: list[int] | None = None
) -> tuple[float, Tensor]:
    """Total loss, and its gradient [N] with respect to `logp` (plus that of the entropy, per token)."""
    logp = logp.clone().requires_grad_()
    entropy = entropy.clone().requires_grad_()
    outputs = PolicyOutputs(logp, entropy if "entropy" in objective.needs else None)
    sizes = [len(batch)] if cuts is None else cuts
    pieces = batch.split(sizes)
    denominators = Denominators.of(pieces, max_tokens=64)
    total = 0.0
    for piece, out in zip(pieces, outputs.split(sizes), strict=True):
        loss = objective(piece, out, denominators).loss
        if loss.requires_grad:
            loss.backward()
        total += float(loss.detach())
    gradients = [x.grad if x.grad is not None else torch.zeros_like(x) for x in (logp, entropy)]
    return total, gradients[0] + gradients[1]


def _check_gradient(objective: Objective, seed: int) -> str:
    batch, logp, entropy = random_step(objective, seed)
    loss, gradient = _run(objective, batch, logp, entropy)
    if not torch.isfinite(gradient).all() or not torch.isfinite(torch.tensor(loss)):
        return f"loss {loss}, gradient not finite"
    dead = int((batch.mask & (gradient == 0)).sum())
    return f"{dead} of {int(batch.mask.sum())} trained tokens have no gradient" if dead else ""


def _check_split(objective: Objective, seed: int) -> str:
    batch, logp, entropy = random_step(objective, seed)
    loss, gradient = _run(objective, batch, logp, entropy)
    for cuts in ([1] * len(batch), [7, 1, len(batch) - 8], [len(batch) // 2, len(batch) - len(batch) // 2]):
        other, other_gradient = _run(objective, batch, logp, entropy, cuts)
        error = max(abs(other - loss), float((other_gradient - gradient).abs().max()))
        if not error <= TOLERANCE * max(1.0, abs(loss)):
            return f"micro-batches of {sorted(set(cuts))} tokens differ by {error:.3g}"
    return ""


def _check_mask(objective: Objective, seed: int) -> str:
    batch, logp, entropy = random_step(objective, seed)
    loss, gradient = _run(objective, batch, logp, entropy)
    for poison in (float("nan"), float("inf"), -float("inf")):

        def spoil(value: Tensor, poison: float = poison) -> Tensor:
            return torch.where(batch.mask, value, poison)

        values = {name: spoil(getattr(batch, name)) for name in _OPTIONAL if name in objective.needs}
        dirty = TokenBatch(batch.ids, batch.sequence, batch.group, spoil(batch.sequence_tokens), batch.mask, **values)
        other, other_gradient = _run(objective, dirty, spoil(logp), spoil(entropy))
        if other != loss or not torch.equal(other_gradient, gradient):
            return f"{poison} under the mask changes the loss from {loss:.6g} to {other:.6g}, or the gradient"
    return ""


def _check_all_masked(objective: Objective, seed: int) -> str:
    batch, logp, entropy = random_step(objective, seed)
    values = {name: getattr(batch, name) for name in _OPTIONAL if name in objective.needs}
    nothing = torch.zeros_like(batch.mask)
    counts = sequence_token_counts(batch.sequence, nothing)
    empty = TokenBatch(batch.ids, batch.sequence, batch.group, counts, nothing, **values)
    loss, gradient = _run(objective, empty, logp, entropy)
    largest = float(gradient.abs().max())
    return "" if loss == 0 and largest == 0 else f"loss {loss}, largest gradient {largest}"


def _check_terms(objective: Objective, seed: int) -> str:
    batch, logp, entropy = random_step(objective, seed)
    outputs = PolicyOutputs(logp, entropy.requires_grad_() if "entropy" in objective.needs else None)
    output = objective(batch, outputs, Denominators.of([batch], max_tokens=64))
    total = sum(term.coefficient * term.value for term in output.terms.values())
    loss = float(output.loss.detach())
    fits = abs(total - loss) <= TOLERANCE * max(1.0, abs(loss))
    return "" if fits else f"terms add up to {total}, the loss is {loss}"
