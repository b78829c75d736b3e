"""The local engine: stops, seeds, groups, admission, abort, faults."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.errors import ConfigError, RunError
from burnish.core.outcomes import StopReason
from burnish.core.protocols import Completion, GenerateRequest, RolloutEngine, Sampling
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import WeightUpdate
from conftest import tiny_model
from rollout_helpers import LetterTokenizer


def make_engine(family: str = "llama", **options: Any) -> LocalEngine:
    return LocalEngine(tiny_model(family), LetterTokenizer(), **options)


def prompt(seed: int, length: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(6, 128, size=length).astype(np.int32)


def run(engine: LocalEngine, *requests: GenerateRequest) -> list[list[Completion]]:
    async def one(request: GenerateRequest) -> list[Completion]:
        found = [c async for c in engine.generate(request)]
        return sorted(found, key=lambda c: c.index)

    async def main() -> list[list[Completion]]:
        return list(await asyncio.gather(*(one(r) for r in requests)))

    return asyncio.run(main())


def test_it_is_a_rollout_engine() -> None:
    engine = make_engine()
    assert isinstance(engine, RolloutEngine)
    assert engine.capabilities().dtype == "float32"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_greedy_is_transformers_greedy(family: str) -> None:
    engine = make_engine(family)
    model = tiny_model(family)
    for seed in range(4):
        ids = prompt(seed)
        (found,) = run(engine, GenerateRequest("a", ids, Sampling(20, temperature=0.0), (1,)))[0]
        expected = model.generate(
            torch.from_numpy(ids.astype(np.int64))[None],
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=[1, 5],
            pad_token_id=0,
        )[0, len(ids) :]
        assert found.ids.tolist() == expected.tolist()


def test_recorded_logp_is_the_models() -> None:
    engine, model = make_engine(), tiny_model()
    ids = prompt(1)
    sampling = Sampling(12, temperature=0.7, top_k=20)
    for completion in run(engine, GenerateRequest("a", ids, sampling, tuple(range(8))))[0]:
        full = torch.from_numpy(np.concatenate([ids, completion.ids]).astype(np.int64))[None]
        with torch.no_grad():
            logits = model(full).logits[0, len(ids) - 1 : -1]
        rows = torch.arange(len(completion.ids))
        plain = logits.log_softmax(-1)[rows, full[0, len(ids) :]]
        assert np.abs(plain.numpy() - completion.logp_unfiltered).max() < 2e-4
        scaled = logits / 0.7
        scaled = scaled.masked_fill(scaled < scaled.topk(20).values[:, -1:], float("-inf"))
        filtered = scaled.log_softmax(-1)[rows, full[0, len(ids) :]]
        assert np.abs(filtered.numpy() - completion.logp).max() < 2e-4


def test_every_stop_token_stops_and_none_leaks() -> None:
    engine = make_engine()
    seen = set()
    for completion in run(engine, GenerateRequest("a", prompt(2), Sampling(60, temperature=3.0), tuple(range(60))))[0]:
        if completion.stop_reason is StopReason.STOP_TOKEN:
            seen.add(int(completion.ids[-1]))
            assert not set(completion.ids[:-1].tolist()) & {1, 5}
            assert len(completion.text) == len(completion.ids) - 1
        else:
            assert completion.stop_reason is StopReason.MAX_TOKENS
            assert len(completion.ids) == 60
    assert seen == {1, 5}


def test_stop_strings_cut_the_text_and_keep_the_ids() -> None:
    engine = make_engine()
    sampling = Sampling(40, temperature=2.0, stop_strings=("e", "ab"))
    hits = 0
    for completion in run(engine, GenerateRequest("a", prompt(3), sampling, tuple(range(40))))[0]:
        assert "e" not in completion.text
        assert "ab" not in completion.text
        if completion.stop_reason is StopReason.STOP_STRING:
            hits += 1
            assert "e" in LetterTokenizer().decode_reply(completion.ids) or "ab" in LetterTokenizer().decode_reply(
                completion.ids
            )
    assert hits > 5


def test_a_seed_decides_whatever_else_is_in_flight() -> None:
    requests = [GenerateRequest(str(i), prompt(i, 5 + i), Sampling(15), (10 * i, 10 * i + 1)) for i in range(6)]
    together = run(make_engine(max_sequences=5), *requests)
    for request, completions in zip(requests, together, strict=True):
        alone = run(make_engine(), request)[0]
        assert [c.ids.tolist() for c in alone] == [c.ids.tolist() for c in completions]
    assert len({tuple(c.ids.tolist()) for group in together for c in group}) == 12


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_completions_that_agree_so_far_are_computed_once(family: str) -> None:
    """The histories computed are the distinct ones, and each completion is the one that it is alone."""
    engine = make_engine(family)
    histories = 0
    step = engine.decoder.step

    def counted(tokens: torch.Tensor) -> torch.Tensor:
        nonlocal histories
        histories += len(tokens)
        return step(tokens)

    engine.decoder.step = counted  # type: ignore[method-assign]
    sampling, seeds = Sampling(12, temperature=0.1), tuple(range(16))
    requests = [GenerateRequest(str(i), prompt(i, 5 + i), sampling, seeds) for i in range(3)]
    found = run(engine, *requests)
    distinct = {
        (group, tuple(c.ids[:n].tolist())) for group, cs in enumerate(found) for c in cs for n in range(1, len(c.ids))
    }
    assert histories == len(distinct) < 0.7 * sum(len(c.ids) for cs in found for c in cs)
    for request, completions in zip(requests, found, strict=True):
        for seed, together in zip(seeds[:5], completions, strict=False):
            (alone,) = run(make_engine(family), dataclasses.replace(request, seeds=(seed,)))[0]
            assert together.ids.tolist() == alone.ids.tolist()
            np.testing.assert_allclose(together.logp, alone.logp, rtol=0, atol=1e-4)


def test_context_end_is_said() -> None:
    engine = LocalEngine(tiny_model(max_position_embeddings=16), LetterTokenizer())
    found = run(engine, GenerateRequest("a", prompt(0, 12), Sampling(50, temperature=2.0), tuple(range(12))))[0]
    full = [c for c in found if c.stop_reason is StopReason.CONTEXT_FULL]
    assert full
    assert all(len(c.ids) == 4 for c in full)
    with pytest.raises(ConfigError, match="16"):
        run(engine, GenerateRequest("b", prompt(0, 16), Sampling(5), (1,)))


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest("x", np.zeros(0, np.int32), Sampling(4), (1,)),
        GenerateRequest("x", prompt(0), Sampling(0), (1,)),
        GenerateRequest("x", prompt(0), Sampling(4), ()),
        GenerateRequest("x", prompt(0), Sampling(4), (1,), grammar="root"),
        GenerateRequest("x", prompt(0), Sampling(4), (1,), adapter="a"),
        GenerateRequest("x", prompt(0), Sampling(4), (1,), images=("0" * 64,)),
        GenerateRequest("x", prompt(0), Sampling(4), tuple(range(65))),
    ],
)
def test_what_it_cannot_do_is_refused(request_: GenerateRequest) -> None:
    with pytest.raises(ConfigError) as caught:
        run(make_engine(), request_)
    assert caught.value.fix


def test_a_failing_decoder_reaches_every_caller() -> None:
    engine = make_engine()

    def broken(tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    engine.decoder.step = broken  # type: ignore[method-assign]
    requests = [GenerateRequest(str(i), prompt(i), Sampling(5), (i,)) for i in range(3)]

    async def main() -> list[Any]:
        async def one(request: GenerateRequest) -> list[Completion]:
            return [c async for c in engine.generate(request)]

        return await asyncio.gather(*(one(r) for r in requests), return_exceptions=True)

    found = asyncio.run(main())
    assert all(isinstance(error, RunError) and "out of memory" in error.what for error in found)


def test_abort_gives_back_what_there_is() -> None:
    engine = make_engine()

    async def main() -> list[Completion]:
        found = []
        request = GenerateRequest("long", prompt(0), Sampling(400), (1, 2))

        async def consume() -> None:
            async for completion in engine.generate(request):
                found.append(completion)

        task = asyncio.create_task(consume())
        for _ in range(4):
            await asyncio.sleep(0)
        await engine.abort("long")
        await task
        return found

    for completion in asyncio.run(main()):
        assert completion.stop_reason in (StopReason.ABORTED, StopReason.STOP_TOKEN)
        assert len(completion.ids) < 400


def test_weights_change_only_when_idle() -> None:
    engine = make_engine()
    other = tiny_model(seed=4)

    async def main() -> None:
        stream = engine.generate(GenerateRequest("a", prompt(0), Sampling(30, temperature=0.0), (1, 2, 3)))
        await anext(stream.__aiter__())
        if engine._active:
            with pytest.raises(RunError, match="in flight"):
                await engine.load_weights(WeightUpdate(other.state_dict(), 1))
        async for _ in stream:
            pass
        assert await engine.load_weights(WeightUpdate(other.state_dict(), 7)) == 7

    asyncio.run(main())
    (completion,) = run(engine, GenerateRequest("b", prompt(0), Sampling(3, temperature=0.0), (1,)))[0]
    assert completion.policy_version == 7
    expected = run(
        LocalEngine(other, LetterTokenizer()),
        GenerateRequest("b", prompt(0), Sampling(3, temperature=0.0), (1,)),
    )
    assert completion.ids.tolist() == expected[0][0].ids.tolist()


def test_scores_are_the_models() -> None:
    for family in ("llama", "gemma3_text"):
        engine, model = make_engine(family), tiny_model(family)
        ids = prompt(5, 40)
        (found,) = asyncio.run(engine.score([ids]))
        x = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.no_grad():
            logp = model(x).logits[0, :-1].log_softmax(-1).gather(-1, x[0, 1:, None])[:, 0]
        assert np.isnan(found[0])
        assert np.abs(found[1:] - logp.numpy()).max() < 2e-4
