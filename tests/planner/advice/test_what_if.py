"""What would help most: changes of a fleet, and what they bring, on models small enough to reckon."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from benchmarks.simulated_plans import on_cores
from tests.planner.workloads import random_topology, random_workload

from farflung.planner.advice import changes
from farflung.planner.advice.what_if import changes_worth_a_try, what_if
from farflung.planner.assignment import Options
from farflung.planner.registry import SCHEDULERS, scheduler
from farflung.plans import Topology, WorkerSpec
from farflung.simulator import Conditions, simulate


def homes(mbps: float = 8.0, **line: float) -> Topology:
    """Two homes and a lab of two."""
    workers = (
        WorkerSpec("home-1", "home-1", 2.0, 8.0, **line),
        WorkerSpec("home-2", "home-2", 2.0, 8.0),
        WorkerSpec("gpu-1", "lab", 8.0, 8.0),
        WorkerSpec("gpu-2", "lab", 9.0, 8.0),
    )
    rates = [[mbps] * 4 for _ in workers]
    rates[2][3] = rates[3][2] = 1000.0
    latency = [[20.0 * (a != b) for b in range(4)] for a in range(4)]
    return Topology(workers, tuple(map(tuple, latency)), tuple(map(tuple, rates)))


@pytest.mark.parametrize(("mbps", "rate"), [(8, 20), (10, 20), (50, 100), (0.3, 1), (60_000, None)])
def test_a_line_is_the_next_that_one_can_order(mbps: float, rate: float | None) -> None:
    assert changes.next_line_mbps(mbps) == rate


def test_another_line_may_be_slower_and_moves_only_what_it_held_back() -> None:
    slow = homes()
    rates = [list(row) for row in slow.bandwidth_mbps]
    rates[0][1] = 2.0  # the path to the other home is slower than the line
    topology = Topology(slow.workers, slow.latency_ms, tuple(map(tuple, rates)))
    assert changes.line_mbps(topology, 0, "up") == 8.0
    faster = changes.with_line(topology, 0, 50.0, None)
    assert faster.bandwidth_mbps[0][1:] == (2.0, 50.0, 50.0)
    assert [row[0] for row in faster.bandwidth_mbps[1:]] == [8.0] * 3
    slower = changes.with_line(topology, 0, 1.0, 4.0)
    assert slower.bandwidth_mbps[0][1:] == (1.0, 1.0, 1.0)
    assert [row[0] for row in slower.bandwidth_mbps[1:]] == [4.0] * 3
    assert slower.bandwidth_mbps[1][2] == 8.0
    lab = changes.with_line(topology, 2, 1.0, None)  # the links inside the lab are not the line's
    assert lab.bandwidth_mbps[2] == (1.0, 1.0, 8.0, 1000.0)
    assert changes.own_line_mbps(homes(), 2, "up") is None  # the lab's line is not one worker's


def test_a_declared_line_holds_back_only_links_that_are_as_fast() -> None:
    topology = homes(up_mbps=8.0, down_mbps=100.0)
    assert changes.line_mbps(topology, 0, "down") == changes.own_line_mbps(topology, 0, "down") == 100.0
    faster = changes.with_line(topology, 0, 20.0, 200.0)
    assert (faster.workers[0].up_mbps, faster.workers[0].down_mbps) == (20.0, 200.0)
    assert faster.bandwidth_mbps[0][1:] == (20.0, 20.0, 20.0)
    assert [row[0] for row in faster.bandwidth_mbps[1:]] == [8.0] * 3  # by the others' lines
    assert [row[0] for row in changes.with_line(topology, 0, None, 4.0).bandwidth_mbps[1:]] == [4.0] * 3


def test_where_all_are_at_one_site_a_line_is_to_all_others() -> None:
    workers = tuple(WorkerSpec(id, "", 1.0, 1.0) for id in ("a", "b"))
    near = Topology(workers, ((0.0, 1.0), (1.0, 0.0)), ((0.0, 900.0), (0.0, 0.0)))
    assert changes.line_mbps(near, 0, "up") == 900.0
    slower = changes.with_line(near, 0, 8.0, 8.0).bandwidth_mbps
    assert slower == ((0.0, 8.0), (0.0, 0.0))  # where there is no link, a line makes none


def test_where_all_are_at_one_site_a_declared_line_is_to_none_of_them() -> None:
    workers = tuple(WorkerSpec(id, "", 1.0, 1.0, 20.0, 20.0) for id in ("a", "b"))
    near = Topology(workers, ((0.0, 1.0), (1.0, 0.0)), ((0.0, 900.0), (900.0, 0.0)))
    assert changes.line_mbps(near, 0, "up") == 20.0
    assert changes.with_line(near, 0, 40.0, 40.0).bandwidth_mbps == near.bandwidth_mbps


def test_a_twin_is_like_its_template_and_near_it() -> None:
    grown = changes.with_twin(homes(), 3)
    assert grown.ids[-1] not in homes().ids and grown.workers[-1].site == "lab"
    assert grown.bandwidth_mbps[4] == (8.0, 8.0, 1000.0, 1000.0, 0.0)
    assert grown.bandwidth_mbps[2][4] == grown.bandwidth_mbps[2][3]
    alone = changes.with_twin(homes(), 0)
    assert alone.bandwidth_mbps[0][4] == changes.NEIGHBOUR_MBPS
    assert alone.latency_ms[4][0] == changes.NEIGHBOUR_MS


def test_cores_are_for_all_of_a_machine_and_a_twin_has_its_own() -> None:
    shared = on_cores(homes(), 2)
    assert [worker.cores for worker in changes.with_cores(shared, [0, 1, 2, 3], 2).workers] == [4] * 4
    assert changes.with_twin(shared, 3).workers[-1].machine is None


def test_paths_devices_and_memory() -> None:
    wider = changes.with_path(homes(), "home-1", "lab", 2)
    assert wider.bandwidth_mbps[0][2] == wider.bandwidth_mbps[3][0] == 16.0
    assert wider.bandwidth_mbps[0][1] == 8.0 and wider.bandwidth_mbps[2][3] == 1000.0
    assert changes.with_path(homes(), "lab", "lab", 2).bandwidth_mbps[2][3] == 2000.0
    assert changes.with_device(homes(), 0, 2).workers[0].tflops == 4.0
    assert changes.with_memory(homes(), 0, 2).workers[0].memory_gb == 16.0


@pytest.mark.parametrize("seed", range(4))
def test_what_helps_is_told_the_best_first_and_is_true(seed: int) -> None:
    topology, workload = random_topology(seed, 4), random_workload(seed, 30)
    options = Options(budget=60, efficiency=1.0)
    equal = SCHEDULERS["equal-compute"]
    schedule = equal(topology, workload, options)
    loads = simulate(schedule.plan, topology, Conditions()).loads
    tried: list[str] = []
    found = what_if(topology, schedule, loads, equal, options, most=6, tell=tried.append)
    assert 0 < len(tried) <= 6 and len(set(tried)) == len(tried)
    assert {effect.words for effect in found} <= set(tried)
    assert [effect.change for effect in found] == sorted(effect.change for effect in found)
    tops = {c.words: c.topology for c in changes_worth_a_try(topology, schedule, loads, leaves_out=False)}
    for effect in found:
        after = equal(tops[effect.words], workload, replace(options, incumbent=schedule.assignment))
        assert effect.step_seconds == pytest.approx(after.step_seconds)
        assert effect.change == pytest.approx(after.step_seconds / schedule.step_seconds - 1)


def test_changes_that_need_no_plan_take_of_the_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, workload = random_topology(1, 4), random_workload(1, 30)
    schedule = SCHEDULERS["equal-compute"](topology, workload, Options(budget=12))
    loads = simulate(schedule.plan, topology, Conditions()).loads
    seconds = iter(range(1000))
    clock = SimpleNamespace(process_time=lambda: float(next(seconds)))
    monkeypatch.setattr("farflung.planner.advice.what_if.time", clock)
    monkeypatch.setattr("farflung.planner.advice.what_if.lower_bound_seconds", lambda *_: math.inf)
    tried: list[str] = []
    found = what_if(
        topology, schedule, loads, SCHEDULERS["equal-compute"], Options(), seconds=2.5, tell=tried.append
    )
    assert not found and len(tried) == 2


@pytest.mark.full
@pytest.mark.slow
def test_who_slows_the_rest_down_is_told_where_a_plan_must_have_everybody() -> None:
    slow = WorkerSpec("slow", "", tflops=1e-13, memory_gb=1.0)
    workers = tuple(WorkerSpec(f"w{n}", "", tflops=1e-11, memory_gb=1.0) for n in range(3))
    rows = tuple((100.0,) * 4 for _ in range(4))
    topology, workload = Topology((*workers, slow), rows, rows), random_workload(3, 8)
    for name, options in (("equal-compute", Options(budget=12)), ("auto", Options(budget=30, workers=4))):
        schedule = SCHEDULERS[name](topology, workload, options)
        loads = simulate(schedule.plan, topology).loads
        found = what_if(topology, schedule, loads, SCHEDULERS[name], options)
        assert "without slow" in {effect.words for effect in found}
        assert "without w0" not in {effect.words for effect in found}  # where the submitter is
    schedule = SCHEDULERS["auto"](topology, workload, Options(budget=12))
    tried: list[str] = []
    loads = simulate(schedule.plan, topology).loads
    what_if(topology, schedule, loads, SCHEDULERS["auto"], Options(budget=12), tell=tried.append)
    assert not any(words.startswith("without") for words in tried)


def test_every_scheduler_is_found_by_its_name() -> None:
    topology, workload = random_topology(1, 3, memory=1e9), random_workload(1, 20)
    for name in SCHEDULERS:
        found = scheduler(name)(topology, workload, Options(budget=30))
        assert found.scheduler == name and found.step_seconds > 0
