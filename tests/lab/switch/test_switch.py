import gc
import os
from collections.abc import Iterator

import pytest

from farflung.lab.switch import switch
from farflung.lab.switch.stats import Meter


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_a_refused_priority_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    stats = Meter(*switch.take_priority()).stats(())
    assert not stats.real_time
    assert stats.priority == "real-time priority was refused: Operation not permitted"


def test_lateness_voids_a_run_from_its_99th_percentile() -> None:
    meter = Meter(True, "")
    for _ in range(985):
        meter.late(0.001)
    assert not meter.stats(()).void
    for _ in range(15):
        meter.late(0.2)
    stats = meter.stats(())
    assert stats.void
    assert stats.late_p50_ms == pytest.approx(1.0, abs=0.03)
    assert stats.packets == 1000
    meter.reset()
    assert (meter.stats(()).packets, meter.stats(()).late_p99_ms) == (0, 0.0)
