"""Decoders against transformers' own full forward pass: every path to a logit gives the same logit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from burnish.core.errors import ModelError
from burnish.models.decoder import TransformersDecoder, make_decoder
from burnish.models.decoder_fast import FastDecoder
from burnish.models.digest import weights_digest
from conftest import tiny_model

FAST = ["llama", "qwen2", "qwen3"]
SLOW = ["gemma3_text", "qwen3_moe"]


def _full_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].float()


def _prompts(seed: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, 128, size=20)
    tails = [rng.integers(3, 128, size=n) for n in (5, 9, 1)]
    return [np.concatenate([shared, t]).astype(np.int32) for t in tails] + [
        rng.integers(3, 128, size=13).astype(np.int32)
    ]


@pytest.mark.parametrize("family", FAST + SLOW)
def test_prefill_and_steps_agree_with_the_full_forward(family: str) -> None:
    model = tiny_model(family)
    decoder = make_decoder(model, dtype=torch.float32)
    assert isinstance(decoder, FastDecoder if family in FAST else TransformersDecoder)
    prompts = _prompts()
    sequences = [p.tolist() for p in prompts]
    logits = decoder.admit(prompts, [30] * 4)
    decoder.fork([3, 0, 3])  # three histories part at once, two of them from one
    sequences += [list(sequences[i]) for i in (3, 0, 3)]
    logits = torch.cat([logits, logits[[3, 0, 3]]])
    rng = np.random.default_rng(0)
    for _ in range(25):
        for row, ids in enumerate(sequences):
            torch.testing.assert_close(logits[row], _full_logits(model, ids), rtol=0, atol=3e-4)
        tokens = rng.integers(3, 128, size=len(sequences))
        for ids, token in zip(sequences, tokens, strict=True):
            ids.append(int(token))
        logits = decoder.step(torch.from_numpy(tokens))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_released_slots_leave_the_others_untouched(family: str) -> None:
    model = tiny_model(family)
    decoder = make_decoder(model, dtype=torch.float32)
    prompts = _prompts()
    decoder.admit(prompts, [30] * 4)
    sequences = [p.tolist() for p in prompts]
    for gone in ([1], [0, 2]):
        order = decoder.release(gone)
        sequences = [sequences[slot] for slot in order]
        tokens = torch.arange(5, 5 + len(sequences))
        logits = decoder.step(tokens)
        for row, ids in enumerate(sequences):
            ids.append(5 + row)
            torch.testing.assert_close(logits[row], _full_logits(model, ids), rtol=0, atol=3e-4)
    assert decoder.num_active == 1


def test_admission_while_others_are_in_flight() -> None:
    model = tiny_model("llama")
    decoder = FastDecoder(model, dtype=torch.float32)
    prompts = _prompts()
    decoder.admit(prompts[:1], [4])
    decoder.step(torch.tensor([9]))
    late = decoder.admit(prompts[1:2], [400])  # grows the cache under the active slot
    torch.testing.assert_close(late[0], _full_logits(model, prompts[1].tolist()), rtol=0, atol=3e-4)
    decoder.fork([1])
    logits = decoder.step(torch.tensor([11, 12, 13]))
    torch.testing.assert_close(logits[0], _full_logits(model, [*prompts[0].tolist(), 9, 11]), rtol=0, atol=3e-4)
    torch.testing.assert_close(logits[2], _full_logits(model, [*prompts[1].tolist(), 13]), rtol=0, atol=3e-4)


def test_shared_prefixes_and_groups_are_computed_once() -> None:
    model = tiny_model("llama")
    decoder = FastDecoder(model, dtype=torch.float32)
    prompts = _prompts()
    decoder.admit(prompts, [4] * 4)
    assert decoder.num_computed_tokens == 20 + (5 + 9 + 1) + 13
    decoder.release(range(4))
    decoder.admit(prompts[:3], [4] * 3)  # the prefix is still known
    assert decoder.num_computed_tokens == 48 + 15


@pytest.mark.parametrize("family", FAST)
def test_a_long_shared_beginning_is_held_once(family: str) -> None:
    """Two worked-example prompts and one task without: slots part, end and join, and all agree with the model."""
    model = tiny_model(family)
    decoder = FastDecoder(model, dtype=torch.float32)
    rng = np.random.default_rng(4)
    long = [rng.integers(3, 128, size=n) for n in (140, 170)]
    tails = [(0, 5), (1, 9), (0, 1), (1, 3), (0, 12)]
    prompts = [np.concatenate([long[i], rng.integers(3, 128, size=n)]).astype(np.int32) for i, n in tails]
    prompts.insert(2, rng.integers(3, 128, size=11).astype(np.int32))
    logits = decoder.admit(prompts, [30] * 6)
    assert decoder.num_computed_tokens == 140 + 170 + 30 + 11
    assert decoder._keys[0].shape[2] < 140 + 170  # positions are those of the slots' own tokens
    sequences = [p.tolist() for p in prompts]

    def check() -> None:
        for row, ids in enumerate(sequences):
            torch.testing.assert_close(logits[row], _full_logits(model, ids), rtol=0, atol=3e-4)

    check()
    for turn in range(6):
        if turn == 1:
            decoder.fork([0, 2, 1])
            sequences += [list(sequences[i]) for i in (0, 2, 1)]
        if turn == 3:
            sequences = [sequences[slot] for slot in decoder.release([0, 3, 7])]
        if turn == 4:  # the beginning is still known, while others hold it
            computed = decoder.num_computed_tokens
            late = np.concatenate([long[1], [7, 8]]).astype(np.int32)
            logits = decoder.admit([late], [30])
            assert decoder.num_computed_tokens == computed + 2
            torch.testing.assert_close(logits[0], _full_logits(model, late.tolist()), rtol=0, atol=3e-4)
            sequences.append(late.tolist())
        tokens = rng.integers(3, 128, size=len(sequences))
        for ids, token in zip(sequences, tokens, strict=True):
            ids.append(int(token))
        logits = decoder.step(torch.from_numpy(tokens))
        check()


def test_new_weights_forget_old_prefixes() -> None:
    model, other = tiny_model("llama"), tiny_model("llama", seed=9)
    decoder = FastDecoder(model, dtype=torch.float32)
    prompts = _prompts()
    decoder.admit(prompts, [4] * 4)
    decoder.load(other.state_dict())
    logits = decoder.admit(prompts, [4] * 4)
    torch.testing.assert_close(logits[0], _full_logits(other, prompts[0].tolist()), rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", FAST + SLOW)
@pytest.mark.parametrize("tied", [True, False])
def test_the_tensors_a_decoder_reads_are_the_models(family: str, tied: bool) -> None:
    model = tiny_model(family, tie_word_embeddings=tied)
    expected = dict(model.state_dict())
    if tied:
        expected.pop("lm_head.weight")
    found = {name: t for name, t in make_decoder(model, dtype=torch.float32).tensors().items() if name in expected}
    assert weights_digest(found) == weights_digest(expected)


def test_one_changed_bit_changes_the_digest() -> None:
    state = {k: v.clone() for k, v in tiny_model().state_dict().items()}
    before = weights_digest(state)
    state["model.layers.1.mlp.up_proj.weight"].view(torch.int32)[3, 5] ^= 1
    assert weights_digest(state) != before
    assert weights_digest({**state, "extra": torch.zeros(1)}) != weights_digest(state)


def test_no_fast_decoder_for_other_architectures() -> None:
    with pytest.raises(ModelError, match="gemma3_text"):
        FastDecoder(tiny_model("gemma3_text"), dtype=torch.float32)
