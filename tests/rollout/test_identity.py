"""The identity proof: planted faults are caught, and what the probes cannot tell they do not claim."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.core.errors import PolicyMismatchError
from burnish.models.policy import LoraSpec, Policy, ReferenceScores, merge_into
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import (
    MEAN_TOLERANCE,
    NOISE_RATIO,
    IdentityProof,
    IdentityProver,
    ProbePower,
    WeightUpdate,
)
from conftest import tiny_model
from rollout_helpers import LetterTokenizer

PROBES = [np.random.default_rng(i).integers(6, 128, size=24).astype(np.int32) for i in range(3)]
LORA = LoraSpec(rank=4, alpha=8.0, target_modules=("q_proj", "o_proj"))


def nudge(policy: Policy, size: float, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def prove(prover: IdentityProver, engine: LocalEngine, policy: Policy, version: int) -> IdentityProof:
    def reference() -> ReferenceScores:
        return policy.reference_scores(PROBES, engine.dtype, stream=engine.stream_dtype)

    return asyncio.run(prover.prove(engine, policy.sampler_state(), policy.score(PROBES), version, reference))


def sync(engine: LocalEngine, policy: Policy, version: int) -> None:
    asyncio.run(engine.load_weights(WeightUpdate(policy.sampler_state(), version)))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "qwen3_moe"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_true_sync_is_proved(family: str, lora: LoraSpec | None) -> None:
    policy = Policy(tiny_model(family), Path(), lora=lora)
    engine = LocalEngine(tiny_model(family), LetterTokenizer())
    prover = IdentityProver(PROBES, torch.float32)
    sync(engine, policy, 1)
    assert prove(prover, engine, policy, 1).power is ProbePower.FIRST
    nudge(policy, 0.05)
    sync(engine, policy, 2)
    proof = prove(prover, engine, policy, 2)
    assert proof.power is ProbePower.TELLS
    assert proof.gap < 1e-3 < proof.signal


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_stale_sync_is_caught(lora: LoraSpec | None) -> None:
    policy = Policy(tiny_model(), Path(), lora=lora)
    engine = LocalEngine(tiny_model(), LetterTokenizer())
    prover = IdentityProver(PROBES, torch.float32)
    sync(engine, policy, 1)
    prove(prover, engine, policy, 1)
    nudge(policy, 1e-4)
    with pytest.raises(PolicyMismatchError, match="version 1, the trainer at 2"):
        prove(prover, engine, policy, 2)
    engine.version = 2  # the version was counted up, but the weights never arrived
    with pytest.raises(PolicyMismatchError, match="not the trainer's"):
        prove(prover, engine, policy, 2)


def test_a_wrong_adapter_is_caught() -> None:
    policy = Policy(tiny_model(), Path(), lora=LORA)
    nudge(policy, 0.1)
    other = Policy(tiny_model(), Path(), lora=LORA)
    nudge(other, 0.1, seed=5)
    engine = LocalEngine(tiny_model(), LetterTokenizer())
    for wrong in (other.sampler_state(), tiny_model().state_dict()):  # another adapter, and none at all
        asyncio.run(engine.load_weights(WeightUpdate(wrong, 1)))
        with pytest.raises(PolicyMismatchError, match="not the trainer's"):
            prove(IdentityProver(PROBES, torch.float32), engine, policy, 1)


def test_a_wrong_dtype_is_caught() -> None:
    policy = Policy(tiny_model(), Path())
    engine = LocalEngine(tiny_model(), LetterTokenizer(), dtype=torch.bfloat16)
    sync(engine, policy, 1)
    with pytest.raises(PolicyMismatchError, match="bfloat16, the recipe says float32"):
        prove(IdentityProver(PROBES, torch.float32), engine, policy, 1)
    # Weights that were rounded on their way into a float32 sampler: the dtype looks right, the bytes are not.
    engine = LocalEngine(tiny_model(), LetterTokenizer())
    rounded = {name: t.bfloat16().float() for name, t in policy.sampler_state().items()}
    asyncio.run(engine.load_weights(WeightUpdate(rounded, 1)))
    with pytest.raises(PolicyMismatchError, match="not the trainer's"):
        prove(IdentityProver(PROBES, torch.float32), engine, policy, 1)


def test_a_sampler_that_computes_something_else_is_caught() -> None:
    policy = Policy(tiny_model(), Path())
    engine = LocalEngine(tiny_model(), LetterTokenizer())
    sync(engine, policy, 1)
    engine.decoder.eps = 0.5  # type: ignore[attr-defined]
    with pytest.raises(PolicyMismatchError, match="same weights, but"):
        prove(IdentityProver(PROBES, torch.float32), engine, policy, 1)


def test_an_update_too_small_for_the_probes_is_not_claimed() -> None:
    policy = Policy(tiny_model(), Path())
    engine = LocalEngine(tiny_model(), LetterTokenizer())
    prover = IdentityProver(PROBES, torch.float32)
    sync(engine, policy, 1)
    prove(prover, engine, policy, 1)
    with torch.no_grad():
        policy.trainable()[0][1][127].add_(1e-7)  # one row of the embedding, far below rounding of the probes
    sync(engine, policy, 2)
    assert prove(prover, engine, policy, 2).power is ProbePower.UNDETECTABLE


def test_bf16_sampler_within_its_own_tolerance() -> None:
    policy = Policy(tiny_model(), Path())
    engine = LocalEngine(tiny_model(), LetterTokenizer(), dtype=torch.bfloat16)
    sync(engine, policy, 1)
    proof = prove(IdentityProver(PROBES, torch.bfloat16), engine, policy, 1)
    assert proof.digest_sampler == proof.digest_trainer
    assert 0 < proof.gap_mean <= proof.gap <= proof.tolerance


def sharp(size: float, *, autocast: bool = True) -> Policy:
    """A tiny model's logits are so flat that few functions differ by much."""
    policy = Policy(tiny_model(), Path(), autocast=autocast)
    with torch.no_grad():
        policy.head.mul_(size)
    return policy


