"""Send a model's state to the workers before an attempt's first unit.

Each piece travels as slices and is verified by its digest. It is a parameter or buffer, what the optimizer
keeps of a parameter, or the state of a worker's coders; its `StateKey` says which.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from farflung.errors import RunFailed
from farflung.runtime.state import CODERS, StateKey
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
    digests: Mapping[str, bytes] | None = None,
) -> None:
    """Send what the given segments of one worker own, in ascending order of segments and keys.

    `segments` maps segment numbers to the names that they own, of which everything in `state` is sent;
    `sent` is called with the bytes of each slice. `digests`, if given, are the SHA-256 that the tensors had.

    Raises
    ------
    RunFailed
        One has another digest now.
    """
    for segment in sorted(segments):
        for key in _keys_of(segments[segment], state):
            # Reading a tensor may take as long as sending it does.
            buffer = await asyncio.to_thread(bytes_of, state, key)
            digest = await asyncio.to_thread(_sha256, buffer)
            if digests is not None and digests[key.name] != digest:
                raise RunFailed(f"{key} is not what it was when the job began: its weights have changed")
            await _send_piece(job, attempt, segment, key, buffer, digest, link, sent)


def bytes_of(state: Mapping[StateKey, Tensor], key: StateKey) -> memoryview:
    """The bytes of one piece of the state, row-major and little endian."""
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    return memory(outgoing(state[key]).cpu())


async def send_coders(job: str, attempt: int, segment: int, coders: bytes, link: Outgoing) -> None:
    """Send the state of the coders of a worker, whose first segment is `segment`."""
    buffer = memoryview(coders)
    await _send_piece(job, attempt, segment, CODERS, buffer, _sha256(buffer), link, lambda size: None)


def _sha256(buffer: memoryview) -> bytes:
    return hashlib.sha256(buffer).digest()


async def _send_piece(
    job: str,
    attempt: int,
    segment: int,
    key: StateKey,
    buffer: memoryview,
    digest: bytes,
    link: Outgoing,
    sent: Callable[[int], None],
) -> None:
    for offset, size in slices(len(buffer)):
        header = SliceHeader(job, attempt, segment, key.name, offset, size, len(buffer), digest, key.slot)
        await link.send(header, buffer[offset : offset + size])
        sent(size)


def _keys_of(names: Iterable[str], state: Iterable[StateKey]) -> list[StateKey]:
    """The keys of `state` with these names, all of which it has, sorted: a parameter before its slots."""
    by_name: dict[str, list[StateKey]] = {}
    for key in state:
        by_name.setdefault(key.name, []).append(key)
    return [key for name in sorted(names) for key in sorted(by_name[name])]
