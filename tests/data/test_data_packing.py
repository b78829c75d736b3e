from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.core.errors import DataError
from burnish.data import pack

lengths_and_capacity = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=60), st.just(capacity))
)


@given(lengths_and_capacity)
def test_each_sequence_once_no_bin_overfull_and_near_the_fewest(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    bins = pack(lengths, capacity)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in members) <= capacity for members in bins)
    fewest = math.ceil(sum(lengths) / capacity)
    assert len(bins) <= max(1, 2 * fewest - 1) or not lengths  # any two bins hold more than one capacity
    assert bins == pack(lengths, capacity)


def test_order_and_fullest_bin_first() -> None:
    assert pack([3, 7, 5, 5, 2], 10) == [[0, 1], [2, 3], [4]]
    assert pack([6, 5, 4], 10) == [[0, 2], [1]]
    assert pack([], 10) == []


@pytest.mark.parametrize("length", [0, 11])
def test_a_sequence_that_fits_no_bin_is_refused(length: int) -> None:
    with pytest.raises(DataError, match=f"sequence 1 has {length} tokens"):
        pack([1, length], 10)
