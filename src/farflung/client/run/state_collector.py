"""Collect the state of a job from its workers: at the end, and as copies while training goes on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from farflung.errors import ProtocolError, RunFailed
from farflung.opdag.form import Form
from farflung.plans import Plan
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.optimizers.slots import STEP, slot_shapes
from farflung.runtime.state import CODERS, StateKey
from farflung.transport.wire.headers import SliceHeader

if TYPE_CHECKING:
    from torch import Tensor

MOST_CODERS_BYTES = 2**30
"""The largest state of one worker's coders; those of a GPT with `axes100` on four links take 3 MB."""


MOST_OPEN_COPIES = 4
"""Copies whose slices are taken before the broker says which one is under way; only one of them is true."""


class ReceivedState(NamedTuple):
    """State that came from the workers: `tensors` by key, and the coders' by the worker's first segment."""

    tensors: dict[StateKey, Tensor]
    coders: dict[int, bytes]


def with_slots(
    forms: Mapping[str, Form], trained: Iterable[str], optimizer: Optimizer
) -> dict[StateKey, Form]:
    """The forms of parameters and buffers, and of the optimizer slots of those that are `trained`."""
    expected = {StateKey(name): form for name, form in forms.items()}
    for name in trained:
        for slot, shape in slot_shapes(optimizer, name, forms[name].shape).items():
            expected[StateKey(name, slot)] = Form("int64" if slot == STEP else forms[name].dtype, shape)
    return expected


class _Place(NamedTuple):
    segment: int
    key: StateKey


@dataclass
class _Arriving:
    """One piece on its way."""

    tensor: Tensor
    buffer: memoryview
    expected: int = 0
    retracted: set[int] = field(default_factory=set)
    received: int = 0
    sha256: bytes = b""


class StateCollector:
    """Receives one version of the state from the workers, straight into the memory of new tensors.

    Slices of one piece arrive in order. `progress` is called with received and expected bytes, but only once
    the state is awaited, because slices may arrive before the broker's message that announces them.

    Parameters
    ----------
    forms
        What each segment may send, with element types and shapes.
    coders
        The first segment of each worker that sends the state of its coders.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        plan: Plan,
        forms: Sequence[Mapping[StateKey, Form]],
        progress: Callable[[int, int], None],
        coders: Iterable[int] = (),
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._plan = plan
        self._forms = {
            _Place(segment, key): form for segment, of_one in enumerate(forms) for key, form in of_one.items()
        }
        self._progress = progress
        self._arriving: dict[_Place, _Arriving] = {}
        self._coders = [_Place(segment, CODERS) for segment in coders]
        self._missing = {place for place, form in self._forms.items() if form.nbytes} | {*self._coders}
        self._complete = asyncio.Event()
        self._received = 0
        self._total = sum(form.nbytes for form in self._forms.values())
        self._is_awaited = False
        self._check()

    def opening(self, worker: str, header: SliceHeader) -> memoryview:
        """The memory into which to receive the slice.

        Raises
        ------
        ProtocolError
            The slice is not of this attempt, or not one that `worker` has to send.
        """
        place = self._place_of(worker, header)
        arriving = self._arrived(place, header.total)
        end = header.offset + header.bytes
        whole = len(arriving.buffer)
        is_due = header.offset in arriving.retracted or header.offset == arriving.expected
        if header.total != whole or not is_due or end > whole:
            raise ProtocolError(
                f"worker {worker} sent bytes {header.offset} to {end} of {header.total}, {place.key},"
                f" expected those from {arriving.expected} of {whole}"
            )
        if arriving.sha256 not in (b"", header.sha256):
            raise ProtocolError(f"worker {worker} sent slices of two versions of {place.key}")
        arriving.sha256 = header.sha256
        arriving.retracted.discard(header.offset)
        arriving.expected = max(arriving.expected, end)
        return arriving.buffer[header.offset : end]

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice accepted by `opening` has been received completely."""
        place = _Place(header.segment, _key_of(header))
        arriving = self._arriving[place]
        arriving.received += header.bytes
        self._received += header.bytes
        if arriving.received == len(arriving.buffer):
            self._missing.discard(place)
        self._tell()
        self._check()

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        self._arriving[_Place(header.segment, _key_of(header))].retracted.add(header.offset)

    async def state(self, updated: bool = True) -> ReceivedState:
        """Wait for all pieces, verify their digests, and return them.

        Without `updated` no step was applied yet, so there are no optimizer slots.

        Raises
        ------
        RunFailed
            A piece does not match the digest that its worker announced.
        """
        if not updated:
            self._expect_no_slots()
        self._is_awaited = True
        self._tell()
        self._check()
        await self._complete.wait()
        await asyncio.to_thread(self._verify)
        return ReceivedState(
            {place.key: self._arrived(place).tensor for place in self._forms},
            {place.segment: bytes(self._arriving[place].buffer) for place in self._coders},
        )

    def _expect_no_slots(self) -> None:
        self._forms = {place: form for place, form in self._forms.items() if not place.key.slot}
        self._missing &= {*self._forms, *self._coders}
        self._total = sum(form.nbytes for form in self._forms.values())

    def _check(self) -> None:
        if not self._missing:
            self._complete.set()

    def _tell(self) -> None:
        if self._is_awaited and self._received:
            self._progress(self._received, max(self._received, self._total))

    def _place_of(self, worker: str, header: SliceHeader) -> _Place:
        place = _Place(header.segment, _key_of(header))
        if (header.job, header.attempt) != (self._job, self._attempt):
            raise ProtocolError(f"worker {worker} sent state of job {header.job}, attempt {header.attempt}")
        is_known = place in self._forms or place in self._coders
        if not is_known or self._plan.worker_of(place.segment) != worker:
            raise ProtocolError(
                f"worker {worker} sent {place.key} of segment {place.segment},"
                " which the plan does not give it"
            )
        if place not in self._forms and not 0 < header.total <= MOST_CODERS_BYTES:
            raise ProtocolError(
                f"worker {worker} sent {place.key} of {header.total} bytes,"
                f" expected at most {MOST_CODERS_BYTES}"
            )
        return place

    def _arrived(self, place: _Place, size: int = 0) -> _Arriving:
        """What has arrived of a piece, whose memory is allocated when it is first asked for.

        `size` is that of the coders' state, which no form gives.
        """
        if place not in self._arriving:
            import torch

            from farflung.runtime.torch_backend.tensors import DTYPES, memory

            form = self._forms.get(place) or Form("uint8", (size,))
            self._total += 0 if place in self._forms else size
            tensor = torch.empty(form.shape, dtype=DTYPES[form.dtype])
            self._arriving[place] = _Arriving(tensor, memory(tensor))
        return self._arriving[place]

    def _verify(self) -> None:
        for place, arriving in self._arriving.items():
            if len(arriving.buffer) and hashlib.sha256(arriving.buffer).digest() != arriving.sha256:
                worker = self._plan.worker_of(place.segment)
                raise RunFailed(f"{place.key} came damaged from worker {worker}: its SHA-256 differs")


