"""The codecs of a worker whose values cross beside its computation, and its values without a codec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from farflung.opdag.buckets import in_buckets
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, Plan
from farflung.runtime.carrier import Allocate
from farflung.runtime.coding import Coding
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.torch_backend.codecs.carrier import TensorCarrier
from farflung.runtime.torch_backend.crossing import Crossing
from farflung.runtime.torch_backend.pinned import padded
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.runtime.training import Training

Forms = dict[tuple[int, int, int], Form]  # by bucket, segment and value


class CrossingCoding(Coding):
    """As `Coding`; codecs run on the stream *codec*, and what arrives is an `Arriving`, dense or not.

    Integers stay on the host, where a segment checks indices.
    """

    def __init__(
        self,
        worker: str,
        plan: Plan,
        training: Training,
        segments: Iterable[Segment],
        first: int,
        crossing: Crossing,
    ) -> None:
        here = list(segments)
        super().__init__(worker, plan, training, here, first, TensorCarrier(crossing.device))
        self._crossing = crossing
        self._forms = forms_of(here, training.microbatch_size)
        crossing.begin_job(most_crossing(worker, plan), not training.codecs)

    def encode(self, parcel: Parcel[Any]) -> Parcel[Coded]:
        with self._crossing.on(self._crossing.codec):
            return super().encode(parcel)

    def decode(self, parcel: Parcel[Coded], allocate: Allocate) -> Parcel[Any]:
        with self._crossing.on(self._crossing.codec):
            decoded = super().decode(parcel, allocate)
        payload = decoded.payload
        if isinstance(payload, Tensor):
            return parcel.carrying(self._crossing.decoded(payload))
        form = self._forms[parcel.bucket, parcel.target, parcel.value]
        if payload is None or not DTYPES[form.dtype].is_floating_point:
            return decoded
        return parcel.carrying(self._crossing.arrive(payload, form))


def forms_of(segments: Iterable[Segment], batch: int) -> Forms:
    """The forms of all values that segments know."""
    return {
        (bucket, segment.number, value): Form.of(kind, batch)
        for segment in segments
        for bucket, sized in enumerate(in_buckets(segment))
        for value, kind in sized.values.items()
    }


def most_crossing(worker: str, plan: Plan) -> int:
    """Bytes of buffers for what can be on its way to and from a worker's device at once, by the window."""
    found = 0
    for edge in plan.edges:
        source = "" if edge.source == FEEDER else plan.worker_of(edge.source)
        if (source == worker) != (plan.worker_of(edge.target) == worker):
            found += padded(edge.bytes) * (2 if edge.differentiable else 1)
    return found * plan.window_at(worker)
