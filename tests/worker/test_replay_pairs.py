"""Two workers that are lost at once are replaced by two that run past units again: if they are neighbours,
together. Real compute threads in one process.
"""

from __future__ import annotations

import pytest
from tests.worker.replaying_fleet import STEPS, eventually, fleet, one_pass_at_a_time

from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer

__all__ = ["one_pass_at_a_time"]  # used by each test
ADJACENT = {"worker-1": "worker-8", "worker-2": "worker-9"}
APART = {"worker-0": "worker-8", "worker-2": "worker-9"}


CASES = [
    ("gpt-dropout", AdamW(0.01), "", ADJACENT),
    ("batch-norm", SGD(0.1, momentum=0.9), "", ADJACENT),
    ("gpt", AdamW(0.01), "axes3/axes10-dithered", ADJACENT),
    ("gpt", AdamW(0.01), "int8", APART),
    pytest.param("gpt", AdamW(0.01), "int8", ADJACENT, marks=pytest.mark.full),
    pytest.param("gpt-dropout", AdamW(0.01), "", APART, marks=pytest.mark.full),
    pytest.param("gpt", SGD(0.1), "row-topk30-int4/masked30-int4", ADJACENT, marks=pytest.mark.full),
    pytest.param("batch-norm", SGD(0.1, momentum=0.9), "", APART, marks=pytest.mark.full),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "optimizer", "codec", "spares"), CASES)
def test_two_shares_that_run_past_units_again_have_the_bits_of_the_lost_ones(
    name: str, optimizer: Optimizer, codec: str, spares: dict[str, str]
) -> None:
    with (
        fleet(name, optimizer, codec, size=4) as undisturbed,
        fleet(name, optimizer, codec, size=4) as disturbed,
    ):
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(5):
            disturbed.run(unit)
            if unit == 1:
                copies = disturbed.copy(unit, *spares)
        disturbed.lose(copies, 5, spares)
        for unit in (5, 6):
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


@pytest.mark.full
def test_neighbours_pass_over_evaluations_each_at_its_time() -> None:
    arguments = ("gpt-dropout", AdamW(0.01), "int8", True)
    with fleet(*arguments, size=4) as undisturbed, fleet(*arguments, size=4) as disturbed:
        units = range(len(undisturbed.units))
        for unit in units:
            undisturbed.run(unit)
        for unit in units[:9]:
            disturbed.run(unit)
            if unit == 1:
                copies = disturbed.copy(unit, *ADJACENT)
        assert sum(not undisturbed.units[unit].train for unit in range(2, 9)) > 1
        disturbed.lose(copies, 9, ADJACENT)
        for unit in units[9:]:
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()


@pytest.mark.full
def test_one_that_is_lost_while_they_run_again_is_replaced_and_the_other_begins_again() -> None:
    with (
        fleet("gpt", AdamW(0.01), "axes3/axes10-dithered", size=4) as undisturbed,
        fleet("gpt", AdamW(0.01), "axes3/axes10-dithered", size=4) as disturbed,
    ):
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(5):
            disturbed.run(unit)
            if unit == 1:
                copies = disturbed.copy(unit, *ADJACENT)
        disturbed.take_over(copies, 5, ADJACENT)
        eventually(lambda: disturbed.members["worker-8"].replayed() > 0)
        disturbed.take_over(copies, 5, {"worker-8": "worker-7", "worker-9": "worker-9"})
        disturbed.finish_replay()
        for unit in (5, 6):
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert disturbed.state() == undisturbed.state()
