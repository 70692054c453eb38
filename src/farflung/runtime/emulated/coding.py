"""Codecs of an emulated job: payloads and times as a codec declares, without tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from farflung.codec.catalogue import declared
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import FP32_BYTES, LinkCodec, Plan
from farflung.runtime.emulated.backend import EmulatedDevice
from farflung.runtime.link_book import LinkBook, edge_key
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.state import NO_CODERS
from farflung.runtime.training import Training

HEADER_BYTES = 8


class EmulatedCoding:
    """See `runtime.coding.Coding`. Codecs run in parallel with the device, as on real devices."""

    def __init__(
        self,
        worker: str,
        plan: Plan,
        training: Training,
        segments: Iterable[Segment],
        device: EmulatedDevice,
        first: int = 0,
    ) -> None:
        self._declared = {name: declared(name) for name in training.codecs}
        self._book = LinkBook(worker, plan, training, segments, first)
        self._device = device

    def set(self, codecs: Sequence[LinkCodec]) -> None:
        self._book.set(codecs)

    def encode(self, parcel: Parcel[memoryview]) -> Parcel[Coded]:
        data = parcel.payload
        if data is None:
            return parcel.carrying(None)
        number, name = self._book.codec_for(parcel)
        if number:
            form = self._book.sum_form(parcel) or self._book.forms[edge_key(parcel)]
            if parcel.target != parcel.source:  # else a sum, which its owner has written for others
                self._device.wait(_gigabytes(form) / self._declared[name].encode_gbps)
            data = data[: HEADER_BYTES + int(form.elements * self._declared[name].bits / 8)]
        self._book.count(parcel, len(data))
        return parcel.carrying(Coded(number, data))

    def decode(self, parcel: Parcel[Coded], allocate: Callable[[int], memoryview]) -> Parcel[memoryview]:
        coded = parcel.payload
        if coded is not None and coded.codec:
            form, name = self._book.codec_of(parcel, coded.codec)
            self._device.wait(_gigabytes(form) / self._declared[name].decode_gbps)
        return parcel.carrying(None if coded is None else coded.data)

    def is_early(self, parcel: Parcel[Coded]) -> bool:
        return False

    def decided(self, unit: int) -> None:
        """Do nothing: codecs keep no state here."""

    def restart(self) -> None:
        self._book.restart()

    def rename(self, plan: Plan, anew: Collection[int] = ()) -> None:
        self._book.rename(plan)

    def snapshot(self) -> bytes:
        return NO_CODERS

    def restore(self, snapshot: bytes) -> None:
        """Do nothing: codecs keep no state here."""

    def take_sent(self) -> list[Sent]:
        return self._book.take_sent()


def _gigabytes(form: Form) -> float:
    """The size in fp32, as in declared speeds."""
    return form.elements * FP32_BYTES / 1e9
