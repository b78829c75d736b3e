"""Packed rows with shared prefixes are the unpacked sequences: same log-probabilities, same gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.models.packing import build_trees, lay_out, plan_rows
from burnish.models.policy import Policy
from conftest import in_float64, tiny_model


def _sequences(seed: int = 0) -> tuple[list[np.ndarray], list[int]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 128, size=n) for n in (7, 5, 11)]
    sequences, prefixes = [], []
    for prompt, replies in zip(prompts, ((4, 9, 1), (3,), (6, 2)), strict=True):
        for n in replies:
            sequences.append(np.concatenate([prompt, rng.integers(3, 128, size=n)]).astype(np.int32))
            prefixes.append(len(prompt))
    return sequences, prefixes


def _logp_one_by_one(model: torch.nn.Module, sequences: list[np.ndarray]) -> list[torch.Tensor]:
    out = []
    for ids in sequences:
        x = torch.from_numpy(ids.astype(np.int64))[None]
        logp = model(x).logits[0, :-1].log_softmax(-1)
        out.append(logp.gather(-1, x[0, 1:, None])[:, 0])
    return out


def _logp_packed(
    policy: Policy, sequences: list[np.ndarray], prefixes: list[int], row_tokens: int
) -> list[torch.Tensor]:
    out: dict[int, torch.Tensor] = {}
    for packed in policy.pack(sequences, prefixes, row_tokens=row_tokens, rows_at_once=2):
        hidden = policy.hidden(packed)
        for member, source in packed.sources.items():
            logp = policy.logits(hidden[source]).log_softmax(-1)
            targets = torch.from_numpy(sequences[member][1:].astype(np.int64))
            out[member] = logp.gather(-1, targets[:, None])[:, 0]
    return [out[i] for i in range(len(sequences))]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text"])
@pytest.mark.parametrize("row_tokens", [16, 40, 400])
def test_packing_changes_neither_logp_nor_gradient(family: str, row_tokens: int) -> None:
    model = in_float64(tiny_model(family))
    policy = Policy(model, Path())
    assert policy.can_share_prefixes == (family != "gemma3_text")
    sequences, prefixes = _sequences()
    weights = [torch.linspace(0.5, 1.5, len(ids) - 1, dtype=torch.float64) for ids in sequences]

    def gradient(logp: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        sum((w * values).sum() for w, values in zip(weights, logp, strict=True)).backward()  # type: ignore[union-attr]
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    alone = _logp_one_by_one(model, sequences)
    grad_alone = gradient(alone)
    packed = _logp_packed(policy, sequences, prefixes, row_tokens)
    grad_packed = gradient(packed)
    for a, b in zip(alone, packed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    norm = torch.sqrt(sum((g**2).sum() for g in grad_alone.values()))  # type: ignore[arg-type]
    # transformers' router takes its softmax in float32, whatever the model's dtype.
    bound = 1e-8 if family == "qwen3_moe" else 1e-10
    for name, g in grad_alone.items():
        assert (g - grad_packed[name]).norm() <= bound * norm, name


def test_a_shared_prefix_is_computed_once() -> None:
    sequences, prefixes = _sequences()
    trees = build_trees(sequences, prefixes, share=True)
    packed = lay_out(plan_rows(trees, 400))
    assert packed.num_tokens == sum(len(s) - p for s, p in zip(sequences, prefixes, strict=True)) + 7 + 5 + 11
    assert packed.num_tokens < sum(len(s) for s in sequences)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.integers(8, 64),
)
def test_every_token_has_exactly_one_place(groups: list[tuple[int, list[int]]], row_tokens: int) -> None:
    sequences, prefixes = [], []
    for index, (p, replies) in enumerate(groups):
        for n in replies:
            sequences.append(np.concatenate([np.full(p, index), np.arange(n) + 50]).astype(np.int32))
            prefixes.append(p)
    rows = plan_rows(build_trees(sequences, prefixes, share=True), row_tokens)
    packed = lay_out(rows)
    assert sorted(packed.sources) == list(range(len(sequences)))
    flat_ids, flat_positions = packed.ids.flatten(), packed.positions.flatten()
    for member, source in packed.sources.items():
        assert flat_ids[source].tolist() == sequences[member][:-1].tolist()
        assert flat_positions[source].tolist() == list(range(len(sequences[member]) - 1))
    for row in rows:
        total = sum(tree.num_tokens for tree in row)
        assert total <= row_tokens or len(row) == 1
