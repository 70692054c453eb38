"""Receive the state of a job's segments: named slices, straight into the memory that the segments use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from farflung.errors import GraphError, ProtocolError
from farflung.protocol.messages import Load
from farflung.transport.wire.headers import SliceHeader

Key = tuple[int, str]  # segment, name
EMPTY = memoryview(bytearray())


class StateReceiver:
    """Memory for every owned tensor of this worker's segments, filled by slices.

    Tensors arrive in any order, slices of one tensor in theirs. Use `buffers` only after `verify` has passed.
    `allocate` returns the memory for a tensor; `memory_bytes` is the limit for all of them.
    """

    def __init__(
        self, load: Load, segments: list[int], memory_bytes: int, allocate: Callable[[int], memoryview]
    ) -> None:
        sizes = {
            (program.segment, name): size
            for program in load.programs
            if program.segment in segments
            for name, size in program.owned.items()
        }
        total = sum(sizes.values())
        if total > memory_bytes:
            raise GraphError(
                f"the segments' parameters take {total} bytes, this worker offers {memory_bytes}: "
                "raise `farflung join --memory` or use more workers"
            )
        self._load = load
        self.buffers: dict[Key, memoryview] = {k: allocate(n) if n else EMPTY for k, n in sizes.items()}
        self._expected: dict[Key, int] = dict.fromkeys(sizes, 0)
        self._retracted: dict[Key, set[int]] = {key: set() for key in sizes}
        self._missing = {key: size for key, size in sizes.items() if size}
        self._digests: dict[Key, bytes] = {}

    @property
    def size(self) -> int:
        """Bytes of all tensors together."""
        return sum(map(len, self.buffers.values()))

    @property
    def full(self) -> bool:
        """Whether every byte has been received."""
        return not self._missing

    def opening(self, peer: str, header: SliceHeader) -> memoryview | None:
        """The memory for one slice; None if it is of another attempt.

        Raises
        ------
        ProtocolError
            The peer is not the submitter, the tensor is unknown, or the slice is not the tensor's next one.
        """
        load = self._load
        if header.job != load.job or header.attempt < load.attempt:
            return None
        key = (header.segment, header.name)
        buffer = self.buffers.get(key)
        if peer != load.submitter or buffer is None or header.total != len(buffer) or not header.bytes:
            raise ProtocolError(
                f"{peer} sent a slice of {header.name[:60]!r}, which the plan does not expect"
            )
        is_due = header.offset == self._expected[key] or header.offset in self._retracted[key]
        if not is_due or header.offset + header.bytes > header.total:
            raise ProtocolError(f"{peer} sent a slice of {header.name[:60]!r} out of order")
        if self._digests.setdefault(key, header.sha256) != header.sha256:
            raise ProtocolError(f"{peer} sent {header.name[:60]!r} with two digests")
        self._retracted[key].discard(header.offset)
        self._expected[key] = max(self._expected[key], header.offset + header.bytes)
        return buffer[header.offset : header.offset + header.bytes]

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        self._retracted[header.segment, header.name].add(header.offset)

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice has been received completely."""
        key = (header.segment, header.name)
        self._missing[key] -= header.bytes
        if not self._missing[key]:
            del self._missing[key]

    def verify(self) -> str | None:
        """Compare each tensor with its digest; returns the problem as text, or None. Blocks for seconds."""
        for key, buffer in self.buffers.items():
            if len(buffer) and hashlib.sha256(buffer).digest() != self._digests.get(key):
                return f"the state of {key[1]!r} was damaged on the way (its SHA-256 differs)"
        return None
