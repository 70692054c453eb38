from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.simulator.network import max_min

RATES = st.floats(0.1, 100)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[tuple[float, list[int]]]]:
    most = draw(st.lists(RATES, min_size=1, max_size=8))
    flows = st.lists(st.integers(0, len(most) - 1), min_size=1, unique=True)
    return most, draw(st.lists(st.tuples(RATES, flows), max_size=6))


@given(networks())
def test_a_flow_below_its_limit_has_the_largest_share_of_a_full_line(
    network: tuple[list[float], list[tuple[float, list[int]]]],
) -> None:
    most, lines = network
    rates = max_min(most, lines)
    full = [line for line in lines if sum(rates[flow] for flow in line[1]) >= line[0] * (1 - 1e-9)]
    for capacity, flows in lines:
        assert sum(rates[flow] for flow in flows) <= capacity * (1 + 1e-9)
    for flow, rate in enumerate(rates):
        assert 0 < rate <= most[flow]
        if rate < most[flow] * (1 - 1e-9):
            assert any(
                flow in flows and rate >= max(rates[other] for other in flows) * (1 - 1e-9)
                for _, flows in full
            )


def test_capacity_that_one_flow_cannot_use_goes_to_the_others() -> None:
    assert max_min([1.0, 10.0, 10.0], [(9.0, [0, 1, 2])]) == pytest.approx([1.0, 4.0, 4.0])
    assert max_min([10.0, 10.0, 10.0], [(6.0, [0, 1]), (4.0, [1, 2])]) == pytest.approx([4.0, 2.0, 2.0])
