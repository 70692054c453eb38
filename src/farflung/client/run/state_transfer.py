"""Send a model's state to the workers before the first step, and collect it after the last.

Each tensor travels as named slices and is verified by its digest. It is a parameter or buffer, or what the
optimizer keeps of a parameter; its `StateKey` says which.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farflung.errors import ProtocolError, RunFailed
from farflung.plans import Plan
from farflung.runtime.state import StateKey
from farflung.transport.wire.headers import DataHeader, SliceHeader, slices

if TYPE_CHECKING:
    from torch import Tensor


class Outgoing(Protocol):
    """The part of a link that sending state uses."""

    def send(self, header: DataHeader, buffer: memoryview) -> Awaitable[None]:
        """Send a message; returns when the buffer may be changed again."""


async def send_state(
    job: str,
    attempt: int,
    segments: Mapping[int, Sequence[str]],
    state: Mapping[StateKey, Tensor],
    link: Outgoing,
    sent: Callable[[int], None],
) -> None:
    """Send what the given segments of one worker own, in ascending order of segments and keys.

    `segments` maps segment numbers to the names that they own, of which everything in `state` is sent;
    `sent` is called with the bytes of each slice.
    """
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    for segment in sorted(segments):
        for key in _keys_of(segments[segment], state):
            buffer = memory(outgoing(state[key]).cpu())
            digest = await asyncio.to_thread(_digest, buffer)
            for offset, size in slices(len(buffer)):
                header = SliceHeader(
                    job, attempt, segment, key.name, offset, size, len(buffer), digest, key.slot
                )
                await link.send(header, buffer[offset : offset + size])
                sent(size)


def _keys_of(names: Iterable[str], state: Iterable[StateKey]) -> list[StateKey]:
    """The keys of `state` with these names, all of which it has, sorted: a parameter before its slots."""
    by_name: dict[str, list[StateKey]] = {}
    for key in state:
        by_name.setdefault(key.name, []).append(key)
    return [key for name in sorted(names) for key in sorted(by_name[name])]


@dataclass
class _Arriving:
    """One tensor on its way back."""

    tensor: Tensor
    buffer: memoryview
    expected: int = 0
    retracted: set[int] = field(default_factory=set)
    received: int = 0
    sha256: bytes = b""


class StateCollector:
    """Receives the state that segments own from their workers, straight into the memory of tensors.

    `owned` names what each segment owns; everything of these names in `state` is awaited, which gives shapes
    and types. The received tensors are new ones, allocated at their first slice; slices of one tensor arrive
    in order. `progress` is called only once the state is awaited, because a worker's slices may arrive before
    the broker's message that the last step is done.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        plan: Plan,
        owned: Sequence[Sequence[str]],
        state: Mapping[StateKey, Tensor],
        progress: Callable[[int, int], None],
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._plan = plan
        self._owner = {key: segment for segment, names in enumerate(owned) for key in _keys_of(names, state)}
        self._state = state
        self._progress = progress
        self._arriving: dict[StateKey, _Arriving] = {}
        sizes = {key: state[key].nbytes for key in self._owner}
        self._missing = {key for key, size in sizes.items() if size}
        self._complete = asyncio.Event()
        self._total = sum(sizes.values())
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
                f"worker {worker} sent bytes {header.offset} to {end} of {header.total}, {_key_of(header)},"
                f" expected those from {arriving.expected} of {whole}"
            )
        if arriving.sha256 not in (b"", header.sha256):
            raise ProtocolError(f"worker {worker} sent slices of two versions of {_key_of(header)}")
        arriving.sha256 = header.sha256
        arriving.retracted.discard(header.offset)
        arriving.expected = max(arriving.expected, end)
        return arriving.buffer[header.offset : end]

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice accepted by `opening` has been received completely."""
        key = _key_of(header)
        arriving = self._arriving[key]
        arriving.received += header.bytes
        self._received += header.bytes
        self._tell()
        if arriving.received == len(arriving.buffer):
            self._missing.discard(key)
        if not self._missing:
            self._complete.set()

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        self._arriving[_key_of(header)].retracted.add(header.offset)

    async def state(self) -> dict[StateKey, Tensor]:
        """Wait for all owned tensors, verify their digests, and return them.

        Raises
        ------
        RunFailed
            A tensor does not match the digest that its worker announced.
        """
        self._is_awaited = True
        self._tell()
        await self._complete.wait()
        await asyncio.to_thread(self._verify)
        return {key: self._arrived(key).tensor for key in self._owner}

    def _tell(self) -> None:
        if self._is_awaited and self._received:
            self._progress(self._received, self._total)

    def _arriving_tensor(self, worker: str, header: SliceHeader) -> _Arriving:
        key = _key_of(header)
        if key not in self._owner or self._plan.worker_of(self._owner[key]) != worker:
            raise ProtocolError(f"worker {worker} sent {key}, which the plan does not give it")
        if header.segment != self._owner[key]:
            raise ProtocolError(
                f"worker {worker} sent {key} as part of segment {header.segment}, the plan says"
                f" {self._owner[key]}"
            )
        return self._arrived(key)

    def _arrived(self, key: StateKey) -> _Arriving:
        """What has arrived of a tensor, whose memory is allocated when it is first asked for."""
        if key not in self._arriving:
            import torch

            from farflung.runtime.torch_backend.tensors import memory

            tensor = torch.empty(self._state[key].shape, dtype=self._state[key].dtype)
            self._arriving[key] = _Arriving(tensor, memory(tensor))
        return self._arriving[key]

    def _verify(self) -> None:
        for key, arriving in self._arriving.items():
            if len(arriving.buffer) and _digest(arriving.buffer) != arriving.sha256:
                worker = self._plan.worker_of(self._owner[key])
                raise RunFailed(f"{key} came damaged from worker {worker}: its SHA-256 differs")


def _key_of(header: SliceHeader) -> StateKey:
    return StateKey(header.name, header.slot)


def _digest(buffer: memoryview) -> bytes:
    return hashlib.sha256(buffer).digest()
