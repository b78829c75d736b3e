"""Loss and gradient against TRL 1.16.0 on a tiny model in float64.

TRL's formulas are methods of its trainers; they are called with a stand-in that has the attributes they read.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burnish.objectives.advantages import grpo_advantages
from burnish.objectives.batch import Denominators, PolicyOutputs, TokenBatch, sequence_token_counts
from burnish.objectives.functional import linear_token_logp, token_logp, token_logp_and_entropy
from burnish.objectives.grpo import GRPO
from burnish.objectives.sft import SFT

F64 = torch.float64
B, P, T, V, D = 6, 3, 7, 19, 8  # sequences, prompt tokens, completion tokens, vocabulary, hidden size
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def trl() -> SimpleNamespace:
    pytest.importorskip("trl")
    assert importlib.metadata.version("trl") == "1.16.0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer
        from trl.trainer.sft_trainer import SFTTrainer
        from trl.trainer.utils import entropy_from_logits, selective_log_softmax
    return SimpleNamespace(
        grpo=GRPOTrainer._compute_loss,
        sft=SFTTrainer.compute_loss,
        logp=selective_log_softmax,
        entropy=entropy_from_logits,
    )


class Bigram(nn.Module):
    """Logits of the next token from the last: the smallest model with shared weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(V, D, dtype=F64)
        self.head = nn.Linear(D, V, bias=False, dtype=F64)

    def hidden(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.embed(ids))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(ids))
        return logits


class Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True
    parallelism_config = None

    def gather(self, value: Tensor) -> Tensor:
        return value

    gather_for_metrics = gather

    def reduce(self, value: Tensor, reduction: str) -> Tensor:
        return value


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def rollouts(seed: int, *, off_policy: bool) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (B, P + T), generator=random)
    lengths = torch.randint(1, T + 1, (B,), generator=random)
    noise = torch.randn(3, B, T, generator=random, dtype=F64)
    with torch.no_grad():
        logp = Bigram()(ids[:, P - 1 : -1]).log_softmax(-1).gather(-1, ids[:, P:, None]).squeeze(-1)
    reward = torch.randint(2, (B,), generator=random).double() + 0.1 * torch.randn(B, generator=random, dtype=F64)
    return {
        "ids": ids,
        "mask": torch.arange(T) < lengths[:, None],
        "prox": logp + 0.3 * noise[0] * off_policy,
        "rollout": logp + 0.3 * (noise[0] + noise[1]) * off_policy,
        "ref": logp + 0.5 * noise[2],
        "advantage": torch.tensor(grpo_advantages(reward.numpy(), [0, 0, 0, 1, 1, 1]).advantage),
    }


def trl_grpo(trl: SimpleNamespace, rows: dict[str, Tensor], **options: Any) -> tuple[float, Tensor]:
    model = Bigram()

    def logps(model: Bigram, ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        logits = model(ids[:, P - 1 : -1])
        return trl.logp(logits, ids[:, P:]), trl.entropy(logits), None

    settings: dict[str, Any] = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": 32,
        "use_adaptive_entropy": False,
        "entropy_coef": 0.0,
        "_entropy_bonus_enabled": False,
        "accelerator": Accelerator(),
        "args": SimpleNamespace(
            use_bias_correction_kl=options.pop("bias_correction", False), delta=None, steps_per_generation=1
        ),
        "_metrics": {"train": defaultdict(list)},
        "model": model.train(),
        "_get_per_token_logps_and_entropies": logps,
    }
    inputs = {
        "prompt_ids": rows["ids"][:, :P],
        "prompt_mask": torch.ones(B, P, dtype=torch.long),
        "completion_ids": rows["ids"][:, P:],
        "completion_mask": rows["mask"].long(),
        "advantages": rows["advantage"],
        "old_per_token_logps": rows["prox"],
        "ref_per_token_logps": rows["ref"],
        "num_items_in_batch": rows["mask"].sum(),
    }
    cap = options.pop("cap", None)
    if cap is not None:
        inputs["importance_sampling_ratio"] = torch.exp(rows["prox"] - rows["rollout"]).clamp(max=cap)
    stand_in = SimpleNamespace(**{**settings, **options})
    loss = trl.grpo(stand_in, model, inputs)
    return float(loss.detach()), gradient(loss, model)


def our_grpo(objective: GRPO, rows: dict[str, Tensor], *, micro_batches: int = 1) -> tuple[float, Tensor]:
    model = Bigram()
    where = rows["mask"].nonzero(as_tuple=True)
    sequence = where[0]
    mask = torch.ones(len(sequence), dtype=torch.bool)
    ids = rows["ids"][:, P:][where]
    logp, entropy = token_logp_and_entropy(model(rows["ids"][:, P - 1 : -1][where]), ids, chunk_tokens=5)
    batch = TokenBatch(
        ids,
        sequence,
        sequence // 3,
        sequence_token_counts(sequence, mask),
        mask,
        advantage=rows["advantage"][sequence],
        logp_prox=rows["prox"][where],
        logp_rollout=rows["rollout"][where],
        logp_ref=rows["ref"][where],
    )
    sizes = [len(batch) // micro_batches] * (micro_batches - 1)
    sizes.append(len(batch) - sum(sizes))
    counts = Denominators.of([batch], max_tokens=32)
    pieces = zip(batch.split(sizes), PolicyOutputs(logp, entropy).split(sizes), strict=True)
    loss = torch.stack([objective(piece, out, counts).loss for piece, out in pieces]).sum()
    return float(loss.detach()), gradient(loss, model)


NORMALISATIONS = [("grpo", "sequence"), ("bnpo", "token"), ("dapo", "token"), ("dr_grpo", "constant")]
# (TRL's options, ours); clipped and with the ratio against logp_prox throughout
TERMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"beta": 0.04}, {"kl_coefficient": 0.04, "kl_estimator": "k3", "kl_gradient": "direct"}),
    ({"beta": 0.04, "bias_correction": True}, {"kl_coefficient": 0.04, "kl_estimator": "k3"}),
    (
        {"use_vllm": True, "vllm_importance_sampling_correction": True, "cap": 1.2},
        {"rollout_weight_cap": 1.2},
    ),
    ({"_entropy_bonus_enabled": True, "entropy_coef": 0.02}, {"entropy_coefficient": 0.02}),
]


