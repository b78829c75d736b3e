"""GRPO: invariants, the KL's gradient against an enumerated KL, refusals, the printed formula."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnish.core.errors import ConfigError
from burnish.objectives.advantages import grpo_advantages
from burnish.objectives.batch import Denominators, PolicyOutputs, TokenBatch, sequence_token_counts
from burnish.objectives.conformance import conformance_problems, random_step
from burnish.objectives.grpo import GRPO

F64 = torch.float64
FULL: dict[str, Any] = {
    "importance": "prox",
    "updates_per_step": 2,
    "rollout_weight_cap": 2.0,
    "kl_coefficient": 0.05,
    "entropy_coefficient": 0.01,
}
VARIANTS = [
    {"normalisation": normalisation, **more}
    for normalisation, more in itertools.product(
        ["sequence", "token", "constant"],
        [{}, {"importance": "prox"}, FULL, {"kl_coefficient": 0.1, "kl_estimator": "k2"}],
    )
]


@pytest.mark.parametrize("config", VARIANTS)
def test_conformance(config: dict[str, Any]) -> None:
    assert conformance_problems(GRPO(**config)) == []


def off_policy(batch: TokenBatch, seed: int) -> TokenBatch:
    """The same step with ratios far from 1, so that clipping acts."""
    random = torch.Generator().manual_seed(seed)

    def moved(value: Tensor | None) -> Tensor | None:
        return None if value is None else value + 0.4 * torch.randn(len(value), generator=random, dtype=F64)

    return replace(batch, logp_rollout=moved(batch.logp_rollout), logp_prox=moved(batch.logp_prox))


def total(
    objective: GRPO, batch: TokenBatch, logp: Tensor, entropy: Tensor, order: Tensor, sizes: list[int]
) -> tuple[float, Tensor, dict[str, tuple[float, float]]]:
    logp, entropy = logp.clone().requires_grad_(), entropy.clone().requires_grad_()
    pieces = batch.select(order).split(sizes)
    outs = PolicyOutputs(logp, entropy).select(order).split(sizes)
    counts = Denominators.of(pieces, max_tokens=50)
    loss, metrics = 0.0, {}
    for piece, out in zip(pieces, outs, strict=True):
        output = objective(piece, out, counts)
        output.loss.backward(retain_graph=True)  # the pieces share one indexing node
        loss += float(output.loss.detach())
        for name, (value, count) in output.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + value, before[1] + count)
    assert logp.grad is not None
    return loss, logp.grad, metrics


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_split_of_a_step_gives_the_same_loss_gradient_and_metrics(data: st.DataObject) -> None:
    objective = GRPO(**data.draw(st.sampled_from(VARIANTS)))
    seed = data.draw(st.integers(0, 1000))
    batch, logp, entropy = random_step(objective, seed)
    batch = off_policy(batch, seed)
    order = torch.tensor(data.draw(st.permutations(range(len(batch)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(batch) - 1), max_size=8)))
    sizes = [b - a for a, b in itertools.pairwise([0, *cuts, len(batch)])]
    whole = total(objective, batch, logp, entropy, torch.arange(len(batch)), [len(batch)])
    split = total(objective, batch, logp, entropy, order, sizes)
    assert split[0] == pytest.approx(whole[0], abs=1e-10)
    torch.testing.assert_close(split[1], whole[1], rtol=0, atol=1e-10)
    for name, (value, count) in whole[2].items():
        assert split[2][name] == pytest.approx((value, count), abs=1e-9)


@pytest.mark.parametrize("normalisation", ["sequence", "token", "constant"])
def test_a_fully_masked_sequence_changes_nothing(normalisation: str) -> None:
    objective = GRPO(normalisation=normalisation)
    batch, logp, _ = random_step(objective, 4)
    dead = batch.sequence == 2
    without = batch.select(~dead)
    masked = replace(batch, mask=batch.mask & ~dead)
    counts = Denominators.of([masked], max_tokens=9)
    assert counts == Denominators.of([without], max_tokens=9)
    assert counts.sequences == 5
    found = objective(masked, PolicyOutputs(logp), counts).loss
    assert found.item() == objective(without, PolicyOutputs(logp[~dead]), counts).loss.item()


# --- on policy: REINFORCE with a baseline ---


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["rollout", "prox"]))
def test_on_policy_gradient_is_reinforce_with_the_group_mean_as_baseline(seed: int, importance: Any) -> None:
    random = torch.Generator().manual_seed(seed)
    theta = torch.randn(4, 5, generator=random, dtype=F64, requires_grad=True)  # state -> logits of 5 tokens
    state = torch.randint(4, (24,), generator=random)
    ids = torch.randint(5, (24,), generator=random)
    sequence = torch.arange(24) // 3
    reward = torch.randint(2, (8,), generator=random).double()
    group = torch.arange(8) // 4
    result = grpo_advantages(reward.numpy(), group.numpy(), normalisation="none", std_floor=0.0)
    logp = theta.log_softmax(-1)[state, ids]
    batch = TokenBatch(
        ids,
        sequence,
        group[sequence],
        sequence_token_counts(sequence, torch.ones(24, dtype=torch.bool)),
        torch.ones(24, dtype=torch.bool),
        advantage=torch.tensor(result.advantage)[sequence],
        logp_rollout=logp.detach(),
    )
    output = GRPO(importance=importance)(batch, PolicyOutputs(logp), Denominators.of([batch]))
    (found,) = torch.autograd.grad(output.loss, theta, retain_graph=True)
    baseline = torch.stack([reward[group == key].mean() for key in (0, 1)])
    reinforce = -((reward - baseline[group])[sequence] * logp).sum() / 24
    torch.testing.assert_close(found, torch.autograd.grad(reinforce, theta)[0], rtol=0, atol=1e-12)
    assert output.metrics["ratio_mean"] == pytest.approx((24, 24), abs=1e-12)
    assert output.metrics["clip_frac"][0] == 0


# --- the KL term's gradient against the exact KL, by enumeration ---


def kl_case(seed: int, **config: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Expected gradient of the KL term alone, and the exact ones of KL(policy || ref) and KL(ref || policy).

    The expectation over samples of the old policy is enumerated: advantage 0, one token a "sequence", each
    token of the vocabulary weighted by its probability.
    """
    theta = (torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=F64)).requires_grad_()
    reference = torch.randn(6, generator=torch.Generator().manual_seed(seed + 1), dtype=F64).log_softmax(-1)
    drift = 0.3 * torch.randn(6, generator=torch.Generator().manual_seed(seed + 2), dtype=F64)
    logp = theta.log_softmax(-1)
    sampled_from = (theta.detach() + config.pop("drift", 0.0) * drift).log_softmax(-1)
    objective = GRPO(kl_coefficient=1.0, **config)
    expected = torch.zeros(6, dtype=F64)
    for token in range(6):
        one = torch.tensor([0])
        batch = TokenBatch(
            torch.tensor([token]),
            one,
            one,
            torch.ones(1, dtype=F64),
            torch.tensor([True]),
            advantage=torch.zeros(1, dtype=F64),
            logp_rollout=sampled_from[token : token + 1],
            logp_ref=reference[token : token + 1],
        )
        loss = objective(batch, PolicyOutputs(logp[token : token + 1]), Denominators.of([batch])).loss
        expected += sampled_from[token].exp() * torch.autograd.grad(loss, theta, retain_graph=True)[0]
    reverse = (logp.exp() * (logp - reference)).sum()
    forward = (reference.exp() * (reference - logp)).sum()
    return (
        expected,
        torch.autograd.grad(reverse, theta, retain_graph=True)[0],
        torch.autograd.grad(forward, theta)[0],
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_unbiased_kl_gradients_are_those_of_the_reverse_kl_on_and_off_policy(estimator: str, drift: float) -> None:
    expected, reverse, _ = kl_case(3, kl_estimator=estimator, kl_gradient="unbiased", drift=drift)
    torch.testing.assert_close(expected, reverse, rtol=0, atol=1e-12)


def test_k3_as_a_loss_has_the_gradient_of_the_other_kl() -> None:
    expected, reverse, forward = kl_case(3, kl_estimator="k3", kl_gradient="direct")
    torch.testing.assert_close(expected, forward, rtol=0, atol=1e-12)
    assert (expected - reverse).norm() > 0.1 * reverse.norm()


def test_k2_as_a_loss_is_right_on_policy_only() -> None:
    expected, reverse, _ = kl_case(3, kl_estimator="k2", kl_gradient="direct")
    torch.testing.assert_close(expected, reverse, rtol=0, atol=1e-12)
    expected, reverse, _ = kl_case(3, kl_estimator="k2", kl_gradient="direct", drift=1.0)
    assert (expected - reverse).norm() > 0.01 * reverse.norm()


# --- clipping, caps, faults ---


def one_token(advantage: float, ratio: float, **config: Any) -> tuple[float, float]:
    """(loss, gradient with respect to logp) of one token."""
    logp = torch.tensor([-1.0], dtype=F64, requires_grad=True)
    old = logp.detach() - torch.tensor([ratio], dtype=F64).log()
    one = torch.tensor([0])
    batch = TokenBatch(
        one,
        one,
        one,
        torch.ones(1, dtype=F64),
        torch.tensor([True]),
        advantage=torch.tensor([advantage], dtype=F64),
        logp_rollout=old,
    )
    loss = GRPO(clip_low=0.2, clip_high=0.3, **config)(batch, PolicyOutputs(logp), Denominators.of([batch])).loss
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient"),
    [
        (2.0, 1.1, -2.2, -2.2),
        (2.0, 1.5, -2.6, 0.0),  # clipped above: no further push
        (2.0, 0.5, -1.0, -1.0),  # below, but wants to rise: not clipped
        (-2.0, 0.5, 1.6, 0.0),  # clipped below
        (-2.0, 1.5, 3.0, 3.0),  # above, but wants to fall: not clipped
    ],
)
def test_clipping_is_one_sided(advantage: float, ratio: float, loss: float, gradient: float) -> None:
    assert one_token(advantage, ratio) == pytest.approx((loss, gradient), abs=1e-12)


