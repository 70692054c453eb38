"""The live rows of a run are those that count."""

from __future__ import annotations

import msgspec
from tests.client.output.test_run_folder import row

from farflung.client.api.metrics import Metrics, Validation


def test_a_run_that_went_back_has_only_rows_that_count() -> None:
    metrics = Metrics()
    assert metrics.latest is None and repr(metrics) == "<Metrics: no step yet>"
    metrics.add_validation(0, 9.0)
    for step in (1, 2, 3):
        metrics.add(row(step))
        metrics.add_validation(step, 1.0)
    held = iter(metrics)
    again = msgspec.structs.replace(row(2), attempt=2)
    metrics.add(again)
    metrics.add_validation(2, 5.0)
    assert list(metrics) == [row(1), again] and metrics.latest is again and metrics[-1] is again
    assert metrics.validations == [Validation(0, 9.0), Validation(1, 1.0), Validation(2, 5.0)]
    assert [one.step for one in held] == [1, 2, 3]  # who reads it now sees it whole
    assert len(metrics) == 2 and metrics[:1] == [row(1)]
