from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.transport.link.ranges import ByteRanges

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=30)


@given(RANGES)
def test_new_ranges_are_added_and_overlapping_ones_refused(ranges: list[tuple[int, int]]) -> None:
    coverage, model = ByteRanges(), set[int]()
    for start, size in ranges:
        new = set(range(start, start + size))
        assert coverage.add(start, size) == model.isdisjoint(new)
        if model.isdisjoint(new):
            model |= new
        assert coverage.count == len(model)
        assert coverage.contiguous == next(byte for byte in range(100) if byte not in model)
        assert coverage.ranges == sum(byte - 1 not in model for byte in model)


@given(st.permutations(range(20)))
def test_pieces_in_any_order_become_one(order: list[int]) -> None:
    coverage = ByteRanges()
    assert all(coverage.add(7 * piece, 7) for piece in order)
    assert (coverage.count, coverage.contiguous, coverage.ranges) == (140, 140, 1)
