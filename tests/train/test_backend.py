"""What a training step owes: any split is the same step, and the policy that sampled has ratio 1."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.core.errors import IntegrityError, NonFiniteError
from burnish.core.protocols import Completion, GenerateRequest, Objective, Sampling
from burnish.models.policy import LoraSpec, Policy
from burnish.objectives.grpo import GRPO
from burnish.objectives.sft import SFT
from burnish.rollout.engine_local import LocalEngine
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators
from conftest import in_float64, tiny_model
from rollout_helpers import LetterTokenizer

SAMPLINGS = [
    Sampling(12),
    Sampling(12, temperature=0.7),
    Sampling(12, temperature=1.3, top_k=15),
    Sampling(12, top_p=0.9),
]


def groups(model: torch.nn.Module, dtype: torch.dtype, sampling: Sampling) -> list[TrainSequence]:
    """Three groups of four sampled replies, as training sequences with made-up advantages."""
    engine = LocalEngine(model, LetterTokenizer(), dtype=dtype)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(6, 128, size=n).astype(np.int32) for n in (9, 14, 6)]

    async def one(index: int, ids: np.ndarray) -> list[Completion]:
        request = GenerateRequest(str(index), ids, sampling, tuple(range(4)))
        return [c async for c in engine.generate(request)]

    async def main() -> list[list[Completion]]:
        return [await one(i, ids) for i, ids in enumerate(prompts)]

    sequences = []
    for group, (prompt, completions) in enumerate(zip(prompts, asyncio.run(main()), strict=True)):
        for index, c in enumerate(completions):
            nothing = np.full(len(prompt), np.nan)
            sequences.append(
                TrainSequence(
                    ids=np.concatenate([prompt, c.ids]),
                    trained=np.concatenate([np.zeros(len(prompt), bool), np.ones(len(c.ids), bool)]),
                    group=group,
                    advantage=float(index - 1.5),
                    logp_rollout=np.concatenate([nothing, c.logp]),
                )
            )
    return sequences


def gradients(backend: LocalBackend) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for _, p in backend.policy.trainable() if p.grad is not None])


# Bounds on |ratio - 1| of the policy that sampled, by the dtype of sampler and trainer. float64 is the promise;
# float32 and bf16 are what two different orders of summation may do to a log-probability (nats).
RATIO_BOUND = {torch.float64: 1e-5, torch.float32: 1e-3}


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_ratio_of_the_policy_that_sampled_is_one(dtype: torch.dtype, sampling: Sampling) -> None:
    model = in_float64(tiny_model()) if dtype == torch.float64 else tiny_model()
    sequences = groups(model, dtype, sampling)
    backend = LocalBackend(Policy(model, Path()), sampling=sampling, row_tokens=64, frozen=True)
    logp = backend.forward(sequences)
    for sequence, found in zip(sequences, logp, strict=True):
        assert sequence.logp_rollout is not None
        ratio = np.exp(found[sequence.trained] - sequence.logp_rollout[sequence.trained])
        assert np.abs(ratio - 1).max() < RATIO_BOUND[dtype]


def test_the_ratio_with_a_bf16_sampler_stays_within_its_bound() -> None:
    """bf16 has 8 bits: single tokens move by some hundredths, and importance weights carry that."""
    model = tiny_model()
    sequences = groups(model, torch.bfloat16, Sampling(12))
    logp = LocalBackend(Policy(model, Path()), frozen=True).forward(sequences)
    pairs = [
        (f[s.trained], s.logp_rollout[s.trained])
        for f, s in zip(logp, sequences, strict=True)
        if s.logp_rollout is not None
    ]
    gaps = np.concatenate([np.abs(np.exp(a - b) - 1) for a, b in pairs])
    assert 0 < gaps.mean() < 0.05
    assert gaps.max() < 0.5


@pytest.mark.parametrize(
    "objective", [SFT(), GRPO(), GRPO(normalisation="sequence"), GRPO(normalisation="constant")], ids=str
)
@pytest.mark.parametrize("rows", [(24, 1), (64, 2), (4096, 8)])
def test_any_packing_is_the_same_step(objective: Objective, rows: tuple[int, int]) -> None:
    model = in_float64(tiny_model())
    sequences = groups(model, torch.float64, Sampling(12))
    denominators = step_denominators(sequences, max_tokens=12)

    def step(row_tokens: int, rows_at_once: int, order: list[int]) -> tuple[float, torch.Tensor]:
        backend = LocalBackend(Policy(model, Path()), row_tokens=row_tokens, rows_at_once=rows_at_once)
        model.zero_grad()
        loss = 0.0
        half = len(order) // 3  # also cut the step into two calls
        for part in (order[:half], order[half:]):
            loss += backend.forward_backward([sequences[i] for i in part], objective, denominators).loss
        return loss, gradients(backend)

    expected_loss, expected = step(100_000, 64, list(range(12)))
    shuffled = np.random.default_rng(1).permutation(12).tolist()
    loss, found = step(*rows, shuffled)
    # SFT and GRPO count a sequence's tokens where it is whole, which every one of these splits keeps.
    assert loss == pytest.approx(expected_loss, abs=1e-10)
    assert (found - expected).norm() <= 1e-10 * expected.norm()


def test_real_model_split_in_float32(smollm2_folder: Path) -> None:
    policy = Policy.load(smollm2_folder)
    rng = np.random.default_rng(2)
    sequences = []
    for group, n in enumerate((30, 45, 21)):
        prompt = rng.integers(100, 40_000, size=n)
        for _ in range(2):
            ids = np.concatenate([prompt, rng.integers(100, 40_000, size=9)]).astype(np.int32)
            sequences.append(TrainSequence(ids, np.arange(len(ids)) >= n, n, group, weight=1.0))
    denominators = step_denominators(sequences)

    def step(row_tokens: int, rows_at_once: int) -> tuple[float, torch.Tensor]:
        backend = LocalBackend(policy, row_tokens=row_tokens, rows_at_once=rows_at_once)
        policy.model.zero_grad()
        loss = backend.forward_backward(sequences, SFT(), denominators).loss
        return loss, gradients(backend)

    loss_a, a = step(64, 1)
    loss_b, b = step(512, 4)
    assert loss_a == pytest.approx(loss_b, rel=1e-5)
    assert (a - b).norm() <= 1e-5 * a.norm()


def test_tokens_trained_are_tokens_sampled() -> None:
    model = tiny_model()
    sequences = groups(model, torch.float32, Sampling(12))
    seen: list[list[int]] = []

    class Spy(GRPO):
        __slots__ = ()

        def __call__(self, batch, outputs, denominators):  # type: ignore[no-untyped-def]
            seen.append(batch.ids.tolist())
            return super().__call__(batch, outputs, denominators)

    backend = LocalBackend(Policy(model, Path()), row_tokens=64, sampling=Sampling(12))
    output = backend.forward_backward(sequences, Spy(), step_denominators(sequences))
    sampled = sorted(int(i) for s in sequences for i in s.ids[s.trained])
    assert sorted(i for ids in seen for i in ids) == sampled
    assert output.num_trained_tokens == len(sampled)
    assert output.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


def test_a_nan_is_refused_before_it_reaches_the_weights() -> None:
    model = tiny_model()
    sequences = groups(model, torch.float32, Sampling(6))
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    backend = LocalBackend(Policy(model, Path()))
    with pytest.raises(NonFiniteError):
        backend.forward_backward(sequences, GRPO(), step_denominators(sequences))


@pytest.mark.parametrize("lora", [None, LoraSpec(4, 8.0, ("q_proj", "v_proj"))], ids=["full", "lora"])
def test_resuming_is_going_on(tmp_path: Path, lora: LoraSpec | None) -> None:
    """n steps in one go are k steps, save, load elsewhere, n - k steps: to the last bit."""

    def fresh() -> LocalBackend:
        return LocalBackend(Policy(tiny_model(), Path(), lora=lora), weight_decay=0.01)

    torch.manual_seed(0)
    whole = fresh()
    sequences = groups(tiny_model(), torch.float32, Sampling(10))
    denominators = step_denominators(sequences)

    def steps(backend: LocalBackend, count: int) -> None:
        for _ in range(count):
            backend.forward_backward(sequences, GRPO(), denominators)
            backend.optim_step(1e-3)

    start = {name: p.detach().clone() for name, p in whole.policy.trainable()}
    steps(whole, 5)
    for k in range(1, 5):
        first, second = fresh(), fresh()
        with torch.no_grad():
            for name, p in first.policy.trainable():
                p.copy_(start[name])
        steps(first, k)
        path = first.save_state(str(tmp_path / str(k)), step=k, trainer={"cursor": [k]})
        assert second.load_state(str(path)) == (k, {"cursor": [k]})
        steps(second, 5 - k)
        for (name, a), (_, b) in zip(whole.policy.trainable(), second.policy.trainable(), strict=True):
            assert torch.equal(a, b), name


def test_another_models_state_is_refused(tmp_path: Path) -> None:
    one = LocalBackend(Policy(tiny_model(), Path()))
    sequences = groups(tiny_model(), torch.float32, Sampling(4))
    one.forward_backward(sequences, SFT(), step_denominators(sequences))
    one.optim_step(1e-3)
    path = one.save_state(str(tmp_path), step=1)
    other = LocalBackend(Policy(tiny_model("qwen3"), Path()))
    with pytest.raises(IntegrityError, match="another model"):
        other.load_state(str(path))