@pytest.mark.parametrize(("loss_type", "normalisation"), NORMALISATIONS)
@pytest.mark.parametrize("terms", TERMS, ids=["policy", "k3", "k3 weighted", "rollout weight", "entropy"])
@pytest.mark.parametrize("off_policy", [False, True])
def test_grpo(trl: SimpleNamespace, loss_type: str, normalisation: Any, terms: Any, off_policy: bool) -> None:
    rows = rollouts(5, off_policy=off_policy)
    want_loss, want_gradient = trl_grpo(trl, rows, loss_type=loss_type, **terms[0])
    objective = GRPO(clip_high=0.28, normalisation=normalisation, importance="prox", updates_per_step=2, **terms[1])
    for micro_batches in (1, 3):
        loss, found = our_grpo(objective, rows, micro_batches=micro_batches)
        assert loss == pytest.approx(want_loss, abs=TOLERANCE)
        torch.testing.assert_close(found, want_gradient, rtol=TOLERANCE, atol=TOLERANCE)
        assert found.norm() > 1e-3


def test_one_update_takes_the_policy_itself_as_the_start(trl: SimpleNamespace) -> None:
    rows = rollouts(8, off_policy=False)
    want_loss, want_gradient = trl_grpo(trl, rows, loss_type="dapo")
    loss, found = our_grpo(GRPO(importance="prox", normalisation="token"), rows)
    assert loss == pytest.approx(want_loss, abs=TOLERANCE)
    torch.testing.assert_close(found, want_gradient, rtol=TOLERANCE, atol=TOLERANCE)


def test_group_advantages_have_trl_s_epsilon_and_deviation() -> None:
    reward = torch.tensor([[1.0, 0.0, 0.5], [0.2, 0.9, 0.9]], dtype=F64)
    want = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
    found = grpo_advantages(reward.flatten().numpy(), [4, 4, 4, 0, 0, 0]).advantage
    torch.testing.assert_close(torch.tensor(found), want.flatten(), rtol=0, atol=1e-14)


def trl_sft(trl: SimpleNamespace, model: Bigram, ids: Tensor, labels: Tensor, num_items: int) -> Tensor:
    def fused(input_ids: Tensor, labels: Tensor, **_: Any) -> SimpleNamespace:
        logits, targets = model(input_ids)[:, :-1], labels[:, 1:]
        kept = targets != -100
        logp = trl.logp(logits, targets.clamp(min=0))
        return SimpleNamespace(
            log_probs=torch.where(kept, logp, 0.0),
            label_mask=kept,
            entropy=trl.entropy(logits),
            is_top1=kept,
        )

    stand_in = SimpleNamespace(
        model=model.train(),
        aux_loss_enabled=False,
        compute_loss_func=None,
        label_smoother=None,
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=True),
        accelerator=Accelerator(),
        get_tp_size=lambda: 1,
        _tp_size=1,
        _total_train_tokens=0,
        _metrics={"train": defaultdict(list)},
    )
    inputs = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    loss: Tensor = trl.sft(stand_in, fused, inputs, num_items_in_batch=torch.tensor(num_items))
    return loss


@pytest.mark.parametrize("linear", [False, True])
def test_sft_over_accumulated_micro_batches(trl: SimpleNamespace, linear: bool) -> None:
    random = torch.Generator().manual_seed(2)
    ids = torch.randint(V, (B, P + T), generator=random)
    lengths = torch.randint(1, T + 1, (B,), generator=random)
    keep = (torch.arange(P + T) >= P) & (torch.arange(P + T) < P + lengths[:, None])
    labels = ids.masked_fill(~keep, -100)
    theirs = Bigram()
    parts = [trl_sft(trl, theirs, ids[rows], labels[rows], int(keep.sum())) for rows in (slice(0, 1), slice(1, B))]
    want = torch.stack(parts).sum()

    ours = Bigram()
    where = keep.nonzero(as_tuple=True)
    before = (where[0], where[1] - 1)
    if linear:
        logp, _ = linear_token_logp(ours.hidden(ids)[before], ours.head.weight, ids[where], chunk_tokens=4)
    else:
        logp = token_logp(ours(ids)[before], ids[where], chunk_tokens=4)
    mask = torch.ones(len(where[0]), dtype=torch.bool)
    batch = TokenBatch(ids[where], where[0], where[0], sequence_token_counts(where[0], mask), mask)
    loss = SFT()(batch, PolicyOutputs(logp), Denominators.of([batch])).loss
    assert float(loss.detach()) == pytest.approx(float(want.detach()), abs=TOLERANCE)
    torch.testing.assert_close(gradient(loss, ours), gradient(want, theirs), rtol=TOLERANCE, atol=TOLERANCE)
