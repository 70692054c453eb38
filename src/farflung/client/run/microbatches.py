"""The microbatches of a job in the order of its units, loaded ahead in other threads."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from farflung.client.api.job import Dataset, Job
from farflung.client.run.index_check import IndexCheck
from farflung.data import spread_indices
from farflung.data.streams import StreamItems
from farflung.errors import FarflungError, JobError
from farflung.opdag.buckets import bucket_of, in_buckets, input_shapes
from farflung.opdag.graph import LOSS_WEIGHT, Graph
from farflung.runtime.indices import IGNORED
from farflung.schedule import Unit
from farflung.text import and_more, raised

if TYPE_CHECKING:
    from torch import Tensor

LOADED_AHEAD = 4
LEAST_WAITS, LEAST_SECONDS = 16, 10.0
"""Before so many microbatches and seconds, what data costs is not known: the pipeline fills first."""
SLOW_SHARE = 0.5
"""A data set that is waited for longer than this share of the time is named as the bottleneck."""
NO_TARGET = (
    "a microbatch has no target that counts (Job(counted=)), so its mean loss is not a number: leave"
    " out items whose labels are all masked, or make microbatches larger"
)


class Microbatch(NamedTuple):
    """One microbatch of a unit: contiguous tensors by input name, shared with no other object.

    Their shapes are those of a `bucket` of the graph (`opdag.buckets`).
    """

    unit: Unit
    number: int
    tensors: dict[str, Tensor]
    bucket: int = 0


class _Read(NamedTuple):
    """Model inputs of one microbatch without their weight, and its targets if the job counts them, else 0."""

    tensors: dict[str, Tensor]
    targets: int
    bucket: int


class DataFailed(JobError):
    """A microbatch of the unit with this number cannot be loaded or used; those of earlier units can."""

    def __init__(self, message: str, unit: int) -> None:
        super().__init__(message)
        self.unit = unit


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
    items, spread evenly over the validation set: so many microbatches (`evaluated`), or as many as the job
    asks for.
    """

    def __init__(self, job: Job, graph: Graph, evaluated: int = 0) -> None:
        self._job = job
        self._size = job.microbatch_size
        self._units = job.training().evaluating_on(evaluated).units()
        self._order = job.order()
        self._held_out = (
            spread_indices(len(job.held_out), self._units.validation_microbatches * self._size)
            if job.held_out is not None
            else []
        )
        types = {entry.name: graph.values[entry.value] for entry in graph.inputs_of("input")}
        self._types = {name: kind.dtype for name, kind in types.items()}
        self._shapes = input_shapes(graph, self._size)
        self._checks = [IndexCheck(one, self._size) for one in in_buckets(graph)]

    def load_unit(self, unit: Unit) -> list[Microbatch]:
        """Read and collate all microbatches of `unit`; `stream` holds fewer in memory.

        Raises
        ------
        JobError
            An item cannot be read, a batch differs in types or shapes from the captured one, it has a token
            or class that the model lacks, or a microbatch has no target that counts.
        """
        read = [self._read(unit, number) for number in range(unit.microbatches)]
        scales = loss_scales([one.targets for one in read]) if self._job.counted is not None else []
        return [self._microbatch(unit, number, one, scales) for number, one in enumerate(read)]

    async def stream(
        self, first: int = 0, waits: DataWaits | None = None, last: int | None = None
    ) -> AsyncGenerator[Microbatch, None]:
        """Yield the microbatches of units `first` to `last`, or to the end, in order.

        At most a few are loaded ahead, and if targets are counted a training step more: its microbatches
        cannot be weighted before all are read. An evaluation's targets are counted first, by reading its
        items once for that. `waits` learns how long each microbatch was waited for.

        Raises
        ------
        DataFailed
            As `load_unit` raises JobError, once all microbatches before that one were taken.
        """
        parts, waits = self._parts(first, last), waits or DataWaits()
        readers, counts = self._job.readers, self._job.counted is not None
        most = max(LOADED_AHEAD, 2 * readers) + (self._job.microbatches if counts else 0)
        ahead: deque[tuple[Unit, int, Future[_Read]]] = deque()
        targets: list[Future[int]] = []
        scales: list[float] = []
        with _threads(readers) as threads:
            while True:
                while len(ahead) < most and (part := next(parts, None)) is not None:
                    unit, number = part
                    if counts and not unit.train and not targets:
                        targets = [threads.submit(self._targets, unit, m) for m in range(unit.microbatches)]
                    ahead.append((unit, number, threads.submit(self._read, unit, number)))
                if not ahead:
                    return
                unit, number, reading = ahead[0]
                with waits.one(), _of_unit(unit):
                    if counts and number == 0 and unit.train:
                        own = [future for of, _, future in ahead if of == unit]
                        scales = loss_scales([(await asyncio.wrap_future(one)).targets for one in own])
                    elif counts and number == 0:
                        scales = loss_scales([await asyncio.wrap_future(one) for one in targets])
                    read = await asyncio.wrap_future(reading)
                ahead.popleft()
                yield self._microbatch(unit, number, read, scales)

    def _parts(self, first: int, last: int | None) -> Iterator[tuple[Unit, int]]:
        for unit in self._units.since(first):
            if last is not None and unit.number > last:
                return
            for number in range(unit.microbatches):
                yield unit, number

    def _read(self, unit: Unit, number: int) -> _Read:
        batch = self._batch(unit, number)
        targets = 0 if self._job.counted is None else _count(self._job.counted, batch)
        if self._job.counted is not None and not targets:
            raise JobError(NO_TARGET)
        name, indices = "data" if unit.train else "validation", self._indices(unit, number)
        try:
            bucket = self._bucket(batch)
            tensors = {n: self._fit(n, batch, bucket) for n in self._types if n != LOSS_WEIGHT}
        except JobError as error:
            raise JobError(f"{error} (items {and_more(list(map(str, indices)), 8)} of {name})") from None
        self._checks[bucket].require(tensors, [f"{name}[{index}]" for index in indices])
        return _Read(tensors, targets, bucket)

    def _bucket(self, batch: Mapping[str, Tensor]) -> int:
        """The bucket whose shapes a batch has; 0 if it has those of none, which `_fit` will refuse."""
        if len(self._shapes) == 1:
            return 0
        known = [{n: s for n, s in one.items() if n != LOSS_WEIGHT} for one in self._shapes]
        return bucket_of(known, {name: tuple(tensor.shape) for name, tensor in batch.items()}) or 0

    def _targets(self, unit: Unit, number: int) -> int:
        """The targets of a microbatch, which is dropped."""
        assert self._job.counted is not None
        return _count(self._job.counted, self._batch(unit, number))

    def _batch(self, unit: Unit, number: int) -> dict[str, Tensor]:
        part = self._indices(unit, number)
        data = self._job.items if unit.train else self._job.held_out
        assert data is not None
        return read_batch(data, "data" if unit.train else "validation", part, self._job)

    def _indices(self, unit: Unit, number: int) -> list[int]:
        """The items of a microbatch."""
        indices = self._order.indices(unit.step) if unit.train else self._held_out
        return indices[number * self._size : (number + 1) * self._size]

    def _microbatch(self, unit: Unit, number: int, read: _Read, scales: Sequence[float]) -> Microbatch:
        tensors = _with_weight(read.tensors, scales[number]) if scales else read.tensors
        return Microbatch(unit, number, tensors, read.bucket)

    def _fit(self, name: str, batch: dict[str, Tensor], bucket: int) -> Tensor:
        if name not in batch:
            raise JobError(f"a batch lacks {name!r}, which the captured model reads: found {sorted(batch)}")
        tensor = batch[name]
        found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        expected = (self._types[name], self._shapes[bucket][name])
        if found != expected:
            raise JobError(
                f"{name!r} of a batch is {found[0]} of shape {found[1]}, captured with {expected[0]} of shape"
                f" {expected[1]}: every batch must be alike, pad with Job(collate=farflung.data.Pad(length))"
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
    scales = loss_scales([_count(job.counted, batch) for batch in batches])
    return [_with_weight(batch, scale) for batch, scale in zip(batches, scales, strict=True)]


def loss_scales(targets: Sequence[int]) -> list[float]:
    """The weights of a unit's losses by the targets of its microbatches, see `weighted`; their mean is 1."""
    if 0 in targets:
        raise JobError(NO_TARGET)
    return [len(targets) * count / sum(targets) for count in targets]


def _with_weight(batch: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    import torch

    return {**batch, LOSS_WEIGHT: torch.full((len(next(iter(batch.values()))),), scale)}


def _count(counted: str | Callable[[dict[str, Tensor]], Tensor | int], batch: dict[str, Tensor]) -> int:
    if isinstance(counted, str):
        if counted not in batch:
            raise JobError(f"Job(counted={counted!r}) names no tensor of a batch, which has {sorted(batch)}")
        return int((batch[counted] != IGNORED).sum())
    try:
        found = int(counted(batch))
    except Exception as error:
        raise JobError(raised("Job(counted=)", error)) from error
    if found < 0:
        raise JobError(f"Job(counted=) must return a number of targets, found {found}")
    return found


def read_batch(
    data: Dataset | StreamItems,
    name: str,
    indices: Sequence[int],
    job: Job,
    length: int | None = None,
    truncate: bool = False,
) -> dict[str, Tensor]:
    """Collate the items `indices` of a data set; a `JobError` names an item that cannot be read.

    `length` and `truncate` are as in `Job.collated`.
    """
    items = []
    for index in indices:
        try:
            items.append(data[index])
        except FarflungError:
            raise
        except Exception as error:
            raise JobError(raised(f"{name}[{index}]", error)) from error
    try:
        return job.collated(items, length, truncate)
    except Exception as error:
        unlike = _unlike(items, job)
        where = f"{' and '.join(f'{name}[{indices[each]}]' for each in unlike)}: " if unlike else ""
        if isinstance(error, FarflungError):
            raise JobError(f"{where}{error}") from None
        raise JobError(raised(f"{where}Job(collate=)", error)) from error


def _unlike(items: Sequence[Any], job: Job) -> list[int]:
    """The first item that is no batch by itself, or unlike most others; with equally many, one of each."""
    forms: list[Any] = []
    for number, item in enumerate(items):
        try:
            batch = job.collated([item], job.lengths[-1] if job.lengths else None)
        except Exception:
            return [number]
        forms.append({name: (tensor.dtype, tensor.shape) for name, tensor in batch.items()})
    rarest = min(forms.count(form) for form in forms)
    firsts = [number for number, form in enumerate(forms) if forms.index(form) == number]
    return [] if len(firsts) == 1 else [n for n in firsts if forms.count(forms[n]) == rarest][:2]


@contextmanager
def _of_unit(unit: Unit) -> Iterator[None]:
    """An error of the user's data in this block is one of this unit."""
    try:
        yield
    except FarflungError as error:
        raise DataFailed(str(error), unit.number) from error


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """An executor of so many threads, which the end of the block stops without waiting for them."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="farflung-data")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
