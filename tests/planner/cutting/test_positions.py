"""Tables of positions are kept, but not without end."""

from __future__ import annotations

import numpy as np
import pytest
from tests.planner.workloads import random_workload

from farflung.planner.cutting import positions
from farflung.planner.cutting.positions import Positions


def test_of_a_large_model_only_one_windows_tables_are_kept_and_those_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(positions, "_MOST_KEPT", 1)
    table = Positions.of(random_workload(3, 12))
    asked = [(window, again) for window in (4, 2, 4) for again in (False, True)]
    for window, again in asked:
        first = table.need(window, again)
        other = table.need(window, not again)
        assert table.need(window, again) is first and table.need(window, not again) is other
        fresh = Positions.of(random_workload(3, 12))
        assert np.array_equal(first, fresh.need(window, again))
        assert {key[0] for key in table._memory_tables} == {key[0] for key in table._need} == {window}
