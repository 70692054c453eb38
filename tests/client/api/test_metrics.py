"""The live rows of a run are those that count."""

from __future__ import annotations

import threading

import msgspec
import pytest
from tests.client.output.test_run_folder import row

from farflung.client.api.metrics import Metrics, Validation
from farflung.client.output.records import StepRow


def test_a_run_that_went_back_has_only_rows_that_count() -> None:
    metrics = Metrics()
    assert metrics.latest is None and repr(metrics) == "<Metrics: no step yet>"
    metrics.add_validation(0, 9.0)
    for step in (1, 2, 3):
        metrics.add(row(step))
        metrics.add_validation(step, 1.0)
    again = msgspec.structs.replace(row(2), attempt=2)
    metrics.add(again)
    metrics.add_validation(2, 5.0)
    assert metrics.rows == [row(1), again] and metrics.latest is again
    assert metrics.validations == [Validation(0, 9.0), Validation(1, 1.0), Validation(2, 5.0)]
    assert repr(metrics) == "<Metrics: 2 rows, the newest of step 2, loss 1.5000>"


def test_a_loop_over_metrics_waits_for_rows_until_the_run_is_over() -> None:
    metrics = Metrics()
    seen: list[StepRow] = []
    has_seen = threading.Semaphore(0)

    def loop() -> None:
        for one in metrics:
            seen.append(one)
            has_seen.release()

    looping = threading.Thread(target=loop, daemon=True)
    looping.start()
    for step in (1, 2, 3):
        metrics.add(row(step))
        assert has_seen.acquire(timeout=30)
    assert looping.is_alive()
    for step in (2, 3, 4):  # two of them are done again
        metrics.add(row(step))
    metrics.end()
    looping.join(30)
    assert not looping.is_alive() and [one.step for one in seen] == [1, 2, 3, 4]
    assert [one.step for one in metrics] == [1, 2, 3, 4]  # it is over: nothing to wait for


def test_a_row_is_read_by_name_or_as_a_dict() -> None:
    one = row(7)
    assert (one["loss"], one["step"]) == (one.loss, 7) and dict(one) == msgspec.structs.asdict(one)
    for name in ("lost", "keys"):
        with pytest.raises(KeyError, match=name):
            one[name]
