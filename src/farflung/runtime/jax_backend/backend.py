"""JAX as a backend of a worker: on the CPU, or whatever device JAX finds first.

What this process's device sustains, measured.

Compiled programs on disk: a worker that starts again need not compile what it ran before.

Reading takes a tenth of the time that compiling does (docs/measurements/models.md). What lies there
is code, so nobody but the user may write it.
"""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import Offer
from farflung.runtime.coding import Coding
from farflung.runtime.jax_backend import arrays
from farflung.runtime.jax_backend.arrays import AnyArray
from farflung.runtime.jax_backend.lowering import lacks
from farflung.runtime.jax_backend.segment import JaxSegment
from farflung.runtime.jax_backend.verify import verify_segment
from farflung.runtime.training import Training

SIZE = 1024
SECONDS = 0.25


def measure_tflops() -> float:
    """TFLOP/s of float32 matrix products with all that this process may use, in about a quarter second.

    The median of many products, so that one which was interrupted does not count. A device for which one
    product takes longer than that does two, and compiling comes first.
    """
    left, right = (jnp.ones((SIZE, SIZE), jnp.float32) for _ in range(2))
    product = jax.jit(jnp.matmul).lower(left, right).compile()
    jax.block_until_ready(product(left, right))
    took: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < deadline:
        started = time.perf_counter()
        jax.block_until_ready(product(left, right))
        took.append(time.perf_counter() - started)
    return 2 * SIZE**3 / statistics.median(took) / 1e12


MOST_BYTES = 2**30
WORTH_SECONDS = 0.3  # what compiles faster is not kept


def keep_in(folder: Path) -> None:
    """Keep what is compiled from now on in `folder`, if it can be made; for the whole process."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_SECONDS)


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove what was written first, until no more than `most_bytes` are left."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another worker of this user may be at it too
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size


class JaxBackend:
    """See `runtime.backend.Backend`; arrays are JAX's, or NumPy's views of what has come over a link.

    What is compiled is kept in the folder `kept`, if one is given.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        if kept is not None:
            keep_in(kept)

    def offer(self) -> Offer:
        device = jax.devices()[0]
        on_cpu = device.platform == "cpu"
        name = (platform.processor() or platform.machine()) if on_cpu else device.device_kind
        return Offer(device.platform, name, psutil.cpu_count() or 1, f"jax {jax.__version__}", lacks())

    def measure_tflops(self) -> float:
        return measure_tflops()

    def allocate(self, size: int) -> memoryview:
        return arrays.allocate(size)

    def array(self, buffer: memoryview, form: Form) -> np.ndarray:
        return arrays.over(buffer, form)

    def memory(self, array: AnyArray) -> memoryview:
        return arrays.memory(array)

    def verify(self, segment: Segment, batch: int) -> None:
        verify_segment(segment, batch)

    def runner(
        self,
        segment: Segment,
        state: Mapping[str, AnyArray],
        training: Training,
        recompute: bool = False,
    ) -> JaxSegment:
        if self._kept is not None:
            prune(self._kept)
        return JaxSegment(segment, state, training, recompute)

    def coding(self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment]) -> Coding:
        return Coding(worker, plan, training, segments)
