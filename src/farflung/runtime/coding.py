"""One worker's codecs in a job: encode what it sends, and decode what it receives.

Every backend can use it: a `Carrier` says what tensors are. Both ends of a link update and reset their state
by the same rules; a parcel carries only the number of its codec.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from farflung.codec import Context, Mask, Recipe, Reference
from farflung.codec.catalogue import KEYS, recipe
from farflung.codec.state.reference import sent_keys
from farflung.codec.state.running_mean import Keys
from farflung.errors import CodecError, PayloadError
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, LinkCodec, Plan
from farflung.runtime.carrier import Allocate, ArrayCoder, Carrier, HostMemory, over
from farflung.runtime.link_book import AnyParcel, EdgeKey, LinkBook, edge_key
from farflung.runtime.parcel import Coded, Parcel, Sent
from farflung.runtime.row_keys import RowKeys
from farflung.runtime.sample import is_sampled, samples
from farflung.runtime.sum_coders import SumCoders
from farflung.runtime.training import Training
from farflung.schedule import Unit, UnitWindow
from farflung.workload.coding import CodingMemory, sum_memory

_Place: TypeAlias = tuple[int, int, EdgeKey]  # unit, microbatch
_End: TypeAlias = tuple[EdgeKey, bool, str]  # whether of gradients, codec

_HOST = HostMemory()


class Coding:
    """The codecs of one worker in one attempt, which begins at unit `first`; not safe for concurrent calls.

    Both ends of a link remember which elements of an activation were sent until its gradient has passed.
    Random numbers derive from the job's seed and the parcel's position in the job.

    Raises
    ------
    CodecError
        The job's codebook has an unknown codec, or a link of the plan or its sums have one that is not in the
        codebook, or sums have one that they cannot use.
    """

    def __init__(
        self,
        worker: str,
        plan: Plan,
        training: Training,
        segments: Iterable[Segment],
        first: int = 0,
        carrier: Carrier = _HOST,
    ) -> None:
        self._carrier = carrier
        self._recipes: dict[str, Recipe] = {name: recipe(name) for name in training.codecs}
        here = list(segments)
        self._book = LinkBook(worker, plan, training, here, first)
        memory = CodingMemory.of(training.codecs, training.sample_codecs)
        self._keys = RowKeys(KEYS, plan, here) if memory and memory.subtracting else None
        self._seed = training.seed
        self._samples = training.sample_codecs
        self._keeps_masks = memory is not None and memory.masks
        self._units = UnitWindow(training.units(), first)
        self._coders: dict[_End, ArrayCoder] = {}
        self._sums = SumCoders(plan.sum_codec, training.seed, carrier)
        self._masks: dict[_Place, Mask] = {}

    def set(self, codecs: Sequence[LinkCodec]) -> None:
        """Set the links' codec pairs; call it between two units. Links that are not listed become dense.

        Raises
        ------
        CodecError
            A codec is not in the job's codebook.
        """
        self._book.set(codecs)

    def encode(self, parcel: Parcel[Any]) -> Parcel[Coded]:
        """Encode a parcel for another worker or the feeder; its tensor must not change until it is sent."""
        mask = self._mask_of(parcel) if parcel.gradient else None
        tensor = parcel.payload
        if tensor is None:
            return parcel.carrying(None)
        number, name = self._book.codec_for(parcel)
        summed = self._book.sum_form(parcel)
        if summed is not None and not self._unit(parcel).alone:
            return self._encode_sum(parcel, summed, number)
        if not number or summed is not None or self._unit(parcel).plain:
            data = self._carrier.memory(tensor)
            self._book.count(parcel, len(data))
            self._sample(parcel, tensor, mask, None)
            return parcel.carrying(Coded(0, data))
        edge, began = edge_key(parcel), time.thread_time()
        array = self._carrier.array(tensor, self._book.forms[edge])
        coder = self._coder(edge, parcel.gradient, name)
        encoded = coder.encode(array, self._context(parcel, mask))
        self._remember(parcel, encoded.mask)
        self._book.count(parcel, encoded.nbytes, encoded.exact == "not finite")
        payload = encoded.joined()
        self._book.add_coding_seconds(parcel.target, time.thread_time() - began)
        self._sample(parcel, tensor, mask, (name, coder, payload))
        return parcel.carrying(Coded(number, memoryview(payload)))

    def decode(self, parcel: Parcel[Coded], allocate: Allocate) -> Parcel[Any]:
        """Decode a received parcel, into a tensor of the carrier; what is dense stays in the host's memory.

        Raises
        ------
        CodecError
            The payload cannot come from a codec of the job.
        """
        mask = self._mask_of(parcel) if parcel.gradient else None
        coded = parcel.payload
        if coded is None or not coded.codec:
            if coded is not None and not parcel.gradient:
                self._note_input(parcel, coded.data)
            return parcel.carrying(None if coded is None else coded.data)
        form, name = self._book.codec_of(parcel, coded.codec)
        tensor, began = self._carrier.allocate(form, allocate), time.thread_time()
        try:
            if self._book.sum_form(parcel) is not None:
                array, step = self._carrier.array(tensor, form), self._unit(parcel).step
                self._sums.decode(parcel, coded.data, array, form, step)
            else:
                coder = self._coder(edge_key(parcel), parcel.gradient, name)
                array, context = self._carrier.array(tensor, form), self._context(parcel, mask)
                self._remember(parcel, coder.decode(coded.data, array, context))
                self._note_keys(parcel, name, coded.data, form)
        except CodecError as error:
            why = f"{self._book.describe(parcel)} cannot be decoded: {error}"
            raise PayloadError(why, self._book.sender(parcel)) from error
        self._book.add_coding_seconds(parcel.source, time.thread_time() - began)
        return parcel.carrying(tensor)

    def _encode_sum(self, parcel: Parcel[Any], form: Form, number: int) -> Parcel[Coded]:
        """Encode what a sum sends from site to site, also to its owner itself."""
        began = time.thread_time()
        payload, not_finite = self._sums.encode(parcel, form, self._unit(parcel).step)
        self._book.count(parcel, len(payload), not_finite)
        if parcel.target != parcel.source:
            self._book.add_coding_seconds(parcel.target, time.thread_time() - began)
        return parcel.carrying(Coded(number, memoryview(payload)))

    def is_early(self, parcel: Parcel[Coded]) -> bool:
        """Whether a parcel must wait for its unit to begin, because its codec's state is still an old one."""
        if parcel.payload is None or not parcel.payload.codec or parcel.unit <= self._units.current:
            return False
        return self._recipes[self._book.codec_of(parcel, parcel.payload.codec)[1]].learns

    def decided(self, unit: int) -> None:
        """End a unit: commit the codecs' state, and drop the unit's masks."""
        for coder in self._coders.values():
            coder.on_host.commit()
        self._sums.commit()
        self._masks = {place: mask for place, mask in self._masks.items() if place[0] > unit}
        if self._keys is not None:
            self._keys.forget(unit)
        self._units.advance()

    def restart(self) -> None:
        """Drop what is learned, kept and counted since the last unit ended: the current one runs again."""
        for coder in self._coders.values():
            coder.on_host.discard()
        self._sums.discard()
        self._masks.clear()
        if self._keys is not None:
            self._keys.clear()
        self._book.restart()

    def rename(self, plan: Plan, anew: Collection[int] = ()) -> None:
        """Use the workers of `plan`, which has the same segments, from the unit on that runs now.

        Coders of the links of segments that are there `anew` begin anew, at both ends. Their sums have left
        nothing out yet; others read these as before, because a payload says all that its reader needs.
        """
        self._book.rename(plan)
        new = {*anew}
        self._coders = {end: coder for end, coder in self._coders.items() if not {*end[0][:2]} & new}

    def take_sent(self) -> list[Sent]:
        """Return and reset the counts of what was encoded for each worker."""
        return self._book.take_sent()

    def snapshot(self) -> bytes:
        """The links' coders' state as of the last commit; store it with the snapshots of the segments."""
        ends = [(end, kept) for end, coder in self._coders.items() if (kept := coder.on_host.snapshot())]
        return msgspec.msgpack.encode(sorted(ends, key=lambda item: item[0]))

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot and drop uncommitted state.

        Raises
        ------
        CodecError
            The snapshot is not of this worker's part in this job.
        """
        try:
            ends = msgspec.msgpack.decode(snapshot, type=list[tuple[_End, bytes]])
        except msgspec.MsgspecError as error:
            raise CodecError(f"a snapshot of codecs is damaged: {error}") from None
        self._coders, self._masks = {}, {}
        for (edge, gradient, name), kept in ends:
            if edge not in self._book.forms or name not in self._recipes:
                raise CodecError(
                    f"a snapshot of codecs has {name[:64]!r} for value {edge[2]}, which does not use it:"
                    " it belongs to another worker or job"
                )
            self._coder(edge, gradient, name).on_host.restore(kept)

    @property
    def remembered_bytes(self) -> int:
        """Memory used by masks and keys, in bytes."""
        keys = 0 if self._keys is None else self._keys.nbytes
        return keys + sum(mask.nbytes for mask in self._masks.values())

    def _sample(
        self,
        parcel: Parcel[Any],
        tensor: Any,
        mask: Mask | None,
        used: tuple[str, ArrayCoder, bytes] | None,
    ) -> None:
        """If the job requests it, measure what codecs do to a few of its tensors."""
        form = self._book.forms.get(edge_key(parcel)) if self._samples else None
        if form is None or parcel.target == FEEDER or not is_sampled(self._unit(parcel), parcel.microbatch):
            return
        array, context = over(self._carrier.memory(tensor), form), self._context(parcel, mask)
        on_host = None if used is None else (used[0], used[1].on_host, used[2])
        self._book.note(parcel, samples(array, parcel.gradient, context, on_host, self._recipes))

    def _coder(self, edge: EdgeKey, gradient: bool, name: str) -> ArrayCoder:
        end = (edge, gradient, name)
        if end not in self._coders:
            self._coders[end] = self._carrier.coder(self._recipes[name], self._book.forms[edge].width)
        return self._coders[end]

    def _unit(self, parcel: AnyParcel) -> Unit:
        unit = self._units.get(parcel.unit)
        if unit is None:
            raise CodecError(
                f"{self._book.describe(parcel)} is of unit {parcel.unit}, which is over or does not exist"
            )
        return unit

    def _context(self, parcel: AnyParcel, mask: Mask | None) -> Context:
        unit = self._unit(parcel)
        _, consumer, value = edge_key(parcel)
        return Context.at(
            self._seed, unit.step, parcel.microbatch, value,
            train=unit.train, gradient=parcel.gradient, target=consumer, mask=mask,
            keys=self._keys_of(parcel),
        )  # fmt: skip

    def _keys_of(self, parcel: AnyParcel) -> Keys | None:
        if self._keys is None:
            return None
        rows = self._book.forms[edge_key(parcel)].rows
        return self._keys.of((parcel.unit, parcel.microbatch), parcel.source, rows)

    def _note_input(self, parcel: AnyParcel, data: memoryview) -> None:
        if self._keys is not None and parcel.source == FEEDER:
            self._keys.fed((parcel.unit, parcel.microbatch), parcel.target, parcel.value, data)

    def _note_keys(self, parcel: AnyParcel, name: str, data: memoryview, form: Form) -> None:
        """Record the keys of a decoded parcel, for parcels that will be encoded from it."""
        memory = self._recipes[name].memory
        if self._keys is None or parcel.gradient or not isinstance(memory, Reference):
            return
        keys = sent_keys(data, form.rows, memory.keys)
        if keys is not None:
            self._keys.read(
                (parcel.unit, parcel.microbatch), parcel.source, parcel.value, parcel.target, keys
            )

    def _remember(self, parcel: AnyParcel, mask: Mask | None) -> None:
        if mask is not None and self._keeps_masks and not parcel.gradient and self._unit(parcel).train:
            self._masks[parcel.unit, parcel.microbatch, edge_key(parcel)] = mask

    def _mask_of(self, gradient: AnyParcel) -> Mask | None:
        """Pop the mask of the activation whose gradient this is."""
        return self._masks.pop((gradient.unit, gradient.microbatch, edge_key(gradient)), None)


def coding_bytes(worker: str, plan: Plan, training: Training, segments: Iterable[Segment]) -> int:
    """Memory that codecs, and noise on what leaves home, need in addition to the segments, in bytes."""
    noised = bool(training.home_noise) and worker in plan.at_home()
    memory = CodingMemory.of(training.codecs, training.sample_codecs, noised)
    if memory is None:
        return 0
    book = LinkBook(worker, plan, training, segments)
    links = memory.values(book.forms.values())
    return int(links.plus(sum_memory(form.nbytes for form in book.sum_forms)).bytes(plan.window_at(worker)))
