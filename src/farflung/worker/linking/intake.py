"""What a worker takes in over data links: values, the state of its segments, and slices of copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from farflung.errors import ProtocolError
from farflung.protocol.messages import Load
from farflung.runtime.parcel import Coded, Parcel
from farflung.transport.wire.headers import DataHeader, SliceHeader, ValueHeader
from farflung.worker.computing.state_receiver import EMPTY, StateReceiver
from farflung.worker.events import Attempt
from farflung.worker.linking.admission import Admission
from farflung.worker.step_watch import StepWatch
from farflung.worker.storing.copying import Copying

Deliver = Callable[[Attempt, Parcel[Coded]], None]


class Intake:
    """Checks each message of the current attempt before memory is taken for it, and passes it on.

    `allocate` returns the memory into which a value is received, `deliver` is called with each value or
    gradient, `arrived` once the whole state is there. Copies go to `copies`, if this worker makes any.
    `watch` notes when values arrive.
    """

    def __init__(
        self, allocate: Callable[[int], memoryview], arrived: Callable[[], None], watch: StepWatch
    ) -> None:
        self._allocate = allocate
        self._watch = watch
        self._arrived = arrived
        self.deliver: Deliver = lambda attempt, parcel: None
        self.copies: Copying | None = None
        self.verified = False  # the programs and the plan's sizes: values may come
        self.admission: Admission | None = None
        self._receiver: StateReceiver | None = None

    def begin(self, worker: str, load: Load, receiver: StateReceiver | None) -> None:
        """Begin an attempt; without a `receiver` the worker has its state already."""
        self.admission, self._receiver = Admission(worker, load), receiver

    def end(self) -> None:
        """End the attempt."""
        self.admission = self._receiver = None
        self.verified = False

    def opening(self, peer: str, header: DataHeader) -> memoryview | None:
        """Memory for a message that the plan expects from this peer; None if its unit is over.

        Raises
        ------
        ProtocolError
            The peer may not send this, or not now; or there is no memory for it.
        """
        assert self.admission is not None
        if isinstance(header, SliceHeader):
            if header.unit is not None and self.copies is not None:
                return self.copies.arrivals.opening(peer, header)
            if self._receiver is None:
                raise ProtocolError(f"{peer} sent state, which this worker has already")
            return self._receiver.opening(peer, header)
        if not isinstance(header, ValueHeader):
            raise ProtocolError(f"{peer} sent a probe's message on a data link")
        if not self.verified:
            raise ProtocolError(f"{peer} sent a value before this worker had loaded")
        if not self.admission.admit(peer, header):
            return None
        self._watch.opening(peer, header)
        return self._memory_of(header.bytes) if header.bytes else EMPTY

    def _memory_of(self, size: int) -> memoryview:
        try:
            return self._allocate(size)
        except (MemoryError, RuntimeError):  # torch raises the latter (`worker.memory_limit`)
            raise ProtocolError(f"this worker has no memory left for a message of {size} bytes") from None

    def complete(self, peer: str, header: DataHeader, buffer: memoryview) -> None:
        """Pass on a message that was received completely."""
        if isinstance(header, SliceHeader):
            if header.unit is not None and self.copies is not None:
                self.copies.arrivals.complete(peer, header, buffer)
            elif self._receiver is not None:
                self._receiver.complete(header)
                if self._receiver.full:  # once: no slice is admitted after the last
                    self._arrived()
            return
        assert isinstance(header, ValueHeader)  # `opening` accepts no other
        self._watch.complete(peer, header)
        parcel = Parcel(
            header.unit, header.microbatch, header.source, header.target, header.value, header.gradient,
            Coded(header.codec, buffer) if header.bytes else None, header.bucket,
        )  # fmt: skip
        self.deliver((header.job, header.attempt), parcel)

    def retract(self, peer: str, unfinished: Iterable[DataHeader]) -> None:
        """Forget messages that a lost link left unfinished: they will come over another one."""
        for header in unfinished:
            if isinstance(header, SliceHeader) and header.unit is not None and self.copies is not None:
                self.copies.arrivals.retract(peer, header)
            elif isinstance(header, SliceHeader) and self._receiver is not None:
                self._receiver.retract(header)
            elif isinstance(header, ValueHeader) and self.admission is not None:
                self.admission.retract(header)
