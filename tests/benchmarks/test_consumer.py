from __future__ import annotations

import pytest
from benchmarks.consumer.alike import best, candidates
from benchmarks.consumer.chart import chart
from benchmarks.consumer.claim import Point, mixed_precision
from benchmarks.consumer.devices import H100_PCIE, RTX_3080
from benchmarks.consumer.fleet import HOMES, SERVER_CARDS, homes, server
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured
from tests.pictures.drawn import svg_text

from farflung.planner.codecs.policies import dense
from farflung.simulator import Conditions
from farflung.workload import workload_of


def test_the_two_fleets_have_equal_peaks() -> None:
    assert HOMES * RTX_3080.tflops == pytest.approx(SERVER_CARDS * H100_PCIE.tflops, rel=0.02)
    assert len(homes(100, 20).workers) == HOMES and len(server().workers) == SERVER_CARDS


def test_alike_devices_are_planned_as_replicas_where_lines_are_slow() -> None:
    workloads = [workload_of(captured(case("gpt"), 2)[1], 8, 2)]
    known = candidates(workloads, [homes(1, 1, 4), homes(1000, 1, 4)], 0.5)
    assert {one.replicas for one in known} == {1, 2, 4}
    assert all(sum(one.plan.shares or [8]) == 8 for one in known)
    assert all(len(one.plan.workers()) == 4 for one in known)
    slow = best(known, homes(1, 1, 4), dense, Conditions())
    fast = best(known, homes(1000, 1, 4), dense, Conditions())
    assert slow and fast and fast.simulation.step_seconds < slow.simulation.step_seconds


def test_mixed_precision_halves_what_is_kept_and_nothing_else() -> None:
    workload = workload_of(captured(case("gpt"), 2)[1], 8, 2)
    halved = mixed_precision(workload)
    assert halved.tape_bytes.sum() == workload.tape_bytes.sum() / 2
    assert halved.state_bytes.sum() == workload.state_bytes.sum() and halved.spans == workload.spans


def test_the_picture_is_well_formed() -> None:
    points = [Point("m", "int8", 20.0, rate, 1.0, 0.5, 1, 1, 1, False, "a line") for rate in (100.0, 1e5)]
    words = svg_text(chart("A & B", {"m": {"int8": points}}, 0.9))
    assert {"A & B", "int8", "m", "access line of each home, Gbit/s"} <= set(words)
