"""Copies between a device and the host beside its computation: four streams, and events that order them.

*Compute* is the compute thread's stream, on which segments run; the default one. Values leave on *out* and
arrive on *in*, and codecs run on *codec*. The compute thread only records events and queues copies; the codec
thread waits for them (docs/explanation/backends.md, "Copies beside the computation"). PyTorch's allocator
keeps memory apart by stream, so a tensor that another stream reads is marked with `record_stream`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farflung.opdag.form import Form
from farflung.runtime.torch_backend import tensors
from farflung.runtime.torch_backend.pinned import PinnedRing
from farflung.runtime.torch_backend.tensors import flat

Event: TypeAlias = Any
Stream: TypeAlias = Any


def has_streams(device: torch.device) -> bool:
    """Whether copies to and from the device can run beside what it computes."""
    if device.type in ("cpu", "mps"):  # MPS has one stream, and no pinned memory
        return False
    module = torch.get_device_module(device)
    return hasattr(module, "Stream") and hasattr(module, "Event")


class Crossing:
    """The streams of one device of this process; made on the compute thread.

    What crosses before the first `begin_job`, or beyond what that allows, does so through ordinary memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self.compute: Stream = self._module.current_stream(device)
        self.out, self._in, self.codec = (self._module.Stream(device) for _ in range(3))
        self.ring = PinnedRing()
        self._copies_at_once = False
        self._queued: Event = None

    def begin_job(self, most_bytes: int, dense: bool) -> None:
        """Allow this much pinned memory; if all values are `dense`, copy them as soon as they leave."""
        self.ring = PinnedRing(most_bytes)
        self._copies_at_once = dense

    def end_job(self) -> None:
        """Give the pinned memory back."""
        self.ring = PinnedRing()

    def event(self, stream: Stream) -> Event:
        """An event that passes when everything that is queued on `stream` now is done."""
        made = self._module.Event(blocking=True) if self.device.type == "cuda" else self._module.Event()
        made.record(stream)  # a blocking one lets the thread that waits sleep
        return made

    def moment(self) -> Event:
        """An event that says when everything that is queued on *compute* now was done."""
        made = self._module.Event(enable_timing=True)
        made.record(self.compute)
        return made

    @contextmanager
    def as_of(self, queued: Event) -> Iterator[None]:
        """Let what leaves inside leave once the event `queued` has passed, not all that was queued since."""
        self._queued = queued
        try:
            yield
        finally:
            self._queued = None

    def leave(self, tensor: Tensor) -> Leaving:
        """A computed value on its way to the host or to a codec; only on the compute thread."""
        leaving = Leaving(self, tensor.detach(), self._queued or self.event(self.compute))
        if self._copies_at_once:
            leaving.start()
        return leaving

    def arrive(self, received: memoryview, form: Form) -> Arriving:
        """A received value on its way to the device."""
        return self.bring(tensors.over(received, form))

    def bring(self, on_host: Tensor) -> Arriving:
        """A copy on the device of a contiguous tensor of the host, which may change once this returns."""
        source = flat(on_host).view(torch.uint8)
        ring = self.ring
        buffer = ring.take(len(source)) if len(source) else None
        if buffer is not None:
            buffer[: len(source)].copy_(source)
        with self.on(self._in):
            target = torch.empty(on_host.shape, dtype=on_host.dtype, device=self.device)
            if buffer is not None:
                flat(target).view(torch.uint8).copy_(buffer[: len(source)], non_blocking=True)
            else:
                flat(target).view(torch.uint8).copy_(source)
        arriving = Arriving(self, target, self.event(self._in))
        if buffer is not None:
            ring.give_back(buffer, arriving.there)
        return arriving

    def decoded(self, tensor: Tensor) -> Arriving:
        """What a codec has queued on its stream."""
        return Arriving(self, tensor, self.event(self.codec))

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Queue on this stream what is done inside."""
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context


class Leaving:
    """A value that leaves the device, once `computed` has passed; see `Crossing.leave`."""

    def __init__(self, crossing: Crossing, tensor: Tensor, computed: Event) -> None:
        self._crossing = crossing
        self._ring = crossing.ring
        self._tensor = tensor
        self._computed = computed
        self._buffer: Tensor | None = None
        self._copied: Event = None
        self._bytes: memoryview | None = None

    def start(self) -> None:
        """Queue the copy into pinned memory, if the ring has some."""
        source = flat(self._tensor).view(torch.uint8)
        self._buffer = self._ring.take(len(source)) if len(source) else None
        if self._buffer is not None:
            with self._on(self._crossing.out):
                self._buffer[: len(source)].copy_(source, non_blocking=True)
            self._copied = self._crossing.event(self._crossing.out)

    def memory(self) -> memoryview:
        """The value's bytes, row-major, in ordinary memory; this thread waits for the copy."""
        if self._bytes is None:
            if self._buffer is None:
                self.start()
            self._bytes = tensors.memory(self._copy() if self._buffer is None else self._taken(self._buffer))
        return self._bytes

    def to_codec(self) -> Tensor:
        """The value itself, for what this thread queues on the codec's stream."""
        with self._on(self._crossing.codec):
            return self._tensor

    def _taken(self, buffer: Tensor) -> Tensor:
        self._copied.synchronize()
        whole = torch.empty(self._tensor.nbytes, dtype=torch.uint8)
        whole.copy_(buffer[: len(whole)])
        self._ring.give_back(buffer)
        self._buffer = None
        return whole

    def _copy(self) -> Tensor:
        with self._on(self._crossing.out):
            return flat(self._tensor).view(torch.uint8).cpu()

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        """Let `stream` read the value inside, once it is computed."""
        stream.wait_event(self._computed)
        self._tensor.record_stream(stream)
        with self._crossing.on(stream):
            yield


