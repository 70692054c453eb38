"""Values in bfloat16: codecs count from fp32, and what crosses without any is a half of that already."""

from __future__ import annotations

import msgspec
import pytest
from benchmarks.zoo import Case, case
from benchmarks.zoo.side_by_side import SideBySide, captured, microbatches, planned
from tests.planner.codecs.chains import FLOAT_BYTES, MASK_BYTES, chain, topology
from tests.support.half_frozen import HALF_FROZEN

from farflung.planner import PlannedJob
from farflung.planner.codecs.ladder import ladder
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.plan_context import codec_context
from farflung.planner.codecs.policies import auto, uniform
from farflung.planner.codecs.wishes import fixed
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import FEEDER, CodecWishes, LinkCodec, Plan, Topology
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.training import Training
from farflung.simulator import Conditions, simulate
from farflung.simulator.costs import Codable, LinkCosts, transfers_of

SAMPLES, MICROBATCHES = 4, 2
CONDITIONS = Conditions(payload_share=1.0, codec_speed=1e9)


def in_halves(plan: Plan) -> Plan:
    """The same elements in two bytes each; what is exact stays as it is."""
    edges = [
        msgspec.structs.replace(edge, bytes=edge.bytes // 2, element_bytes=2) if edge.differentiable else edge
        for edge in plan.edges
    ]
    return msgspec.structs.replace(plan, edges=edges)


def wire_bytes(plan: Plan, net: Topology) -> list[float]:
    """Of a microbatch, from each segment to another."""
    costs, ids = LinkCosts(plan, net, CONDITIONS), net.ids
    place = {placement.segment: ids.index(placement.worker) for placement in plan.placements}
    return [
        costs.wire_bytes(
            place[transfer.source], place[transfer.target], transfer.forward_bytes, transfer.activations
        )
        for transfer in transfers_of(plan.edges)
        if transfer.source != FEEDER
    ]


@pytest.mark.parametrize("rung", ["int8", "int8/int4-stochastic", "hadamard2/eden2"])
def test_a_codec_writes_the_same_bytes_for_either_dtype(rung: str) -> None:
    wishes, net = CodecWishes(rung), topology({})
    plan = chain(["a", "b", "c"], masks=True)
    written = [
        msgspec.structs.replace(each, codecs=list(fixed(each, wishes))) for each in (plan, in_halves(plan))
    ]
    whole, halves = (wire_bytes(each, net) for each in written)
    assert halves == pytest.approx(whole)
    ratios = [[codec.ratio for codec in each.codecs] for each in written]
    assert ratios[0] == pytest.approx(ratios[1])
    assert sum(wire_bytes(in_halves(plan), net)) == 2 * (FLOAT_BYTES / 2 + MASK_BYTES)


def test_bfloat16_halves_the_time_of_dense_links_only() -> None:
    net = topology({(a, b): 0.01 for a in range(2) for b in range(2)}, 2)
    plan = chain(["a", "b"], size=10**5, microbatches=2)
    rung = CodecWishes("int8")
    for took in (step_seconds, lambda *given: simulate(*given).step_seconds):
        dense = [took(each, net, CONDITIONS) for each in (plan, in_halves(plan))]
        coded = [
            took(msgspec.structs.replace(each, codecs=list(fixed(each, rung))), net, CONDITIONS)
            for each in (plan, in_halves(plan))
        ]
        assert coded[0] == pytest.approx(coded[1])
        assert dense[0] > 1.9 * dense[1] > 1.8 * 1.9 * coded[1]


def test_a_rung_that_does_not_shrink_bfloat16_is_not_used() -> None:
    slow = topology({(0, 1): 1.0, (1, 0): 1.0}, 2)
    plan = in_halves(chain(["a", "b"], size=10**6, flops=10**9, microbatches=4))
    assert uniform("bf16")(plan, slow) == ()
    assert [link.ratio for link in uniform("int8")(plan, slow)] == pytest.approx([3.97, 3.97], rel=0.01)
    context = codec_context(plan, slow, CONDITIONS)
    dense, bf16 = ladder()[0], next(rung for rung in ladder() if rung.name == "bf16")
    assert context.wire_bytes(0, bf16) == context.wire_bytes(0, dense) == 500_000
    assert context.ratio_of_all(0, dense) == 2
    assert not {link.codec for link in auto(Limits(), CONDITIONS)(plan, slow)} & {"bf16"}


def test_double_precision_stays_dense_in_both_directions() -> None:
    plan = chain(["a", "b"], size=800)
    edges = [msgspec.structs.replace(edge, element_bytes=8) for edge in plan.edges]
    plan = msgspec.structs.replace(plan, edges=edges)
    context = codec_context(plan, topology({}, 2), CONDITIONS)
    assert [carried.exact for carried in context.carried] == [800, 800]
    assert uniform("int8")(plan, topology({}, 2)) == ()
    assert transfers_of(plan.edges)[1].activations == transfers_of(plan.edges)[1].gradients == Codable()


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "subject", [case("gpt"), case("gpt-autocast"), HALF_FROZEN], ids=lambda subject: subject.name
)
def test_a_plan_expects_the_bytes_that_a_worker_writes(subject: Case) -> None:
    """Headers aside, which are much of values so small."""
    rung = "int8/int4-stochastic"
    training = Training(2, MICROBATCHES, SAMPLES, AdamW(lr=1e-3), codecs=codebook_of([rung]))
    module, graph = captured(subject, SAMPLES)
    job = planned(graph, training, 2)
    assert any(edge.frozen for edge in job.plan.edges) == (subject is HALF_FROZEN)
    plan = msgspec.structs.replace(job.plan, codecs=list(fixed(job.plan, CodecWishes(rung))))
    side = SideBySide(module, graph, PlannedJob(plan, job.segments), training)
    side.accumulate(microbatches(subject, SAMPLES, MICROBATCHES, 0))
    net = topology({}, 2)
    specs = (msgspec.structs.replace(w, id=id) for w, id in zip(net.workers, plan.workers(), strict=True))
    (expected,) = wire_bytes(plan, msgspec.structs.replace(net, workers=tuple(specs)))
    sent = side.pipeline.take_sent()
    forward = next(one for one in sent.values() if one.target == plan.workers()[1])
    assert forward.payload_bytes / MICROBATCHES == pytest.approx(expected, rel=0.1)
    ratio = next(link.ratio for link in plan.codecs if isinstance(link, LinkCodec))
    assert forward.tensor_bytes / forward.payload_bytes == pytest.approx(ratio, rel=0.1)