class StateCollectors:
    """The collectors of one attempt: for the state at its end, and for copies while training goes on.

    `make` makes the collector of a copy. Slices may come before the broker says which copy is under way, so a
    few units are open until then.
    """

    def __init__(self, end: StateCollector, make: Callable[[], StateCollector]) -> None:
        self.end = end
        self._make = make
        self._copies: dict[int, StateCollector] = {}
        self._under_way: int | None = None
        self._done = -1

    def copy(self, unit: int) -> StateCollector:
        """The collector of the copy after `unit`, which is under way; slices of any other one are refused."""
        self._under_way = unit
        self._copies = {unit: self._copies.get(unit) or self._make()}
        return self._copies[unit]

    def drop(self, unit: int) -> None:
        """Forget the copy after `unit`, which has come whole."""
        del self._copies[unit]
        self._under_way, self._done = None, unit

    def opening(self, worker: str, header: SliceHeader) -> memoryview:
        """The memory into which to receive a slice; see `StateCollector.opening`."""
        return self._of(header).opening(worker, header)

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice accepted by `opening` has been received completely."""
        self._of(header).complete(header)

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        collector = self.end if header.unit is None else self._copies.get(header.unit)
        if collector is not None:  # else of a copy that was refused since
            collector.retract(header)

    def _of(self, header: SliceHeader) -> StateCollector:
        unit = header.unit
        if unit is None:
            return self.end
        is_due = unit > self._done if self._under_way is None else unit == self._under_way
        if not is_due or (unit not in self._copies and len(self._copies) >= MOST_OPEN_COPIES):
            raise ProtocolError(
                f"slices of a copy of the state after unit {unit} came, which is not under way"
            )
        if unit not in self._copies:
            self._copies[unit] = self._make()
        return self._copies[unit]


def _key_of(header: SliceHeader) -> StateKey:
    return StateKey(header.name, header.slot)