class Arriving:
    """A value that arrives on the device; `there` passes once it is there."""

    def __init__(self, crossing: Crossing, tensor: Tensor, there: Event) -> None:
        self._crossing = crossing
        self._tensor = tensor
        self.there = there
        self._is_awaited = False

    def here(self) -> Tensor:
        """The value, for what the compute thread queues from now on."""
        if not self._is_awaited:
            self._crossing.compute.wait_event(self.there)
            self._tensor.record_stream(self._crossing.compute)
            self._is_awaited = True
        return self._tensor

    def __add__(self, other: Tensor | Arriving) -> Tensor:
        return self.here() + here(other)

    def __radd__(self, other: Tensor) -> Tensor:
        return other + self.here()


def here(value: Tensor | Arriving) -> Tensor:
    """The value on the compute stream, whether it was computed here or arrives."""
    return value.here() if isinstance(value, Arriving) else value


class Deferred:
    """The gradients of a backward pass, which its autograd thread finds and the compute thread sends.

    The pass may still run when they are sent: each leaves as of the moment when it was found.
    """

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._found: list[tuple[int, Tensor, Event]] = []

    def note(self, value: int, gradient: Tensor) -> None:
        """Note a gradient and what is queued so far; on any thread."""
        self._found.append((value, gradient, self._crossing.event(self._crossing.compute)))

    def send(self, sink: Callable[[int, Tensor], None]) -> None:
        """Send what was noted, in that order; on the compute thread."""
        for value, gradient, queued in self._found:
            with self._crossing.as_of(queued):
                sink(value, gradient)


class DeviceTimer:
    """See `runtime.task_timer.TaskTimer`: times what tasks queue on *compute*, of which the host sees little.

    A unit's time is read after its losses and square sums, so its tasks are done by then. Time for which the
    stream waits within a task, as for a value on its way, counts.
    """

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._tasks: deque[tuple[Event, Event]] = deque()
        self._taken: list[tuple[Event, Event]] = []

    @contextmanager
    def task(self) -> Iterator[None]:
        """Queue an event before and one after the task; one that raises does not count."""
        begun = self._crossing.moment()
        yield
        self._tasks.append((begun, self._crossing.moment()))

    def aside(self) -> AbstractContextManager[None]:
        """Nothing: what the host does beside the device takes none of its time."""
        return nullcontext()

    def take(self) -> float:
        """The seconds of tasks that are done; the others count the next time."""
        self._taken = []
        while self._tasks and self._tasks[0][1].query():
            self._taken.append(self._tasks.popleft())
        return sum(float(begun.elapsed_time(ended)) for begun, ended in self._taken) / 1e3

    def periods(self) -> list[tuple[float, float]]:
        """See `TaskTimer`: by a moment of the device that the host sees pass."""
        if not self._taken:
            return []
        seen = self._crossing.moment()
        seen.synchronize()
        now = time.perf_counter()
        return [
            tuple(now - float(event.elapsed_time(seen)) / 1e3 for event in pair)  # type: ignore[misc]
            for pair in self._taken
        ]

    def reset(self) -> None:
        """Forget the tasks so far."""
        self._tasks.clear()
