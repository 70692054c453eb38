"""The state of a job's segments on its way in: named slices into memory that the segments will use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from farflung.errors import GraphError, ProtocolError
from farflung.protocol.messages import Load
from farflung.transport.headers import SliceHeader

Key = tuple[int, str]  # segment, name
EMPTY = memoryview(bytearray())


class StateReceiver:
    """Memory for every owned tensor of this worker's segments, filled by slices in any order of tensors.

    Slices of one tensor come in order. The contents of `buffers` count once `verify` passed. `allocate` gives
    the memory for a tensor, `memory_bytes` is what all of them may take.
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
                f"the segments' parameters take {total} bytes, this worker gives {memory_bytes}: "
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
        """Bytes of all tensors."""
        return sum(map(len, self.buffers.values()))

    @property
    def full(self) -> bool:
        """Whether every byte has come."""
        return not self._missing

    def opening(self, peer: str, header: SliceHeader) -> memoryview | None:
        """The memory for one slice; None if it is of another attempt.

        Raises
        ------
        ProtocolError
            Not the submitter, an unknown tensor, or a slice that is not the tensor's next one.
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
        """A slice did not come whole, since its link was lost: it may come once more."""
        self._retracted[header.segment, header.name].add(header.offset)

    def complete(self, header: SliceHeader) -> None:
        """One slice's bytes are all here."""
        key = (header.segment, header.name)
        self._missing[key] -= header.bytes
        if not self._missing[key]:
            del self._missing[key]

    def verify(self) -> str | None:
        """Hold each tensor against its digest; the problem in words, or None. Not for an event loop."""
        for key, buffer in self.buffers.items():
            if len(buffer) and hashlib.sha256(buffer).digest() != self._digests.get(key):
                return f"the state of {key[1]!r} did not arrive as it was sent (SHA-256 differs)"
        return None
