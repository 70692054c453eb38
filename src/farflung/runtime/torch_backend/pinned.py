"""Pinned memory of the host: a device copies to and from it directly, while both sides do other work."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

GRAIN = 4096
"""Buffers have a multiple of this size in bytes, so that values of almost one size share them."""


def pinned_memory(size: int) -> Tensor:
    """Fresh pinned memory, as flat uint8. The operating system takes a millisecond or more to lock it."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def padded(size: int) -> int:
    """The bytes of a buffer for a value of `size` bytes."""
    return size + -size % GRAIN


class _Free(NamedTuple):
    """A buffer that can be taken once `after` has passed: the event of the copy that reads it, if any."""

    buffer: Tensor
    after: Any

    @property
    def is_ready(self) -> bool:
        return self.after is None or self.after.query()


class PinnedRing:
    """Buffers of pinned memory that are used again and again, `most_bytes` of them altogether.

    A buffer that is taken and never given back stays lost, so a ring lives as long as one job. Any thread may
    call it.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._free: dict[int, list[_Free]] = {}
        self._lock = threading.Lock()

    def take(self, size: int) -> Tensor | None:
        """Take a buffer of at least `size` bytes; None if too many are in use."""
        size = padded(size)
        with self._lock:
            found = self._pop_ready(size)
            if found is not None:
                return found
            while self._held_bytes + size > self._most_bytes:
                if not self._drop_another(size):
                    return None
            self._held_bytes += size
        return pinned_memory(size)

    def give_back(self, buffer: Tensor, after: Any = None) -> None:
        """Give a buffer back, which may be taken again once the event `after`, if any, has passed."""
        with self._lock:
            self._free.setdefault(len(buffer), []).append(_Free(buffer, after))

    def _pop_ready(self, size: int) -> Tensor | None:
        free = self._free.get(size, [])
        at = next((at for at, each in enumerate(free) if each.is_ready), None)
        return None if at is None else free.pop(at).buffer

    def _drop_another(self, size: int) -> bool:
        """Free a buffer of another size; says whether there was one."""
        for other in [other for other in self._free if other != size]:
            if self._pop_ready(other) is not None:
                self._held_bytes -= other
                return True
        return False
