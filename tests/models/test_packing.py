"""Packed rows with shared prefixes are the unpacked sequences: same log-probabilities, same gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.models.packing import WIDTH_MULTIPLE, common_prefix_tokens, count_tree_tokens, lay_out, plan_rows
from burnish.models.policy import Policy
from conftest import in_float64, tiny_model


def _sequences(seed: int = 0) -> list[np.ndarray]:
    """Three prompts with a common beginning, samples that agree for a while, one twice, one a prefix of another."""
    rng = np.random.default_rng(seed)
    system = rng.integers(3, 128, size=4)
    prompts = [np.concatenate([system, rng.integers(3, 128, size=n)]) for n in (17, 5, 21)]
    sequences = []
    for prompt, replies in zip(prompts, ((4, 9, 1), (3,), (6, 2)), strict=True):
        for n in replies:
            sequences.append(np.concatenate([prompt, rng.integers(3, 128, size=n)]).astype(np.int32))
    stem = sequences[1][:-4]
    sequences.append(np.concatenate([stem, rng.integers(3, 128, size=6)]).astype(np.int32))
    return [*sequences, stem, sequences[0].copy()]


def _logp_one_by_one(model: torch.nn.Module, sequences: list[np.ndarray]) -> list[torch.Tensor]:
    out = []
    for ids in sequences:
        x = torch.from_numpy(ids.astype(np.int64))[None]
        logp = model(x).logits[0, :-1].log_softmax(-1)
        out.append(logp.gather(-1, x[0, 1:, None])[:, 0])
    return out


def _logp_packed(policy: Policy, sequences: list[np.ndarray], row_tokens: int) -> list[torch.Tensor]:
    out: dict[int, torch.Tensor] = {}
    for packed in policy.pack(sequences, row_tokens=row_tokens, rows_at_once=2):
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
    sequences = _sequences()
    weights = [torch.linspace(0.5, 1.5, len(ids) - 1, dtype=torch.float64) for ids in sequences]

    def gradient(logp: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        sum((w * values).sum() for w, values in zip(weights, logp, strict=True)).backward()  # type: ignore[union-attr]
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    alone = _logp_one_by_one(model, sequences)
    grad_alone = gradient(alone)
    packed = _logp_packed(policy, sequences, row_tokens)
    grad_packed = gradient(packed)
    for a, b in zip(alone, packed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    norm = torch.sqrt(sum((g**2).sum() for g in grad_alone.values()))  # type: ignore[arg-type]
    # transformers' router takes its softmax in float32, whatever the model's dtype.
    bound = 1e-8 if family == "qwen3_moe" else 1e-10
    for name, g in grad_alone.items():
        assert (g - grad_packed[name]).norm() <= bound * norm, name


def _nodes(sequences: list[np.ndarray]) -> int:
    """Tokens of the prefix tree, counted the plain way: the number of different beginnings."""
    return len({tuple(ids[:n].tolist()) for ids in sequences for n in range(1, len(ids) + 1)})


def test_every_shared_beginning_is_computed_once() -> None:
    sequences = _sequences()
    rows = plan_rows(sequences, 400)
    packed = lay_out(sequences, rows)
    assert len(rows) == 1
    assert packed.num_tokens == count_tree_tokens(sequences, rows[0]) == _nodes(sequences)
    assert packed.num_tokens < sum(len(s) for s in sequences) / 2
    assert WIDTH_MULTIPLE < packed.num_tokens < packed.ids.shape[1] == 2 * WIDTH_MULTIPLE  # padded, for the shape


_LETTERS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(max_examples=100, deadline=None)
@given(st.lists(_LETTERS, min_size=1, max_size=12), st.integers(8, 64), st.booleans())
def test_every_token_has_its_place_and_sees_its_own_past(drawn: list[list[int]], row_tokens: int, share: bool) -> None:
    sequences = [np.array(ids, np.int32) for ids in drawn]
    rows = plan_rows(sequences, row_tokens, share=share)
    packed = lay_out(sequences, rows)
    assert sorted(packed.sources) == list(range(len(sequences)))
    flat_ids, width = packed.ids.flatten(), packed.ids.shape[1]
    for member, source in packed.sources.items():
        assert flat_ids[source].tolist() == sequences[member][:-1].tolist()
        assert packed.positions.flatten()[source].tolist() == list(range(len(sequences[member]) - 1))
        for depth, at in enumerate(source.tolist()):
            seen = packed.attend[at // width, 0, at % width].nonzero()[:, 0] + at // width * width
            assert seen.tolist() == sorted(source[: depth + 1].tolist())
    assert packed.attend.any(-1).all()
    for row in rows:
        assert count_tree_tokens(sequences, row) == _nodes([sequences[i] for i in row])
        assert count_tree_tokens(sequences, row) <= row_tokens or len(row) == 1
        assert share or len(row) == 1


def test_common_prefix() -> None:
    a = np.array([1, 2, 3, 4], np.int32)
    assert common_prefix_tokens(a, np.array([1, 2, 9], np.int32)) == 2
    assert common_prefix_tokens(a, a) == 4
    assert common_prefix_tokens(a, np.array([7], np.int32)) == 0
