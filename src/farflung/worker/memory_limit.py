"""A limit by the kernel on the memory of a worker's process, behind the estimate of what a job needs.

`RLIMIT_DATA` counts what a process may write and no file backs: its heap, tensors and stacks, touched or not.
Unlike `RLIMIT_AS` it leaves out libraries and the address space that glibc only reserves, so that the limit
can be near what is really used. Where it is reached, an allocation fails: the job ends with one line, and the
worker goes on. A control group would end the whole process.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from farflung.worker.machine import usable_cores

ROOM_BYTES = 2**29
"""For links, kernels that are compiled, and Python, beside what an owner offers to jobs."""

ROOM_SHARE = 0.25
"""Of what an owner offers: estimates and allocators err by less (docs/measurements/memory.md)."""

_THREADS = 40
_THREAD_BYTES = 2**24
"""A stack and what glibc takes for a thread. Each thread that computes may have helpers on all cores."""

_STATUS = Path("/proc/self/status")


def limit_memory(offered_bytes: int) -> int | None:
    """Limit this process to what it has now, `offered_bytes` for jobs, and room for all else.

    Returns the limit in bytes; None where the system has no such limit (other than Linux), or a lower one is
    in force.
    """
    taken = _taken_bytes()
    if taken is None:
        return None
    import resource

    threads = _THREADS + 2 * usable_cores()
    limit = taken + int(offered_bytes * (1 + ROOM_SHARE)) + ROOM_BYTES + threads * _THREAD_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if any(known not in (resource.RLIM_INFINITY, -1) and known < limit for known in (soft, hard)):
        return None
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        return limit
    return None


def _taken_bytes() -> int | None:
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None
