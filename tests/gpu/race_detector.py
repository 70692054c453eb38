"""The race detector of PyTorch, told of each op, copy, event and free on the accelerator that is not there.

`torch.cuda._sanitizer` finds two accesses to one storage, of which one writes, that no event orders. It is
told of storages by numbers that are never used again, because a host's allocator gives an address away again
at once. The host is one more stream: what it queues comes after what it did before, on any stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

from torch import Tensor
from torch.cuda import _sanitizer
from torch.multiprocessing.reductions import StorageWeakRef

COMPUTE = _sanitizer.DEFAULT_STREAM_ID
HOST = -1


class _Storage(NamedTuple):
    """A storage of the device or of pinned memory, and the streams that are marked as using it."""

    number: int
    alive: StorageWeakRef
    home: int
    marked: set[int]


class _Arguments(_sanitizer.ArgumentHandler):
    """Which storages an op reads and writes, by its schema."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self._detector = detector

    def _handle_argument(
        self,
        value: Any,
        is_write: bool,
        metadata_only: bool,
        name: str | None = None,
        is_output: bool = False,
    ) -> None:
        held = getattr(value, "held", None)
        if held is None:
            return
        number = self._detector.number_of(held)
        if is_write:
            self.dataptrs_written.add(number)
        elif not metadata_only:
            self.dataptrs_read.add(number)
        self.tensor_aliases.setdefault(number, []).append(name or "")


P, R = ParamSpec("P"), TypeVar("R")


def _alone(
    method: Callable[Concatenate[Detector, P], R],
) -> Callable[Concatenate[Detector, P], R]:
    """Let one thread at a time call a method."""

    @wraps(method)
    def locked(self: Detector, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class Detector:
    """What was found: `races` in words, the first line of each."""

    def __init__(self) -> None:
        self.races: list[str] = []
        self._handler = _sanitizer.EventHandler()
        self._storages: dict[int, _Storage] = {}
        self._numbers: dict[int, _Storage] = {}
        self._shared: dict[int, _Storage] = {}
        self._last = 0
        self._stream = COMPUTE
        self._handler._handle_stream_creation(HOST)
        self._lock = threading.RLock()

    @_alone
    def number_of(self, held: Tensor) -> int:
        """The number of a tensor's storage."""
        storage = held.untyped_storage()
        found = self._storages.get(storage._cdata)
        if found is None or found.alive.expired():
            self._last += 1
            found = _Storage(self._last, StorageWeakRef(storage), self._stream, set())
            self._storages[storage._cdata] = self._numbers[found.number] = found
        return found.number

    @_alone
    def ran(self, func: Any, args: Any, kwargs: Any, made: Any, stream: int) -> None:
        """An op was queued on `stream`, or done by the host."""
        self._stream = stream
        self.find_freed()
        if stream != HOST:
            self._after_host(stream)
        found = _Arguments(self)
        found.parse_inputs(func._schema, args, kwargs, is_factory=False)
        found.parse_outputs(func._schema, made, is_factory=False)
        for number in found.tensor_aliases:
            if self._numbers[number].home not in (stream, HOST):
                self._shared[number] = self._numbers[number]
        self._launch(
            stream, found.dataptrs_read - found.dataptrs_written, found.dataptrs_written, func, found
        )

    def _launch(self, stream: int, read: set[int], written: set[int], func: Any, found: _Arguments) -> None:
        if not read | written:
            return
        with patch.object(_sanitizer.traceback.StackSummary, "extract", lambda *_, **__: []):
            errors = self._handler._handle_kernel_launch(
                stream, read, written, set(), func._schema.name, found.tensor_aliases
            )
        for error in errors:
            now, before = error.current_access, error.previous_access
            self.races.append(
                f"{now.operator} on stream {now.stream} is not ordered after"
                f" {before.operator} on stream {before.stream}"
            )

    def _after_host(self, stream: int) -> None:
        syncs = self._handler.syncs
        syncs._ensure_stream_exists(stream)
        states = syncs.current_sync_states
        syncs._state_wait_for_other(states[stream], states[HOST])

    @_alone
    def recorded(self, event: int, stream: int) -> None:
        """An event was recorded on a stream."""
        self._after_host(stream)
        self._handler._handle_event_record(event, stream)

    @_alone
    def waits(self, stream: int, event: int) -> None:
        """A stream was made to wait for an event."""
        self._handler._handle_event_wait(event, stream)

    @_alone
    def synchronized(self, event: int) -> None:
        """The host has seen that an event has passed."""
        self._handler._handle_event_synchronization(event)

    @_alone
    def drained(self, stream: int) -> None:
        """The host has waited for all that was queued on a stream."""
        self._handler._handle_stream_synchronization(stream)

    @_alone
    def marked(self, held: Tensor, stream: int) -> None:
        """A tensor was marked as in use on a stream."""
        self._numbers[self.number_of(held)].marked.add(stream)

    @_alone
    def find_freed(self) -> None:
        """Find storages that were freed while a stream other than their own could still use them.

        The allocator gives memory to the next tensor of the stream that it was allocated on. That comes after
        whatever this stream has waited for.
        """
        for number in [number for number, found in self._shared.items() if found.alive.expired()]:
            storage = self._shared.pop(number)
            known = self._handler.tensors_accessed.accesses.pop(storage.number, None)
            if known is None:
                continue
            for access in [*known.reads, *([known.write] if known.write else [])]:
                if access.stream in (storage.home, HOST) or access.stream in storage.marked:
                    continue
                if not self._handler.syncs.is_ordered_after(storage.home, access.seq_num, access.stream):
                    self.races.append(
                        f"memory of stream {storage.home} is freed while {access.operator} on stream"
                        f" {access.stream} may use it"
                    )