def test_the_rollout_weight_is_capped_and_carries_no_gradient() -> None:
    # prox with one update: the ratio is 1, and the weight is exp(logp_prox - logp_rollout) = 5, capped at 2
    config: dict[str, Any] = {"importance": "prox", "rollout_weight_cap": 2.0}
    assert one_token(3.0, 5.0, **config) == pytest.approx((-6.0, -6.0), abs=1e-12)
    assert one_token(3.0, 0.5, **config) == pytest.approx((-1.5, -1.5), abs=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        {"kl_coefficient": 0.0},
        {"kl_coefficient": -0.1},
        {"kl_coefficient": float("nan")},
        {"entropy_coefficient": 0.0},
        {"kl_estimator": "k3"},
        {"kl_gradient": "direct"},
        {"kl_coefficient": 0.1, "kl_estimator": "k1", "kl_gradient": "direct"},
        {"kl_coefficient": 0.1, "kl_estimator": "k4"},
        {"rollout_weight_cap": 2.0},
        {"importance": "prox", "rollout_weight_cap": 0.0},
        {"normalisation": "mean"},
        {"clip_low": 0.0},
        {"clip_high": 0.0},
        {"updates_per_step": 0},
    ],
)
def test_terms_that_are_structurally_zero_or_senseless_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        GRPO(**config)
    assert caught.value.where.startswith("objective.")
    assert caught.value.fix


