from __future__ import annotations

import math

import pytest

from burnish.core.errors import NonFiniteError, RunError
from burnish.observe.metrics import METRICS, check_ranges, metric_of, require_declared


def test_every_metric_has_a_meaning_and_an_ordered_range() -> None:
    for name, metric in METRICS.items():
        assert name == metric.name
        assert metric.meaning
        assert "/" not in name
        if metric.low is not None and metric.high is not None:
            assert metric.low < metric.high


def test_names_carry_the_unit_they_declare() -> None:
    for name, metric in METRICS.items():
        for suffix, unit in (("_s", "s"), ("_bytes", "bytes"), ("_frac", "fraction")):
            if name.endswith(suffix) and name != "tokens_per_s":
                assert metric.unit == unit, name


def test_the_range_is_inclusive() -> None:
    metric = metric_of("truncated_frac")
    assert metric.high is not None
    assert metric.healthy(metric.high)
    assert not metric.healthy(math.nextafter(metric.high, 1.0))


def test_a_label_belongs_to_its_metric() -> None:
    assert metric_of("dev_pass_rate/tool_call") is METRICS["dev_pass_rate"]


@pytest.mark.parametrize("name", ["rewrad_mean", "rewrad_mean/tool_call", ""])
def test_an_undeclared_metric_is_refused(name: str) -> None:
    with pytest.raises(RunError, match="not declared"):
        require_declared({name: 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_is_refused_by_name(value: float) -> None:
    with pytest.raises(NonFiniteError, match="grad_norm"):
        require_declared({"loss": 1.0, "grad_norm": value}, where="sft, step 3")


def test_findings_name_value_range_and_meaning() -> None:
    findings = check_ranges({"truncated_frac": 0.42, "reward_mean": 0.5, "grad_norm": 0.0, "ratio_mean": 1.0})
    assert len(findings) == 2
    assert "0.42" in findings[0]
    assert "at most" not in findings[0]
    assert "0 to 0.1" in findings[0]
    assert "cut by the token limit" in findings[0]
    assert findings[1].startswith("grad_norm is 0")
