"""Rehearsal: the divergence in closed form, and no gradient at all where nothing has moved."""

from __future__ import annotations

import pytest
import torch

from burnish.core.errors import ConfigError
from burnish.objectives.batch import Denominators, PolicyOutputs, TokenBatch, sequence_token_counts
from burnish.objectives.conformance import conformance_problems
from burnish.objectives.rehearsal import Rehearsal


def loss_and_gradient(logits: torch.Tensor, reference: torch.Tensor, ids: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Of a policy that is one categorical distribution, on these tokens."""
    logits = logits.clone().requires_grad_()
    sequence = torch.zeros(len(ids), dtype=torch.int64)
    mask = torch.ones(len(ids), dtype=torch.bool)
    logp_ref = reference.log_softmax(-1)[ids]
    batch = TokenBatch(ids, sequence, sequence, sequence_token_counts(sequence, mask), mask, logp_ref=logp_ref)
    output = Rehearsal()(batch, PolicyOutputs(logits.log_softmax(-1)[ids]), Denominators.of([batch]))
    output.loss.backward()
    assert logits.grad is not None
    return output.loss.item(), logits.grad


def test_conformance() -> None:
    assert conformance_problems(Rehearsal(0.5)) == []


def test_in_expectation_it_is_the_divergence_and_so_is_its_gradient() -> None:
    random = torch.Generator().manual_seed(0)
    reference, logits = (torch.randn(5, generator=random, dtype=torch.float64) for _ in range(2))
    # Probabilities of a 64th, so that 64 tokens hold each as often as it is expected.
    counts = torch.tensor([32, 16, 8, 4, 4])
    reference = (counts / 64).double().log()
    ids = torch.repeat_interleave(torch.arange(5), counts)
    loss, gradient = loss_and_gradient(logits, reference, ids)
    exact = logits.clone().requires_grad_()
    p, logq = reference.exp(), exact.log_softmax(-1)
    divergence = (p * (reference - logq)).sum()
    divergence.backward()
    # E[exp(D) - 1] is sum of q - 1 = 0, so the mean is the divergence exactly.
    assert loss == pytest.approx(divergence.item(), abs=1e-12)
    assert exact.grad is not None
    torch.testing.assert_close(gradient, exact.grad, atol=1e-12, rtol=0)


def test_a_single_sample_pulls_nowhere_while_nothing_has_moved() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    loss, gradient = loss_and_gradient(logits, logits, torch.tensor([1]))
    assert loss == 0.0
    assert gradient.abs().max() < 1e-15


def test_a_coefficient_that_does_nothing_is_refused() -> None:
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="is not a number above 0"):
            Rehearsal(value)


def test_the_formula_is_printed() -> None:
    assert "0.5 * rehearsal" in Rehearsal(0.5).describe(Denominators.from_counts([3, 4]))
    assert "(7)" in Rehearsal(0.5).describe(Denominators.from_counts([3, 4]))
