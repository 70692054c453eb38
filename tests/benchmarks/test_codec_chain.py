"""What `auto` chooses by figures alone."""

from __future__ import annotations

import pytest
from benchmarks.codec_chain import Boundary, rungs_of
from tests.planner.codecs.chains import chain, topology
from tests.planner.codecs.tables import AXES, TABLE, WITH_AXES

from farflung.codec.catalogue import declared
from farflung.planner.codecs.limits import MOST_NOISE, MOST_UNSTEADY_ERROR, Limits
from farflung.planner.codecs.policies import auto
from farflung.plans.codec_pair import CodecPair
from farflung.simulator import Conditions
from farflung.simulator.costs import TaskSeconds

SECONDS = TaskSeconds(0.02, 0.02, 0.02)


def chosen(mbps: float, table: dict = WITH_AXES, budget: float = 0.02) -> tuple[str, ...]:
    """Of four stages, with 256 kB between neighbours."""
    boundaries = [Boundary(262144, mbps, mbps, 0.02)] * 3
    return rungs_of(boundaries, [SECONDS] * 4, 16, table, Limits(budget))


def test_slow_lines_are_written_in_few_bytes_and_fast_ones_as_they_are() -> None:
    dense = [sum(rung == "dense" for rung in chosen(mbps)) for mbps in (8, 16, 32, 100, 1000)]
    assert dense == sorted(dense)
    assert all(CodecPair.of(rung).activation == CodecPair.of(AXES).activation for rung in chosen(8))
    assert set(chosen(1000)) == {"dense"}


def test_a_table_and_a_budget_decide_what_may_be_taken() -> None:
    assert not any("axes" in rung for rung in chosen(8, TABLE))
    assert set(chosen(8, budget=0.0)) == {"bf16"}


@pytest.mark.parametrize(("count", "finest"), [(3, 0.28), (15, 0.28), (16, 0.2), (31, 0.08), (63, 0.08)])
def test_the_more_boundaries_gradients_cross_the_more_finely_they_are_written(
    count: int, finest: float
) -> None:
    boundaries = [Boundary(262144, 1.0, 1.0, 0.02)] * count
    limits = Limits(1.0, is_steady=True)
    rungs = rungs_of(boundaries, [SECONDS] * (count + 1), 16, limits=limits)
    errors = [declared(CodecPair.of(rung).gradient).usual_error for rung in rungs]
    assert sum(error**2 for error in errors) <= MOST_NOISE + 1e-9
    assert max(errors) >= finest


@pytest.mark.parametrize(("count", "is_tried"), [(3, True), (4, False), (7, False)])
def test_without_warm_up_or_clipping_gradients_cross_few_boundaries_roughly(
    count: int, is_tried: bool
) -> None:
    boundaries = [Boundary(262144, 1.0, 1.0, 0.02)] * count
    rungs = rungs_of(boundaries, [SECONDS] * (count + 1), 16, limits=Limits(1.0))
    gradients = [declared(CodecPair.of(rung).gradient) for rung in rungs]
    assert all(gradient.bits < 4 for gradient in gradients)
    assert (max(gradient.usual_error for gradient in gradients) > MOST_UNSTEADY_ERROR) is is_tried


@pytest.mark.parametrize("mbps", [2.0, 12.0, 40.0, 200.0])
def test_it_is_what_the_policy_chooses_for_such_a_plan(mbps: float) -> None:
    plan = chain(["a", "b"], size=10**6, flops=10**11, microbatches=8)
    (rung,) = rungs_of(
        [Boundary(10**6, mbps, mbps)], [TaskSeconds(0.1, 0.1, 0.1), TaskSeconds(0.1, 0.1, 0.1)], 8
    )
    codecs = {(one.source, one.target): one.codec for one in auto(Limits(), Conditions())(
        plan, topology({(0, 1): mbps, (1, 0): mbps}, 2)
    )}  # fmt: skip
    there, back = (CodecPair.of(codecs.get(pair, "dense")) for pair in (("a", "b"), ("b", "a")))
    assert CodecPair(there.activation, back.gradient).name == rung
