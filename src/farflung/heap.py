"""Make glibc retain freed memory: a worker's next task needs as much again.

glibc returns the end of its heap to the kernel as soon as some of it is free, and each thread has a heap of
its own, in pieces that are returned whole. So the tensors of each step got new pages, with a page fault for
each (docs/measurements/memory.md, "Freed memory"). With another C library nothing changes.

And let Python look for cycles less often while a command imports a framework and captures a model: what they
make stays, and whole collections of it took a fifth of the time of `farflung check`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # <malloc.h>
_NEVER = 2**31 - 1
_LARGEST = 2**25
"""Bytes: glibc refuses more. What is larger has pages of its own, which go back with it."""
_LARGE = 2**20 + 2**16
"""Bytes. Kernels that work on a piece at a time take 1 MB for it, again and again, and profit from the heap
(`workload.footprint.UPDATED_AT_ONCE`).
"""
_USUAL = gc.get_threshold()


def keep_freed_memory() -> bool:
    """Have this process keep what it frees, in one heap for all its threads; says whether that was possible.

    To be called before a thread is started.
    """
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _NEVER))
    return _tell(*wanted)


def give_large_tensors_their_own_pages(wanted: bool = True) -> bool:
    """Let tensors of more than 1 MB have pages of their own from now on, or only those of more than 32 MB.

    In the heap each that comes and goes leaves a hole between those that stay, which the next one may not
    fit: a worker took 1.3 times what it had said. But pages of their own cost a fault each, every time.
    """
    return _tell((_MMAP_THRESHOLD, _LARGE if wanted else _LARGEST))


def _tell(*options: tuple[int, int]) -> bool:
    library = _glibc()
    return library is not None and all(library.mallopt(option, value) == 1 for option, value in options)


def give_freed_memory_back() -> None:
    """Give every page that is free now to the kernel: of a job that is over."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def collect_rarely() -> None:
    """Let Python's whole collections wait for ten times as many new objects; those of young ones stay."""
    young, middle, old = _USUAL
    gc.set_threshold(young, middle, 10 * old)


def collect_as_usual() -> None:
    """Collect as Python does unasked: for what runs for long and must free tensors soon."""
    gc.set_threshold(*_USUAL)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
