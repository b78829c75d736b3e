"""Objectives by name, and the conformance suite's own teeth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from burnish.core.errors import ConfigError
from burnish.core.protocols import Objective
from burnish.objectives.batch import Denominators, ObjectiveOutput, PolicyOutputs, Term, TokenBatch
from burnish.objectives.conformance import conformance_problems, require_conformance
from burnish.objectives.grpo import GRPO
from burnish.objectives.registry import OBJECTIVES, make_objective
from burnish.objectives.sft import SFT


def test_by_name_and_by_class() -> None:
    assert make_objective("sft") == SFT()
    assert make_objective("grpo", clip_high=0.28) == GRPO(clip_high=0.28)
    assert make_objective("burnish.objectives.sft:SFT") == SFT()
    for factory in OBJECTIVES.values():
        assert isinstance(factory(), Objective)


@pytest.mark.parametrize(
    ("name", "config", "match"),
    [
        ("grpp", {}, "unknown objective 'grpp'"),
        ("no.such.module:Thing", {}, "cannot be imported"),
        ("burnish.objectives.sft:Thing", {}, "cannot be imported"),
        ("grpo", {"clip": 0.2}, "cannot be built"),
        ("collections:Counter", {}, "no objective"),
    ],
)
def test_bad_names_say_what_to_do(name: str, config: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        make_objective(name, **config)
    assert caught.value.fix
    if name == "grpp":
        assert caught.value.fix == "set it to grpo"


@dataclass
class Faulty:
    """An objective with one fault of the kind that is seen in the wild."""

    fault: str

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, batch: TokenBatch, outputs: PolicyOutputs, denominators: Denominators) -> ObjectiveOutput:
        nll, mask = -outputs.logp, batch.mask
        if self.fault == "multiplies the mask":
            loss = (nll * mask).sum() / max(denominators.tokens, 1)
        elif self.fault == "mean of the micro-batch":
            loss = nll[mask].sum() / max(int(mask.sum()), 1)
        elif self.fault == "0 / 0":
            loss = nll[mask].sum() / torch.tensor(float(denominators.tokens))
        elif self.fault == "trains one sequence only":
            loss = nll[mask & (batch.sequence == 0)].sum() / max(denominators.tokens, 1)
        else:
            loss = nll[mask].sum() / max(denominators.tokens, 1)
        value = float(loss.detach()) * (0.5 if self.fault == "hides half of a term" else 1.0)
        return ObjectiveOutput(loss, {"nll": Term(value, 1.0, "tokens", denominators.tokens)}, {})


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("multiplies the mask", "masked tokens have no effect"),
        ("mean of the micro-batch", "split anywhere"),
        ("0 / 0", "all-masked step"),
        ("trains one sequence only", "every trained token"),
        ("hides half of a term", "sum of its terms"),
    ],
)
def test_the_suite_finds_each_fault(fault: str, promise: str) -> None:
    problems = conformance_problems(Faulty(fault))
    assert len(problems) == 1
    assert promise in problems[0]
    with pytest.raises(ConfigError, match=promise):
        require_conformance(Faulty(fault))
    assert conformance_problems(replace(Faulty(fault), fault="none")) == []
