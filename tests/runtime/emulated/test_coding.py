"""Payloads of emulated codecs are as long, and take as long, as the codecs declare."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, planned

from farflung.codec.catalogue import declared
from farflung.plans import LinkCodec, Plan
from farflung.plans.codec_pair import codebook_of
from farflung.runtime.emulated.backend import EmulatedDevice
from farflung.runtime.emulated.coding import HEADER_BYTES, EmulatedCoding
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Parcel
from farflung.runtime.training import Training

RUNG = "int8/eden2"


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def both_ways(plan: Plan) -> Sequence[LinkCodec]:
    return [LinkCodec(a, b, RUNG, 1.0) for a in plan.workers() for b in plan.neighbours(a)]


@pytest.mark.parametrize("gradient", [False, True])
def test_a_coded_payload_has_the_declared_length_and_time(gradient: bool) -> None:
    settings = Training(1, 2, 2, SGD(lr=0.1), codecs=codebook_of([RUNG]))
    job = planned(captured(case("gpt"), 2)[1], settings, 2)
    plan = msgspec.structs.replace(job.plan, codecs=list(both_ways(job.plan)))
    edge = next(edge for edge in plan.edges if edge.differentiable)
    clock = Clock()
    device = EmulatedDevice(1.0, lambda: clock.now, clock.sleep)
    sender, reader = plan.workers()[::-1] if gradient else plan.workers()
    codings = [EmulatedCoding(worker, plan, settings, job.segments, device) for worker in (sender, reader)]
    ends = (edge.target, edge.source) if gradient else (edge.source, edge.target)
    parcel = Parcel(0, 0, *ends, edge.value, gradient, memoryview(bytes(edge.bytes)))
    sent = codings[0].encode(parcel)
    promise = declared("eden2" if gradient else "int8")
    assert sent.payload is not None
    assert sent.payload.codec == (2 if gradient else 1)
    assert len(sent.payload.data) == HEADER_BYTES + int(edge.bytes / 4 * promise.bits / 8)
    assert clock.now == pytest.approx(edge.bytes / 1e9 / promise.encode_gbps)
    codings[1].decode(sent, lambda size: memoryview(bytes(size)))
    assert clock.now == pytest.approx(
        edge.bytes / 1e9 / promise.encode_gbps + edge.bytes / 1e9 / promise.decode_gbps
    )
    (counted,) = codings[0].take_sent()
    assert (counted.tensor_bytes, counted.payload_bytes) == (edge.bytes, len(sent.payload.data))
