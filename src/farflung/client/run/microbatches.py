"""The microbatches of a job in the order of its units, loaded ahead in a separate thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from farflung.client.api.job import Dataset, Job
from farflung.data import spread_indices
from farflung.errors import FarflungError, JobError
from farflung.opdag.graph import LOSS_WEIGHT, Graph
from farflung.runtime.indices import IGNORED
from farflung.schedule import Unit

if TYPE_CHECKING:
    from torch import Tensor

LOADED_AHEAD = 4
LEAST_WAITS, LEAST_SECONDS = 16, 10.0
"""Before so many microbatches and seconds, what data costs is not known: the pipeline fills first."""
SLOW_SHARE = 0.5
"""A data set that is waited for longer than this share of the time is named as the bottleneck."""


class Microbatch(NamedTuple):
    """One microbatch of a unit: contiguous tensors by input name, shared with no other object."""

    unit: Unit
    number: int
    tensors: dict[str, Tensor]


class DataWaits:
    """How long the feeder waited for data, of all the time since it asked first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._waited = 0.0
        self._count = 0
        self._is_told = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait inside for one microbatch."""
        begin = self._clock()
        self._begun = begin if self._begun is None else self._begun
        yield
        self._waited += self._clock() - begin
        self._count += 1

    def bottleneck(self, readers: int) -> str:
        """That the data set is too slow and what helps, once; empty if it is not, or not known yet."""
        elapsed = 0.0 if self._begun is None else self._clock() - self._begun
        if self._is_told or self._count < LEAST_WAITS or elapsed < LEAST_SECONDS:
            return ""
        if self._waited < SLOW_SHARE * elapsed:
            return ""
        self._is_told = True
        return (
            f"the data set is the bottleneck: {100 * self._waited / elapsed:.0f} % of the time went by"
            f" waiting for it; read with more threads, Job(num_workers={4 * readers}), or make items faster"
        )


class Microbatches:
    """Loads a job's microbatches by unit and number, and checks them against the captured inputs.

    Training step t uses the items of `SampleOrder.indices(t)`, split in order. Every evaluation uses the same
    items, spread evenly over the validation set.
    """

    def __init__(self, job: Job, graph: Graph) -> None:
        self._job = job
        self._size = job.microbatch_size
        self._order = job.order()
        self._held_out = (
            spread_indices(len(job.held_out), job.validation_microbatches * self._size)
            if job.held_out is not None
            else []
        )
        self._types = {entry.name: graph.values[entry.value] for entry in graph.inputs_of("input")}

    def load(self, unit: Unit, number: int) -> Microbatch:
        """Read and collate the items of microbatch `number` of `unit`.

        Raises
        ------
        JobError
            An item cannot be read, the batch differs in types or shapes from the captured one, or a
            microbatch has no target that counts.
        """
        if self._job.counted is not None:
            return self._load_unit(unit)[number]
        return self._microbatch(unit, number, self._read(unit, number))

    def _load_one(self, unit: Unit, number: int) -> list[Microbatch]:
        return [self.load(unit, number)]

    def _load_unit(self, unit: Unit) -> list[Microbatch]:
        """All of a unit at once, because the weight of each depends on the targets of all."""
        batches = [self._read(unit, number) for number in range(unit.microbatches)]
        batches = weighted(self._job, batches)
        return [self._microbatch(unit, number, batch) for number, batch in enumerate(batches)]

    def _read(self, unit: Unit, number: int) -> dict[str, Tensor]:
        indices = self._order.indices(unit.step) if unit.train else self._held_out
        part = indices[number * self._size : (number + 1) * self._size]
        data = self._job.items if unit.train else self._job.held_out
        assert data is not None
        return read_batch(data, "data" if unit.train else "validation", part, self._job)

    def _microbatch(self, unit: Unit, number: int, batch: dict[str, Tensor]) -> Microbatch:
        return Microbatch(unit, number, {name: self._fit(name, batch) for name in self._types})

    async def stream(
        self, first: int = 0, waits: DataWaits | None = None
    ) -> AsyncGenerator[Microbatch, None]:
        """Yield the microbatches from unit `first` on, in order; at most a few are loaded ahead.

        `waits` learns how long each was waited for.
        """
        loads, waits = self._loads(first), waits or DataWaits()
        readers = self._job.readers
        most = max(LOADED_AHEAD, 2 * readers) if self._job.counted is None else max(2, readers)
        with _threads(readers) as threads:
            ahead: deque[Future[list[Microbatch]]] = deque()
            while True:
                while len(ahead) < most and (load := next(loads, None)) is not None:
                    ahead.append(threads.submit(load))
                if not ahead:
                    return
                with waits.one():
                    microbatches = await asyncio.wrap_future(ahead.popleft())
                for microbatch in microbatches:
                    yield microbatch

    def _loads(self, first: int) -> Iterator[Callable[[], list[Microbatch]]]:
        """What is loaded at a time: a microbatch, or a unit if its microbatches have weights."""
        for unit in self._job.training().units().since(first):
            if self._job.counted is not None:
                yield partial(self._load_unit, unit)
                continue
            for number in range(unit.microbatches):
                yield partial(self._load_one, unit, number)

    def _fit(self, name: str, batch: dict[str, Tensor]) -> Tensor:
        if name not in batch:
            raise JobError(f"a batch lacks {name!r}, which the captured model reads: found {sorted(batch)}")
        tensor, wanted = batch[name], self._types[name]
        found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        expected = (wanted.dtype, wanted.shape_at(self._size))
        if found != expected:
            raise JobError(
                f"{name!r} of a batch is {found[0]} of shape {found[1]}, captured with {expected[0]} of shape"
                f" {expected[1]}: every batch must be alike, pad with Job(collate=)"
            )
        own = tensor.detach().cpu().contiguous()
        # A user's collate may return the same buffer every time; the default one makes new tensors.
        return own.clone() if self._job.has_own_collate else own


def weighted(job: Job, batches: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The batches of one unit with the weights of their losses, if the job counts targets.

    The loss of batch m, the mean over its n_m targets, is weighted M n_m / N: the mean of all M is then that
    over all N targets.

    Raises
    ------
    JobError
        A batch has no target, so that its mean loss is not a number; or `counted` raises.
    """
    if job.counted is None:
        return list(batches)
    import torch

    counts = [_count(job.counted, batch) for batch in batches]
    if 0 in counts:
        raise JobError(
            "a microbatch has no target that counts (Job(counted=)), so its mean loss is not a number: leave"
            " out items whose labels are all masked, or make microbatches larger"
        )
    scales = [len(counts) * count / sum(counts) for count in counts]
    return [
        {**batch, LOSS_WEIGHT: torch.full((len(next(iter(batch.values()))),), scale)}
        for batch, scale in zip(batches, scales, strict=True)
    ]


