from __future__ import annotations

import math

import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured

from farflung.errors import PlanError
from farflung.planner.assignment import Assignment, Options
from farflung.planner.codecs.policies import adatopk, compressed, dense, uniform_topk
from farflung.planner.schedulers.opfence import opfence
from farflung.plans import Topology, WorkerSpec
from farflung.simulator import Conditions
from farflung.workload import Workload, workload_of


def workload() -> Workload:
    return workload_of(captured(case("gpt"), 2)[1], 4, 2)


def fleet(mbps: float) -> Topology:
    """Three devices for which the test's model is work, behind lines of `mbps`."""
    rows = tuple((mbps,) * 3 for _ in range(3))
    workers = tuple(WorkerSpec(f"w{n}", f"s{n}", 1e-6, 1.0) for n in range(3))
    return Topology(workers, tuple((1.0,) * 3 for _ in range(3)), rows)


def test_without_codecs_the_scheduler_answers_unchanged() -> None:
    own = opfence(fleet(10), workload(), Options())
    found = compressed(opfence, dense, fleet(10), workload(), Options(), Conditions())
    assert found.assignment == own.assignment and found.step_seconds == own.step_seconds


def test_codecs_shorten_a_step_that_waits_for_links() -> None:
    net, job = fleet(0.1), workload()
    seconds = [
        compressed(
            opfence, policy, net, job, Options(workers=3), Conditions(codec_speed=math.inf)
        ).step_seconds
        for policy in (dense, uniform_topk(30), adatopk(30))
    ]
    assert seconds[1] < seconds[0] and seconds[2] < seconds[0]


def test_more_speedups_and_an_incumbent_never_make_a_plan_slower() -> None:
    net, job, conditions = fleet(0.1), workload(), Conditions(codec_speed=math.inf)
    policy = uniform_topk(30)
    once = compressed(opfence, policy, net, job, Options(), conditions)
    more = compressed(opfence, policy, net, job, Options(), conditions, (1.0, 10.0, 1e9))
    assert more.step_seconds <= once.step_seconds
    middle = len(job) // 2
    known = Assignment((middle,), (("w0",), ("w1",)), 4, 4)
    alone = compressed(opfence, policy, net, job, Options(incumbent=known), conditions)
    assert alone.step_seconds <= once.step_seconds
    assert all(codec.codec.startswith("topk") for codec in more.plan.codecs)


def test_a_plan_that_may_do_without_codecs_has_none_that_make_its_step_longer() -> None:
    net, job = fleet(1000.0), workload()
    slow = Conditions(codec_speed=1e-5)  # so that a codec takes far longer than the link
    asked = (opfence, uniform_topk(30), net, job, Options(workers=3), slow)
    coded, free = compressed(*asked), compressed(*asked, may_be_dense=True)
    assert coded.plan.codecs and not free.plan.codecs
    assert free.step_seconds < coded.step_seconds
    useful = (*asked[:2], fleet(0.1), *asked[3:5], Conditions(codec_speed=math.inf))
    assert compressed(*useful, may_be_dense=True).plan.codecs


def test_a_schedulers_refusal_is_passed_on() -> None:
    net = fleet(10)
    small = tuple(replace_memory(worker) for worker in net.workers)
    with pytest.raises(PlanError, match="GB are missing"):
        compressed(
            opfence, dense, Topology(small, net.latency_ms, net.bandwidth_mbps), workload(), Options(),
            Conditions(), (1.0, 2.0),
        )  # fmt: skip


def replace_memory(worker: WorkerSpec) -> WorkerSpec:
    return WorkerSpec(worker.id, worker.site, worker.tflops, 1e-6)
