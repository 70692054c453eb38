from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.planner.schedulers.evolutionary.grid import bottleneck, pairs


@settings(max_examples=100)
@given(size=st.integers(1, 5), data=st.data())
def test_assignments_are_optimal(size: int, data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    costs = data.draw(st.lists(row, min_size=size, max_size=size))
    value, partners = pairs(costs)
    assert sorted(partners) == list(range(size))
    assert value == max(costs[left][right] for left, right in enumerate(partners))
    everything = itertools.permutations(range(size))
    assert value == min(max(costs[left][right] for left, right in enumerate(order)) for order in everything)


@settings(max_examples=100)
@given(supply=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_transports_are_assignments_of_what_is_carried(supply: list[int], data: st.DataObject) -> None:
    total = sum(supply)
    ends = sorted(data.draw(st.sets(st.integers(1, total - 1), max_size=2)) if total > 1 else [])
    demand = [end - start for start, end in zip([0, *ends], [*ends, total], strict=True)]
    row = st.lists(st.integers(0, 9), min_size=len(demand), max_size=len(demand))
    costs = data.draw(st.lists(row, min_size=len(supply), max_size=len(supply)))
    value, flow = bottleneck(costs, supply, demand)
    assert [sum(sent) for sent in flow] == supply
    assert [sum(sent) for sent in zip(*flow, strict=True)] == demand
    assert value == max(
        cost for sent, row in zip(flow, costs, strict=True) for n, cost in zip(sent, row, strict=True) if n
    )
    left = [number for number, amount in enumerate(supply) for _ in range(amount)]
    right = [number for number, amount in enumerate(demand) for _ in range(amount)]
    assert value == pairs([[costs[one][other] for other in right] for one in left])[0]
