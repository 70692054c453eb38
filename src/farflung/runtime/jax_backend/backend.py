"""JAX as a backend of a worker, on the CPU or the first device that JAX finds.

It measures the device's speed, and caches compiled programs on disk, so that a worker that starts again need
not compile what it ran before. Reading takes a tenth of the time of compiling (docs/measurements/models.md).
The cache contains code, so only the user may write to it.
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

from farflung.errors import GraphError
from farflung.opdag.buckets import BUCKETS
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import Offer
from farflung.runtime.coding import Coding
from farflung.runtime.jax_backend import arrays
from farflung.runtime.jax_backend.arrays import AnyArray
from farflung.runtime.jax_backend.kernels import kernel_digest, threads
from farflung.runtime.jax_backend.lowering import lacks
from farflung.runtime.jax_backend.segment import JaxSegment
from farflung.runtime.jax_backend.verify import verify_segment
from farflung.runtime.task_timer import HostTimer
from farflung.runtime.training import Training

SIZE = 1024
SECONDS = 0.25


def measure_tflops() -> float:
    """TFLOP/s of float32 matrix products with everything that this process may use, in about a quarter
    second.

    The median of many products, so that an interrupted one does not count. A slow device runs two, and
    compiling comes first.
    """
    left, right = (jnp.ones((SIZE, SIZE), jnp.float32) for _ in range(2))
    product = jax.jit(jnp.matmul).lower(left, right).compile()
    jax.block_until_ready(product(left, right))
    seconds: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while not seconds or time.perf_counter() < deadline:
        started = time.perf_counter()
        jax.block_until_ready(product(left, right))
        seconds.append(time.perf_counter() - started)
    return 2 * SIZE**3 / statistics.median(seconds) / 1e12


MOST_BYTES = 2**30
WORTH_SECONDS = 0.3  # programs that compile faster are not cached


def use_cache(folder: Path) -> None:
    """Cache what is compiled from now on in `folder`, if it can be created; for the whole process."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_SECONDS)


def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the oldest files until at most `most_bytes` are left."""
    found: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another worker of this user may prune it at the same time
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
    """See `runtime.backend.Backend`; arrays are JAX's, or NumPy's views of received bytes.

    Compiled programs are cached in the folder `cache`, if given.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        if cache is not None:
            use_cache(cache)

    def offer(self) -> Offer:
        device = jax.devices()[0]
        on_cpu = device.platform == "cpu"
        name = (platform.processor() or platform.machine()) if on_cpu else device.device_kind
        framework = f"jax {jax.__version__}"
        return Offer(
            device.platform, name, psutil.cpu_count() or 1, framework, (*lacks(), BUCKETS), threads()
        )

    def measure_tflops(self) -> float:
        return measure_tflops()

    def measure_rates(self) -> None:
        """None: only float32 is measured."""

    def timer(self) -> HostTimer:
        return HostTimer()

    def kernel_digest(self) -> str:
        return kernel_digest()

    def allocate(self, size: int) -> memoryview:
        return arrays.allocate(size)

    overlaps = False

    def array(self, buffer: memoryview, form: Form) -> np.ndarray:
        return arrays.over(buffer, form)

    enter = array

    def memory(self, array: AnyArray) -> memoryview:
        return arrays.memory(array)

    leave = memory

    def warm_up(self) -> None:
        """Do nothing: the first program waits for its compilation."""

    def failure(self, error: Exception) -> None:
        """None: XLA says the rest itself."""

    def release(self) -> None:
        """Do nothing: XLA keeps its pool."""

    def verify(self, segment: Segment, batch: int) -> None:
        if segment.buckets:
            raise GraphError("the JAX backend runs batches of one length: give Pad one, or join with PyTorch")
        verify_segment(segment, batch)

    def runner(
        self,
        segment: Segment,
        state: Mapping[str, AnyArray],
        training: Training,
        recompute: bool = False,
    ) -> JaxSegment:
        if self._cache is not None:
            prune(self._cache)
        return JaxSegment(segment, state, training, recompute)

    def coding(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment], first: int = 0
    ) -> Coding:
        return Coding(worker, plan, training, segments, first)
