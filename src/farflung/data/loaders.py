"""A `torch.utils.data.DataLoader` as a job reads it: data set, order, collate and number of readers.

A job reads any item at any time by its number, because it goes on in the middle and may read the items of a
past step again after a fault. So a loader is never iterated; its parts are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from farflung.data.sampling import draw, require_own_generator
from farflung.errors import JobError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from farflung.data.sampling import Collate


class LoaderParts(NamedTuple):
    """What a job takes from a loader; without `sampler` the job's own order, a permutation by its seed."""

    dataset: Any
    collate: Collate
    sampler: Any
    num_workers: int


def is_loader(data: object) -> bool:
    """Whether it is torch's `DataLoader`."""
    from torch.utils.data import DataLoader

    return isinstance(data, DataLoader)


def parts_of(name: str, loader: DataLoader[Any], batch: int) -> LoaderParts:
    """The parts of a loader of batches of `batch` items; `name` is the job's field.

    Raises
    ------
    JobError
        It has a part that a job cannot use; the message says what to pass instead.
    """
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

    if type(loader.batch_sampler) is not BatchSampler:
        raise JobError(f"{name} is a DataLoader without batch_size: give it batch_size={batch} and a sampler")
    if loader.batch_size != batch:
        raise JobError(
            f"{name} is a DataLoader of batches of {loader.batch_size}, the job has {batch}: make them equal"
        )
    if loader.worker_init_fn is not None:
        raise JobError(f"{name} is a DataLoader with worker_init_fn; threads read its items: leave it out")
    sampler = None if isinstance(loader.dataset, IterableDataset) else loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    collate = cast("Collate", loader.collate_fn)
    return LoaderParts(loader.dataset, collate, None if shuffles else sampler, max(1, loader.num_workers))


def is_same_collate(one: Collate | None, other: Collate | None) -> bool:
    """Whether batches are collated alike: torch's default and none stack tensors."""
    from torch.utils.data import default_collate

    return (one or default_collate) == (other or default_collate)


def sampled_items(parts: LoaderParts, seed: int) -> Any:
    """The items that a loader reads in one epoch, as a data set; those of a random sampler by `seed`.

    Raises
    ------
    JobError
        Its sampler draws from PyTorch's own generator.
    """
    from torch.utils.data import SequentialSampler, Subset

    if parts.sampler is None or type(parts.sampler) is SequentialSampler:
        return parts.dataset
    require_own_generator("validation", parts.sampler, seed)
    return Subset(parts.dataset, draw(parts.sampler, seed, 0))


def require_numbered(name: str, data: object, kind: str) -> None:
    """Raise JobError unless items can be read by their numbers: those of a `datasets.DatasetDict` can not.

    A column of a `datasets.Dataset` has numbers, but the model takes all columns.
    """
    if (column := getattr(data, "column_name", None)) is not None and hasattr(data, "source"):
        raise JobError(
            f"{name} is the column {column!r} of a data set: give the data set itself, whose items have every"
            " column that the model takes"
        )
    if isinstance(data, Mapping) and 0 not in data:
        keys = ", ".join(repr(key) for key in list(data)[:5])
        one = f", such as data[{next(iter(data))!r}]" if data else ""
        raise JobError(
            f"{name} is a {kind} of {keys or 'nothing'}, where items have numbers: if these are the splits of"
            f" a data set, give one of them{one}"
        )
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return
    raise JobError(
        f"{name} must be a data set with __len__ and __getitem__, or one with __iter__, found {kind}"
    )
