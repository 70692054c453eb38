"""Send a model's state to the workers before the first step, and collect it after the last.

Each tensor travels as named slices and is verified by its digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farflung.errors import ProtocolError, RunFailed
from farflung.plans import Plan
from farflung.transport.wire.headers import DataHeader, SliceHeader

if TYPE_CHECKING:
    from torch import Tensor

SLICE_BYTES = 4 * 2**20


class Outgoing(Protocol):
    """The part of a link that sending state uses."""

    def send(self, header: DataHeader, buffer: memoryview) -> Awaitable[None]:
        """Send a message; returns when the buffer may be changed again."""


def slices(total: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each slice of a tensor of `total` bytes; an empty tensor has one, of size 0."""
    for offset in range(0, max(total, 1), SLICE_BYTES):
        yield offset, min(SLICE_BYTES, total - offset)


async def send_state(
    job: str,
    attempt: int,
    segments: Mapping[int, Sequence[str]],
    state: Mapping[str, Tensor],
    link: Outgoing,
    sent: Callable[[int], None],
) -> None:
    """Send what the given segments of one worker own, in ascending segment and name order.

    `segments` maps segment numbers to names in `state`; `sent` is called with the bytes of each slice.
    """
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    for segment in sorted(segments):
        for name in sorted(segments[segment]):
            tensor = outgoing(state[name]).cpu()
            buffer = memory(tensor)
            digest = await asyncio.to_thread(_digest, buffer)
            for offset, size in slices(len(buffer)):
                header = SliceHeader(job, attempt, segment, name, offset, size, len(buffer), digest)
                await link.send(header, buffer[offset : offset + size])
                sent(size)


@dataclass
class _Arriving:
    """One tensor on its way back."""

    segment: int
    worker: str
    tensor: Tensor
    buffer: memoryview
    expected: int = 0
    retracted: set[int] = field(default_factory=set)
    received: int = 0
    sha256: bytes = b""


class StateCollector:
    """Receives every owned tensor from its worker, straight into the tensor's memory.

    Slices of one tensor arrive in order. `state` gives shapes and types; the received tensors are new ones,
    allocated at their first slice. `progress` is called only once the state is awaited, because a worker's
    slices may arrive before the broker's message that the last step is done.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        plan: Plan,
        owned: Sequence[Sequence[str]],
        state: Mapping[str, Tensor],
        progress: Callable[[int, int], None],
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._plan = plan
        self._owner = {name: segment for segment, names in enumerate(owned) for name in names}
        self._state = state
        self._progress = progress
        self._arriving: dict[str, _Arriving] = {}
        self._missing = set(self._owner)
        self._complete = asyncio.Event()
        self._total = sum(state[name].nbytes for name in self._owner)
        self._received = 0
        self._is_awaited = False
        if not self._missing:
            self._complete.set()

    def opening(self, worker: str, header: SliceHeader) -> memoryview:
        """The memory into which to receive the slice.

        Raises
        ------
        ProtocolError
            The slice is not of this attempt, or not one that `worker` has to send.
        """
        if (header.job, header.attempt) != (self._job, self._attempt):
            raise ProtocolError(f"worker {worker} sent state of job {header.job}, attempt {header.attempt}")
        arriving = self._arriving_tensor(worker, header)
        end = header.offset + header.bytes
        whole = len(arriving.buffer)
        is_due = header.offset in arriving.retracted or header.offset == arriving.expected
        if header.total != whole or not is_due or end > whole:
            raise ProtocolError(
                f"worker {worker} sent bytes {header.offset} to {end} of {header.total}, {header.name!r},"
                f" expected those from {arriving.expected} of {whole}"
            )
        if arriving.sha256 not in (b"", header.sha256):
            raise ProtocolError(f"worker {worker} sent slices of two versions of {header.name!r}")
        arriving.sha256 = header.sha256
        arriving.retracted.discard(header.offset)
        arriving.expected = max(arriving.expected, end)
        return arriving.buffer[header.offset : end]

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice accepted by `opening` has been received completely."""
        arriving = self._arriving[header.name]
        arriving.received += header.bytes
        self._received += header.bytes
        self._tell()
        if arriving.received == len(arriving.buffer):
            self._missing.discard(header.name)
        if not self._missing:
            self._complete.set()

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        self._arriving[header.name].retracted.add(header.offset)

    async def state(self) -> dict[str, Tensor]:
        """Wait for all owned tensors, verify their digests, and return them by name.

        Raises
        ------
        RunFailed
            A tensor does not match the digest that its worker announced.
        """
        self._is_awaited = True
        self._tell()
        await self._complete.wait()
        await asyncio.to_thread(self._verify)
        return {name: arriving.tensor for name, arriving in self._arriving.items()}

    def _tell(self) -> None:
        if self._is_awaited and self._received:
            self._progress(self._received, self._total)

    def _arriving_tensor(self, worker: str, header: SliceHeader) -> _Arriving:
        if header.name not in self._owner or self._plan.worker_of(self._owner[header.name]) != worker:
            raise ProtocolError(f"worker {worker} sent {header.name[:80]!r}, which the plan does not give it")
        if header.name not in self._arriving:
            import torch

            from farflung.runtime.torch_backend.tensors import memory

            like = self._state[header.name]
            tensor = torch.empty(like.shape, dtype=like.dtype)
            segment = self._owner[header.name]
            self._arriving[header.name] = _Arriving(segment, worker, tensor, memory(tensor))
        arriving = self._arriving[header.name]
        if arriving.segment != header.segment:
            raise ProtocolError(
                f"worker {worker} sent {header.name!r} as part of segment {header.segment}, the plan says"
                f" {arriving.segment}"
            )
        return arriving

    def _verify(self) -> None:
        for name, arriving in self._arriving.items():
            if _digest(arriving.buffer) != arriving.sha256:
                raise RunFailed(f"{name!r} came damaged from worker {arriving.worker}: its SHA-256 differs")


def _digest(buffer: memoryview) -> bytes:
    return hashlib.sha256(buffer).digest()
