from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.codecs.chains import chain, topology
from tests.planner.codecs.test_compressed import fleet, workload

from farflung.errors import PlanError
from farflung.planner.assignment import Options
from farflung.planner.codecs.wishes import require_known, scheduler_for, unplanned
from farflung.planner.schedulers.opfence import opfence
from farflung.plans import CodecWishes, LinkWish
from farflung.simulator import Conditions


def test_without_a_topology_auto_starts_dense_and_topk_treats_links_alike() -> None:
    plan = chain(["a", "b", "c"])
    assert unplanned(plan, CodecWishes("auto")) == ()
    for text in ("uniform:30", "adatopk:10"):
        codecs = unplanned(plan, CodecWishes(text))
        assert {codec.codec for codec in codecs} == {"topk3.33-bf16"}, text
        assert len(codecs) == 4
    links = (LinkWish("a", "b", "int8"),)
    assert [codec.codec for codec in unplanned(plan, CodecWishes(links=links))] == ["int8"]


@pytest.mark.parametrize("text", ["auto", "auto:int8", "adatopk:30", "uniform:30", "int8/int4-stochastic"])
def test_a_scheduler_plans_with_the_codecs_of_the_policy(text: str) -> None:
    wishes = CodecWishes(text, max_loss_gap=0.02)
    net, options, conditions = fleet(0.1), Options(workers=3), Conditions()
    found = scheduler_for(wishes, opfence, conditions)(net, workload(), options)
    assert found.plan.codecs
    assert found.step_seconds < opfence(net, workload(), options).step_seconds
    names = {name for codec in found.plan.codecs for name in codec.codec.split("/")}
    assert names <= {"dense", *wishes.codebook}
    if text.startswith("auto"):
        assert any(" uses " in note for note in found.notes)
    assert replace(found, notes=()).plan == found.plan


def test_an_invalid_policy_is_an_error_of_one_line() -> None:
    with pytest.raises(PlanError, match="a ratio must be 1"):
        require_known(CodecWishes("adatopk:0.2"), ["a"], ())
    with pytest.raises(PlanError, match="not in the job's codebook"):
        require_known(CodecWishes("auto"), ["a"], ("bf16",))
    require_known(CodecWishes("auto"), ["a"], CodecWishes("auto").codebook)


def test_fast_links_keep_the_schedulers_own_plan() -> None:
    net = topology({})
    net = net.__class__(
        tuple(replace_tflops(worker) for worker in net.workers), net.latency_ms, net.bandwidth_mbps
    )
    own = opfence(net, workload(), Options(workers=3))
    found = scheduler_for(CodecWishes("auto"), opfence, Conditions())(net, workload(), Options(workers=3))
    assert found.plan.codecs == [] and found.assignment.cuts == own.assignment.cuts


def replace_tflops(worker: object) -> object:
    return worker.__class__(worker.id, worker.site, 1e-6, 1.0)  # type: ignore[attr-defined, call-arg]