def test_what_it_needs_follows_from_the_config_and_is_asked_for() -> None:
    assert GRPO().needs == {"advantage", "logp_rollout"}
    assert GRPO(importance="prox").needs == {"advantage"}
    assert GRPO(**FULL).needs == {"advantage", "logp_prox", "logp_rollout", "logp_ref", "entropy"}
    batch, logp, entropy = random_step(GRPO(), 0)
    counts = Denominators.of([batch])
    with pytest.raises(ValueError, match="needs logp_ref"):
        GRPO(kl_coefficient=0.1)(batch, PolicyOutputs(logp), counts)
    with pytest.raises(ValueError, match="no gradient"):
        GRPO(entropy_coefficient=0.1)(batch, PolicyOutputs(logp.requires_grad_(), entropy), counts)
    with pytest.raises(ValueError, match="row weights"):
        GRPO()(replace(batch, weight=torch.ones(len(batch))), PolicyOutputs(logp), counts)


def test_the_formula_is_printed_with_its_values() -> None:
    text = GRPO(**FULL, normalisation="constant", clip_high=0.28).describe(
        Denominators.from_counts([5, 6, 0, 2], [0, 0, 1, 1], max_tokens=64)
    )
    assert text.startswith("loss = policy + 0.05 * kl - 0.01 * entropy\n")
    for part in (
        "clip(r, 0.8, 1.28)",
        "logp_prox - logp_rollout), 2)",
        "13 trained tokens, 3 sequences, 2 groups",
    ):
        assert part in text
    assert "max_tokens 64" in text
    assert "clipping never acts" not in text
    assert "clipping never acts" in GRPO(importance="prox").describe()