def _count(counted: str | Callable[[dict[str, Tensor]], Tensor | int], batch: dict[str, Tensor]) -> int:
    if isinstance(counted, str):
        if counted not in batch:
            raise JobError(f"Job(counted={counted!r}) names no tensor of a batch, which has {sorted(batch)}")
        return int((batch[counted] != IGNORED).sum())
    try:
        found = int(counted(batch))
    except Exception as error:
        raise JobError(f"Job(counted=) raised {type(error).__name__}: {error}") from error
    if found < 0:
        raise JobError(f"Job(counted=) must return a number of targets, found {found}")
    return found


def read_batch(data: Dataset, name: str, indices: Sequence[int], job: Job) -> dict[str, Tensor]:
    """Collate the items `indices` of a data set; a `JobError` names an item that cannot be read."""
    items = []
    for index in indices:
        try:
            items.append(data[index])
        except FarflungError:
            raise
        except Exception as error:
            raise JobError(f"{name}[{index}] raised {type(error).__name__}: {error}") from error
    try:
        return job.collated(items)
    except FarflungError:
        raise
    except Exception as error:
        raise JobError(f"Job(collate=) raised {type(error).__name__}: {error}") from error


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """An executor of so many threads, which the end of the block stops without waiting for them."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="farflung-data")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
