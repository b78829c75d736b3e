"""The sampler against its exact distribution, and its independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from burnish.core.protocols import Sampling
from burnish.models.filters import filter_logits
from burnish.rollout.engine_sampling import draw_tokens


def _settings() -> list[Sampling]:
    return [
        Sampling(1),
        Sampling(1, temperature=0.6),
        Sampling(1, temperature=1.7),
        Sampling(1, top_k=7),
        Sampling(1, top_p=0.8),
        Sampling(1, temperature=0.8, top_k=30, top_p=0.9),
    ]


@pytest.mark.parametrize("sampling", _settings(), ids=str)
@pytest.mark.parametrize(("vocab", "draws"), [(11, 200_000), (600, 20_000)])
def test_draws_follow_the_distribution(sampling: Sampling, vocab: int, draws: int) -> None:
    torch.manual_seed(vocab)
    logits = 2.0 * torch.randn(1, vocab)
    expected = filter_logits(logits, sampling.temperature, sampling.top_k, sampling.top_p).double().softmax(-1)[0]
    seeds, positions = np.full(draws, 77, np.uint64), np.arange(draws)
    counts = torch.zeros(vocab)
    for start in range(0, draws, 20_000):
        rows = slice(start, start + 20_000)
        draw = draw_tokens(logits, sampling, seeds[rows], positions[rows], np.zeros(20_000, np.int64))
        counts += torch.bincount(draw.tokens, minlength=vocab)
        torch.testing.assert_close(draw.logp, expected[draw.tokens].log(), rtol=0, atol=1e-5)
        plain = logits.double().log_softmax(-1)[0, draw.tokens]
        torch.testing.assert_close(draw.logp_unfiltered, plain, rtol=0, atol=1e-5)
    assert counts[expected == 0].sum() == 0
    big = expected * draws >= 5  # the usual rule for the chi-square approximation
    observed = torch.cat([counts[big], counts[~big].sum()[None]])
    wanted = torch.cat([expected[big], expected[~big].sum()[None]]) * draws
    keep = wanted > 0
    statistic = float(((observed - wanted)[keep] ** 2 / wanted[keep]).sum())
    assert statistic < chi2.ppf(1 - 1e-6, int(keep.sum()) - 1)


def test_greedy_takes_the_best_and_says_so() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    draw = draw_tokens(logits, Sampling(1, temperature=0.0), np.zeros(2, np.uint64), np.zeros(2, np.int64))
    assert draw.tokens.tolist() == [1, 0]
    assert draw.logp.tolist() == [0.0, 0.0]
    torch.testing.assert_close(draw.logp_unfiltered, logits.double().log_softmax(-1)[[0, 1], [1, 0]], atol=1e-6, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 39), min_size=1, max_size=10, unique=True))
def test_a_row_draws_the_same_in_any_batch(seed: int, rows: list[int]) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(40, 300)).astype(np.float32)) * 3
    seeds, positions = rng.integers(0, 2**62, 40).astype(np.uint64), rng.integers(0, 99, 40)
    sampling = Sampling(1, temperature=0.9, top_p=0.95)
    whole = draw_tokens(logits, sampling, seeds, positions)
    part = draw_tokens(logits[rows], sampling, seeds[rows], positions[rows])
    assert part.tokens.tolist() == whole.tokens[rows].tolist()
    # Several draws from one row are the draws of as many equal rows, however the rows are cut.
    which = np.sort(rng.integers(0, 40, 60))
    seeds, positions = rng.integers(0, 2**62, 60).astype(np.uint64), rng.integers(0, 99, 60)
    shared = draw_tokens(logits, sampling, seeds, positions, which)
    apart = draw_tokens(logits[which], sampling, seeds, positions)
    assert shared.tokens.tolist() == apart.tokens.tolist()
    torch.testing.assert_close(shared.logp, apart.logp, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(0, 12), st.sampled_from([1.0, 0.95, 0.7, 0.3, 0.01]), st.integers(0, 999))
def test_filters_agree_with_transformers(temperature: float, top_k: int, top_p: float, seed: int) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(4, 50)).astype(np.float32)) * 2
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = filter_logits(logits, temperature, top_k, top_p)
    assert torch.equal(found.isfinite(), expected.isfinite())
    torch.testing.assert_close(found, expected)


def test_uniforms_at_the_edges_stay_inside_the_kept_set(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.full((2, 1000), float("-inf"))
    logits[:, [3, 700]] = torch.tensor([0.0, 0.0])
    for uniform, token in ((0.0, 3), (np.nextafter(1.0, 0.0), 700), (0.5 - 1e-12, 3)):
        monkeypatch.setattr("burnish.core.seeds.token_uniforms", lambda s, p, u=uniform: np.full(len(s), u))
        draw = draw_tokens(logits, Sampling(1), np.zeros(2, np.uint64), np.zeros(2, np.int64))
        assert draw.tokens.tolist() == [token, token]
