from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.plans import random_chain

from farflung.planner.objective import step_seconds
from farflung.simulator import simulate
from farflung.simulator.simulate import MOST_STEPS


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), shares_lines=st.booleans())
def test_the_closed_form_is_a_lower_bound(seed: int, shares_lines: bool) -> None:
    plan, places = random_chain(random.Random(seed), shares_lines)
    found = simulate(plan, places)
    is_settled = found.steps < MOST_STEPS  # steps that wait for the feeder may take turns for long
    assert step_seconds(plan, places) <= found.step_seconds * (1 + (1e-2 if is_settled else 5e-2))
    assert all(load.share <= 1 + 1e-9 for load in found.loads)
