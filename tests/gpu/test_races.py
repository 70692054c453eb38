"""Mistakes in what waits for what on a device are found: by the race detector, and by numbers that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu import failing, races
from tests.gpu.conftest import Ask

pytestmark = pytest.mark.slow
FAULTS = [
    (races.used_before_it_arrived, "", "copy_ on stream"),
    (races.used_before_it_arrived, "int8/int8", "is not ordered after"),
    (races.copied_before_it_was_computed, "", "copy_ on stream"),
    (races.copied_before_it_was_computed, "int8/int8", "is not ordered after"),
    (races.gradient_sent_before_it_was_computed, "", "copy_ on stream"),
    (races.pinned_memory_used_again_at_once, "", "copy_ on stream -1 is not ordered after"),
    (races.bytes_taken_before_the_copy, "", "copy_ on stream -1 is not ordered after"),
    (races.memory_not_marked, "", "is freed while"),
]
WRONG = {
    races.used_before_it_arrived,
    races.pinned_memory_used_again_at_once,
    races.bytes_taken_before_the_copy,
}
"""Computation runs at once on the accelerator that is not there, so the others cannot give wrong numbers."""


@pytest.mark.cases(4)
@pytest.mark.parametrize(("fault", "codec", "says"), FAULTS)
def test_a_mistake_is_found(fault: Callable[[], Any], codec: str, says: str, there: Ask) -> None:
    found = there(races.run, fault, "chain", codec)
    assert any(says in race for race in found.races)
    if fault in WRONG and not codec:
        assert found.differs


def test_two_workers_compute_and_copy_without_a_race(there: Ask) -> None:
    (row,), found = there(failing.races_of_two_workers)
    assert row["loss_difference"] == 0.0 and not found


@pytest.mark.parametrize("codec", ["", "bf16/bf16"])
def test_a_full_ring_changes_no_number(codec: str, there: Ask) -> None:
    found = there(races.run, races.no_pinned_memory, "chain", codec)
    assert not found.races and not found.differs