def bf16_engine(policy: Policy) -> LocalEngine:
    engine = LocalEngine(tiny_model(), LetterTokenizer(), dtype=torch.bfloat16)
    sync(engine, policy, 1)
    return engine


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_the_reference_is_what_the_rounded_weights_say_in_fp32(lora: LoraSpec | None) -> None:
    policy = Policy(tiny_model(), Path(), lora=lora)
    nudge(policy, 0.05)
    plain = Policy(tiny_model(), Path())
    merge_into(plain.model, {name: t.bfloat16().float() for name, t in policy.sampler_state().items()})
    true = policy.reference_scores(PROBES, torch.bfloat16)
    for found, expected in ((true.exact, plain.score(PROBES)), (true.own, policy.score(PROBES))):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[1:], other[1:], atol=1e-6)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "qwen3_moe"])
def test_in_bf16_a_true_pair_of_any_family_is_within_rounding(family: str, autocast: bool) -> None:
    policy = Policy(tiny_model(family), Path(), autocast=autocast)
    engine = LocalEngine(tiny_model(family), LetterTokenizer(), dtype=torch.bfloat16)
    sync(engine, policy, 1)
    assert 0.5 < prove(IdentityProver(PROBES, torch.bfloat16), engine, policy, 1).noise_ratio <= NOISE_RATIO


@pytest.mark.parametrize("size", [5.0, 40.0])
def test_in_bf16_rounding_is_no_fault_however_large_but_another_function_is(size: float) -> None:
    """At size 40 the true gap is above any bound in nats that would still notice the fault at size 5."""
    policy = sharp(size)
    engine = bf16_engine(policy)
    true = prove(IdentityProver(PROBES, torch.bfloat16), engine, policy, 1)
    assert true.noise_ratio <= NOISE_RATIO
    assert (true.gap_mean > MEAN_TOLERANCE["bfloat16"]) == (size == 40)
    engine.decoder.eps = 0.1  # type: ignore[attr-defined]
    with pytest.raises(PolicyMismatchError, match="times as far"):
        prove(IdentityProver(PROBES, torch.bfloat16), engine, policy, 1)


def test_in_bf16_each_side_is_held_against_its_own_weights() -> None:
    """What rounding the weights does is no fault of a trainer that does not round them, however far it moves them."""
    policy = sharp(5)
    engine = bf16_engine(policy)
    true = policy.reference_scores(PROBES, torch.bfloat16)
    moved = [values + 0.3 for values in true.own]

    def held_against(reference: ReferenceScores) -> IdentityProof:
        prover = IdentityProver(PROBES, torch.bfloat16)
        return asyncio.run(prover.prove(engine, policy.sampler_state(), moved, 1, lambda: reference))

    assert held_against(replace(true, own=moved)).noise_ratio <= NOISE_RATIO
    with pytest.raises(PolicyMismatchError, match="times as far"):
        held_against(true)


def test_in_bf16_the_worst_token_is_held_against_the_worst_of_rounding() -> None:
    """One token 5 nats off: a fault where rounding moves none by more than 0.3, nothing where it moves one by 2."""
    policy = sharp(5)
    engine = bf16_engine(policy)
    fp32 = asyncio.run(engine.score(PROBES))
    calm, loud, trainer = ([values + move for values in fp32] for move in (0.3, 0.3, 0.0))
    loud[0][5] += 1.7
    trainer[0][5] += 5.0

    def held_against(rounded: list[np.ndarray]) -> IdentityProof:
        prover = IdentityProver(PROBES, torch.bfloat16)
        reference = ReferenceScores(fp32, fp32, rounded)
        return asyncio.run(prover.prove(engine, policy.sampler_state(), trainer, 1, lambda: reference))

    with pytest.raises(PolicyMismatchError, match=r"5 nats from the trainer at most \(allowed: 2\)"):
        held_against(calm)
    assert held_against(loud).tolerance == pytest.approx(8.0)


def test_in_bf16_the_reference_is_asked_at_first_and_where_the_gap_is_large() -> None:
    policy = sharp(5)
    engine = bf16_engine(policy)
    prover = IdentityProver(PROBES, torch.bfloat16)
    assert not math.isnan(prove(prover, engine, policy, 1).noise_ratio)
    assert math.isnan(prove(prover, engine, policy, 1).noise_ratio)  # a small gap: not asked again
    engine.decoder.eps = 0.5  # type: ignore[attr-defined]
    with pytest.raises(PolicyMismatchError, match="times as far"):
        prove(prover, engine, policy, 1)


def test_in_bf16_a_trainer_that_computes_another_function_is_caught() -> None:
    policy = sharp(5)
    engine = bf16_engine(policy)
    for module in policy.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.5
    with pytest.raises(PolicyMismatchError, match="times as far"):
        prove(IdentityProver(PROBES, torch.bfloat16), engine, policy, 1)


def test_in_bf16_without_a_reference_the_mean_decides() -> None:
    policy = sharp(5)
    engine = bf16_engine(policy)
    engine.decoder.eps = 0.5  # type: ignore[attr-defined]
    prover = IdentityProver(PROBES, torch.bfloat16)
    with pytest.raises(PolicyMismatchError, match="in the mean"):
        asyncio.run(prover.prove(engine, policy.sampler_state(), policy.score(PROBES), 1))
