"""The stages of a recipe: what each kind of training takes.

Leaves out the loops (`train.sft`, `train.grpo`) and the formulas (`objectives`).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.core.config import Config, problem

Schedule = Literal["constant", "linear", "cosine"]
Weight = Annotated[float, Field(gt=0, le=10)]


class _Optimised(Config):
    """Keys of every stage that moves weights by AdamW."""

    lr: float = Field(gt=0, le=1)
    """Peak learning rate; 1e-6 to 1e-4 for all weights, ten times that for adapters."""
    schedule: Schedule = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to a tenth of the peak."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay a step, times the learning rate; 0 to 0.1."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it; 0.1 to 1."""


class SftStage(_Optimised):
    """Supervised fine-tuning on the right answers of the training tasks."""

    kind: Literal["sft"]
    """Supervised fine-tuning on the labelled training tasks."""
    epochs: int = Field(default=3, ge=1)
    """Most passes over the labelled tasks; 1 to 5."""
    rows_per_step: int = Field(default=16, ge=1)
    """Examples an optimiser step; 8 to 256."""
    replay_rows: int = Field(default=0, ge=0, le=48)
    """Everyday prompts whose answers by the stage's first policy are trained along, to keep its talk; 0 to 48."""
    warmup_frac: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps in which the learning rate rises from 0; 0 to 0.1."""
    evaluate_every_steps: int = Field(default=0, ge=0)
    """Steps between evaluations on the development set, the best of which is kept; 0 takes the last step."""
    patience: int = Field(default=2, ge=1)
    """Evaluations in a row without a better one that end the stage; 1 to 5."""

    def inert(self) -> dict[str, str]:
        return {"patience": "evaluate_every_steps=0 evaluates nothing"} if self.evaluate_every_steps == 0 else {}


class GrpoStage(_Optimised):
    """Reinforcement learning from verifiable rewards, with groups of replies to one prompt."""

    kind: Literal["grpo"]
    """Reinforcement learning with verifiable rewards."""
    steps: int = Field(ge=1)
    """Optimiser steps; 10 to 1000."""
    prompts_per_step: int = Field(ge=1)
    """Groups that a step trains on; 8 to 512."""
    group_size: int = Field(ge=2)
    """Replies to each prompt; 4 to 16. A group of one has no baseline."""
    max_prompt_draws: int | None = Field(default=None, ge=1)
    """Most prompts drawn a step to find groups of unequal scores; 2 x prompts_per_step, null is off."""
    partial_credit: dict[str, Weight] = Field(default={})
    """Named components of the verdict that add to the reward, by weight: {fields: 0.5}; 0.1 to 1, {} is none."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises from 0; 0 to 10."""
    normalisation: Literal["grpo", "dr_grpo", "dapo"] = "dr_grpo"
    """Advantage and denominator: grpo (deviation, sequences), dr_grpo (neither), dapo (deviation, tokens)."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimiser steps on each step's replies; 1 to 4."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - clip_low; 0.1 to 0.3."""
    clip_high: float = Field(default=0.28, gt=0)
    """The ratio is clipped above 1 + clip_high; 0.2 to 0.4."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the stage's first policy; 0 to 0.05."""
    replay_rows: int = Field(default=0, ge=0, le=48)
    """Everyday prompts on which the policy is held to the stage's first one, eight a step; 24 to 48, 0 is off."""
    replay_coefficient: float = Field(default=1.0, gt=0)
    """Weight of that divergence, KL(first policy || policy) per replayed token; 0.1 to 10."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence, with its unbiased gradient; k3 varies least."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; 0 to 0.01."""
    evaluate_every_steps: int = Field(default=0, ge=0)
    """Steps between evaluations on the development set, the best of which is kept; 0 takes the last step."""
    min_pass_at_k: float = Field(default=0.05, ge=0, le=1)
    """The stage is refused where fewer training prompts have a right reply in group_size; 0 never refuses."""

    def inert(self) -> dict[str, str]:
        idle: dict[str, str] = {}
        if self.kl_coefficient == 0:
            idle["kl_estimator"] = "kl_coefficient=0 leaves the divergence out of the loss"
        if self.replay_rows == 0:
            idle["replay_coefficient"] = "replay_rows=0 replays nothing"
        return idle

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup_steps > self.steps:
            raise problem(
                "warmup_steps",
                f"{{path}}={self.warmup_steps} is more than the stage's {self.steps} steps",
                f"set warmup_steps to at most {self.steps}",
            )
        if self.max_prompt_draws is not None and self.max_prompt_draws < self.prompts_per_step:
            raise problem(
                "max_prompt_draws",
                f"{{path}}={self.max_prompt_draws} is less than prompts_per_step={self.prompts_per_step}",
                f"set max_prompt_draws to {2 * self.prompts_per_step}, or remove it",
            )
        return self
