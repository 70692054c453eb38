"""The submitter evaluates more microbatches than the fleet did only as far as a run's time allows it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.run.test_result_check import Home

from farflung.client.output.records import HomeLosses
from farflung.client.run import home_losses
from farflung.client.run.home_losses import losses_at_home
from farflung.transport.timeouts import Timeouts


class Evaluating:
    """What the machine evaluates of a model of which the fleet has evaluated one microbatch."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.counts: list[int] = []
        evaluation_of = home_losses.evaluation_of

        def counted(*given: Any) -> Any:
            evaluate = evaluation_of(*given)

            def count(batches: list[Any]) -> float:
                self.counts.append(len(batches))
                return evaluate(batches)

            return count

        monkeypatch.setattr(home_losses, "evaluation_of", counted)

    def losses(
        self, run_seconds: float, first_seconds: float = 0.0, lease: float = 10.0
    ) -> HomeLosses | None:
        home = self.home
        unit = home.claim.unit._replace(microbatches=1)
        training, state, timeouts = home.job.training(), home.state({}), Timeouts(lease)
        return losses_at_home(
            home.prepared, training, state, unit, run_seconds, timeouts, True, first_seconds
        )


@pytest.fixture(scope="module")
def home() -> Home:
    return Home()


@pytest.fixture
def evaluating(home: Home, monkeypatch: pytest.MonkeyPatch) -> Evaluating:
    return Evaluating(home, monkeypatch)


def test_a_long_run_has_time_for_all_of_the_validation_set(evaluating: Evaluating) -> None:
    found = evaluating.losses(1e6, first_seconds=1.0)
    assert found is not None and (found.microbatches, found.whole) == (8, 8)
    assert evaluating.counts == [1, 1, 8, 8]


def test_nothing_is_evaluated_where_one_microbatch_took_longer_than_all_may(evaluating: Evaluating) -> None:
    assert evaluating.losses(100.0, first_seconds=2.1) is None
    assert evaluating.losses(1e6, first_seconds=2.1, lease=0.1) is None  # the broker waits no longer
    assert evaluating.counts == []


def test_without_a_measured_microbatch_one_is_all_that_a_short_run_costs(evaluating: Evaluating) -> None:
    assert evaluating.losses(0.0) is None
    assert evaluating.counts == [1]
