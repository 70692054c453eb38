"""Links of a pipeline in one process that write and read what crosses them, and count its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from benchmarks.learning.way import Way, halves
from torch import Tensor

from farflung.codec import Coder, Context, Mask
from farflung.codec.catalogue import recipe
from farflung.plans import FEEDER, Plan
from farflung.runtime.executor import Parcel
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.training import Training
from farflung.schedule import Unit
from farflung.transport.wire.frames import PREFIX_BYTES
from farflung.transport.wire.headers import ValueHeader

JOB = "0" * 16


@dataclass
class Count:
    """Bytes of one direction, of training steps."""

    dense: int = 0
    wire: int = 0

    @property
    def ratio(self) -> float:
        """Of nothing, 1."""
        return self.dense / self.wire if self.wire else 1.0


@dataclass
class Ends:
    """The two ends of one value's way over a link."""

    writer: Coder
    reader: Coder


@dataclass
class Links:
    """All links of one run.

    `units` of a job count its steps; `keys` are the tokens of the running unit's microbatches, if it has any.
    """

    way: Way
    plan: Plan
    training: Training
    forward: Count = field(default_factory=Count)
    backward: Count = field(default_factory=Count)
    _units: dict[int, Unit] = field(default_factory=dict)
    _ends: dict[tuple[int, int, str], Ends] = field(default_factory=dict)
    _masks: dict[tuple[int, int, int, int], Mask | None] = field(default_factory=dict)
    _keys: Sequence[np.ndarray | None] = ()

    def __post_init__(self) -> None:
        self._units = {unit.number: unit for unit in self.training.units()}
        self._codable = {(edge.value, edge.target) for edge in self.plan.edges if edge.is_codable}

    def begin(self, microbatches: Sequence[Mapping[str, Tensor]]) -> None:
        """A unit starts with these."""
        self._keys = [batch["tokens"].numpy() if "tokens" in batch else None for batch in microbatches]
        self._masks.clear()

    def decided(self) -> None:
        """The unit is over: what it taught is kept."""
        for ends in self._ends.values():
            ends.writer.commit()
            ends.reader.commit()

    def carry(self, parcel: Parcel[Tensor]) -> Parcel[Tensor]:
        """What comes out at the other end."""
        producer, consumer = parcel.source, parcel.target
        if parcel.gradient:
            producer, consumer = consumer, producer
        known = (parcel.value, consumer) in self._codable
        if parcel.payload is None or producer == FEEDER or not known or parcel.payload.dtype != torch.float32:
            return parcel
        unit = self._units[parcel.unit]
        rung = self.way.rung(producer, unit.step, self.training.steps)
        name = halves(rung)[parcel.gradient]
        ends = self._pair(parcel, consumer, name)
        place = (parcel.unit, parcel.microbatch, parcel.value, consumer)
        context = Context.at(
            self.training.seed, unit.step, parcel.microbatch, parcel.value, train=unit.train,
            gradient=parcel.gradient, target=consumer, mask=self._masks.pop(place, None),
            keys=self._keys[parcel.microbatch],
        )  # fmt: skip
        array = parcel.payload.contiguous().numpy()
        encoded = ends.writer.encode(array, context)
        payload, read = encoded.joined(), np.empty_like(array)
        mask = ends.reader.decode(payload, read, context)
        if unit.train:
            if not parcel.gradient:
                self._masks[place] = mask
            self._count(parcel, array.nbytes, len(payload))
        return parcel._replace(payload=torch.from_numpy(read))

    def _pair(self, parcel: Parcel[Tensor], consumer: int, name: str) -> Ends:
        key = (parcel.value, consumer, f"{name}/{parcel.gradient}")
        if key not in self._ends:
            assert parcel.payload is not None
            chosen, width = recipe(name), parcel.payload.shape[-1]
            self._ends[key] = Ends(chosen.coder(width), chosen.coder(width))
        return self._ends[key]

    def _count(self, parcel: Parcel[Tensor], dense: int, payload: int) -> None:
        count = self.backward if parcel.gradient else self.forward
        header = ValueHeader(
            JOB, 1, parcel.unit, parcel.microbatch, parcel.source, parcel.target, parcel.value,
            parcel.gradient, 1, payload,
        )  # fmt: skip
        count.dense += dense
        count.wire += payload + PREFIX_BYTES + len(msgspec.msgpack.encode(header))


class CodedPipeline(InProcessPipeline):
    """`InProcessPipeline` with links in between."""

    links: Links

    def _deliver(self) -> bool:
        for outlet in self._outlets.values():
            outlet.parcels = [self.links.carry(parcel) for parcel in outlet.parcels]
        return super()._deliver()
