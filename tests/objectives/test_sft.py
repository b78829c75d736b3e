"""SFT: denominators of the whole step, and agreement with TRL."""

from __future__ import annotations

import pytest
import torch

from burnish.objectives.batch import Denominators, PolicyOutputs, TokenBatch, sequence_token_counts
from burnish.objectives.conformance import conformance_problems
from burnish.objectives.sft import SFT


def batch_of(num_tokens: int, **more: torch.Tensor) -> TokenBatch:
    positions = torch.arange(num_tokens)
    mask = more.pop("mask", torch.ones(num_tokens, dtype=torch.bool))
    return TokenBatch(
        positions, positions // 3, positions // 6, sequence_token_counts(positions // 3, mask), mask, **more
    )


def test_conformance() -> None:
    assert conformance_problems(SFT()) == []


def test_token_mean_over_the_step_not_the_micro_batch() -> None:
    logp = torch.tensor([-1.0, -2.0, -3.0, -6.0], dtype=torch.float64)
    batch = batch_of(4)
    pieces, outs = batch.split([1, 3]), PolicyOutputs(logp).split([1, 3])
    counts = Denominators.of(pieces)
    total = sum(SFT()(piece, out, counts).loss.item() for piece, out in zip(pieces, outs, strict=True))
    assert total == pytest.approx(3.0, abs=1e-15)  # a mean of means would give (1 + 11/3) / 2


def test_row_weights_are_relative() -> None:
    logp = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    for scale in (1.0, 5.0):
        batch = batch_of(3, weight=torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64) * scale)
        output = SFT()(batch, PolicyOutputs(logp), Denominators.of([batch]))
        assert output.loss.item() == pytest.approx(7 / 4, abs=1e-15)
        assert output.metrics["train_loss"] == (6.0, 3.0)


def test_the_formula_is_printed_with_its_denominator() -> None:
    text = SFT().describe(Denominators.from_counts([3, 4, 0]))
    assert "w * -logp" in text
    assert "(7)" in text


def test_counts_agree_with_batches() -> None:
    mask = torch.tensor([True, False, False, True, True, True, False, False, False])
    batch = batch_of(9, mask=mask)
    assert Denominators.of(batch.split([2, 2, 5])) == Denominators.from_counts([1, 3, 0], [0, 0, 1])
    assert batch.sequence_tokens.tolist() == [1, 1, 1, 3, 3, 3, 0, 0, 0]


def test_a_denominator_of_zero_with_trained_tokens_is_refused() -> None:
    batch = batch_of(2)
    with pytest.raises(ValueError, match="denominator weight is 0"):
        SFT()(batch, PolicyOutputs(torch.tensor([-1.0, -1.0])), Denominators(0, 0, 0, 0.0))


def test_batches_check_their_shapes() -> None:
    with pytest.raises(ValueError, match="logp_ref has shape"):
        batch_of(3, logp_ref=torch.zeros(2))
    with pytest.raises(ValueError, match="not bool"):
        batch_of(3, mask=torch.ones(3))
    with pytest.raises(ValueError, match="add up to 2"):
        batch_of(3).split([1, 1])
