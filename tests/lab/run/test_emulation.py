"""How much slower an emulated fleet runs; the arithmetic is checked by hand on two workers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import TopologyError
from farflung.lab.run.emulation import emulate, traffic_mbps
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology, WorkerSpec

MICROBATCHES = 4
PLAN = Plan(
    [Placement(0, ["a"], 10**11, 0, 1), Placement(1, ["b"], 2 * 10**11, 0, 1)],
    [Edge(0, FEEDER, 0, 1000, False), Edge(1, 0, 1, 500_000, True), Edge(2, FEEDER, 1, 250_000, False)],
    MICROBATCHES,
    MICROBATCHES,
)
BYTES = MICROBATCHES * (500_000 * 2 + 250_000)  # the first worker's inputs never leave its home


def topology(mbps: float, tflops: float = 2.0, **line: float) -> Topology:
    workers = tuple(WorkerSpec(id, id, tflops, 8.0, **line) for id in "ab")
    return Topology(workers, ((0.0, 5.0), (5.0, 0.0)), ((0.0, mbps), (mbps, 0.0)))


def test_the_busiest_device_determines_the_step_time() -> None:
    seconds = 3 * MICROBATCHES * 2e11 / (2.0e12 * 0.5)
    assert traffic_mbps(PLAN, topology(1e5), 0.5) == pytest.approx(BYTES * 8e-6 / seconds)


@pytest.mark.parametrize("line", [{}, {"up_mbps": 4.0}, {"down_mbps": 4.0}])
def test_the_busiest_link_or_access_line_determines_the_step_time(line: dict[str, float]) -> None:
    mbps = 1e5 if line else 4.0
    seconds = MICROBATCHES * 750_000 * 8e-6 / 4.0
    assert traffic_mbps(PLAN, topology(mbps, **line), 0.5) == pytest.approx(BYTES * 8e-6 / seconds)


@given(mbps=st.floats(1.0, 1e5), tflops=st.floats(1e-2, 1e4), limit=st.floats(1.0, 1e3))
def test_an_emulation_stays_within_the_limit_and_keeps_its_proportions(
    mbps: float, tflops: float, limit: float
) -> None:
    full = topology(mbps, tflops)
    lines, found = emulate(PLAN, full, 0.5, None, limit)
    devices = tuple(msgspec.structs.replace(w, tflops=found.tflops[w.id] / 0.5) for w in lines.workers)
    slowed = msgspec.structs.replace(lines, workers=devices)
    assert traffic_mbps(PLAN, slowed, 0.5) <= limit * (1 + 1e-9)
    assert found.divisor == 1 or traffic_mbps(PLAN, slowed, 0.5) == pytest.approx(limit)
    assert found.tflops["a"] / lines.link(0, 1).bandwidth_mbps == pytest.approx(tflops * 0.5 / mbps)
    assert lines.link(0, 1).latency_ms == 5.0


def test_a_divisor_that_leaves_too_much_traffic_is_refused() -> None:
    asked_mbps = traffic_mbps(PLAN, topology(100.0), 0.5)
    with pytest.raises(
        TopologyError, match=r"--scale 2 leaves .* in sum, and the lab carries only 1: use at least"
    ):
        emulate(PLAN, topology(100.0), 0.5, 2.0, limit_mbps=1.0)
    emulate(PLAN, topology(100.0), 0.5, 2.0, limit_mbps=asked_mbps / 2)


def test_a_given_divisor_is_used() -> None:
    lines, found = emulate(PLAN, topology(100.0), 0.5, 4.0)
    assert lines.link(0, 1).bandwidth_mbps == 25.0
    assert found.divisor == 4.0 and found.tflops == {"a": 0.25, "b": 0.25}
    assert "4 times slower" in found.line()
    with pytest.raises(TopologyError, match="times slower"):
        emulate(PLAN, topology(100.0), 0.5, 1e6 - 1)
