"""Choose the items of each step, and collate items into a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from farflung.errors import JobError
from farflung.seeds import mix
from farflung.text import kind_of, raised

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Collate = Callable[[Sequence[Any]], Mapping[str, "Tensor"]]
"""Turns items into a batch: named tensors whose first dimension is the batch."""


class SampleOrder:
    """Maps a global sample index to an item of the data set: a new seeded permutation for each epoch.

    Any position can be computed directly, so a run can resume anywhere. The last incomplete batch of an epoch
    is dropped: sample s belongs to step s // batch. The order depends on the arguments alone, not on machine
    or version, because it sorts the raw bits of a counter-based generator.

    Parameters
    ----------
    length
        Items of the data set.
    batch
        Samples of one step over all microbatches; at most `length`.
    seed
        The job's seed, from 0 to 2**63 - 1.
    sampler
        An iterable of the items of an epoch, torch's or your own; it replaces the permutation.
        Where it has an attribute `generator`, a `torch.Generator` seeded by `seed` and epoch stands there
        while it is drawn from; `set_epoch` is called if there is one. So each epoch can be drawn again,
        unless it uses other random numbers. No generator of the process or the user is touched.

    Raises
    ------
    JobError
        There are fewer items than one batch needs.
    """

    def __init__(self, length: int, batch: int, seed: int, sampler: Iterable[int] | None = None) -> None:
        self.seed = seed
        self._sampler = sampler
        self._drawn: dict[int, list[int]] = {}
        self._remembering = Lock()
        available = length if sampler is None else len(self._draw(0))
        if not 1 <= batch <= available:
            raise JobError(f"one batch needs {batch} items (at least 1), the data has {available}")
        self.length = length
        self.batch = batch
        self.steps_per_epoch = available // batch

    @property
    def kind(self) -> str:
        """What orders the items: the type of the sampler, or "seeded permutation"."""
        return "seeded permutation" if self._sampler is None else type(self._sampler).__qualname__

    def indices(self, step: int) -> list[int]:
        """The `batch` items of step `step`; microbatch m takes the m-th slice of equal size."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        start = step_of_epoch * self.batch
        if self._sampler is None:
            order = _permutation(self.length, self.seed, epoch)
            return [int(index) for index in order[start : start + self.batch]]
        found = self._draw(epoch)[start : start + self.batch]
        if len(found) < self.batch:
            raise JobError(
                f"the sampler ran dry in epoch {epoch + 1}: it gave fewer items than in the first one, where"
                f" {self.steps_per_epoch} steps had {self.batch} each"
            )
        return found

    def _draw(self, epoch: int) -> list[int]:
        """The items of an epoch by the sampler; the last two are remembered."""
        with self._remembering:
            if epoch not in self._drawn:
                while len(self._drawn) > 1:
                    del self._drawn[next(iter(self._drawn))]
                self._drawn[epoch] = draw(self._sampler, self.seed, epoch)
            return self._drawn[epoch]


def spread_indices(length: int, count: int) -> list[int]:
    """`count` items spread evenly over a data set of `length`: the same at every evaluation."""
    return [position * length // count for position in range(count)]


def collate(
    items: Sequence[Any], collate: Collate | None = None, names: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Stack items, dicts of tensors, into one batch, or call the user's `collate`.

    With `names` the items, or what `collate` returns, are tuples with one part for each name.

    Returns
    -------
    Tensors by name, each (len(items), ...).

    Raises
    ------
    JobError
        An item is not a dict of tensors, an item has other names or shapes than the first, or the user's
        `collate` did not return a dict of tensors.
    """
    import torch

    if collate is not None:
        batch = _named(collate(items), names, "collate returned")
        _require_tensors(batch, "collate returned")
        return dict(batch)
    items = [_named(item, names, "an item of the data is") for item in items]
    for item in items:
        _require_tensors(item, "an item of the data is")
        if item.keys() != items[0].keys():
            raise JobError(
                f"every item must have the same names, found {sorted(items[0])} and {sorted(item)}"
            )
    for name in items[0]:
        _require_alike(name, [item[name] for item in items])
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def draw(sampler: Any, seed: int, epoch: int) -> list[int]:
    """The items that a sampler gives in an epoch, see `SampleOrder`; raises JobError if it raises."""
    with _seeded(sampler, mix(seed, epoch), epoch):
        try:
            return [int(index) for index in sampler]
        except Exception as error:
            raise JobError(raised("the sampler", error)) from error


def require_own_generator(name: str, sampler: Any, seed: int) -> None:
    """Check that a sampler draws no number from PyTorch's own generator; it is drawn from once.

    Raises
    ------
    JobError
        It does. Threads that read items use that generator at the same time, so an epoch could not be drawn
        again.
    """
    import torch

    before = torch.get_rng_state()
    with _seeded(sampler, mix(seed, 0), 0):
        next(iter(sampler), None)
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise JobError(
            f"{name}: {kind_of(sampler)} draws from PyTorch's own generator, so that an epoch cannot be drawn"
            " again: give it an attribute `generator` and use that, as in torch.randperm(n,"
            " generator=self.generator)"
        )


_DRAWING = Lock()
"""One thread at a time draws, because several orders can have the same sampler."""


@contextmanager
def _seeded(sampler: Any, seed: int, epoch: int) -> Iterator[None]:
    """A sampler at the beginning of an epoch; it draws from another generator than its own meanwhile."""
    import torch

    with _DRAWING:
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)
        if not hasattr(sampler, "generator"):
            yield
            return
        own, sampler.generator = sampler.generator, torch.Generator().manual_seed(seed % 2**63)
        try:
            yield
        finally:
            sampler.generator = own


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    import numpy as np

    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(length)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


_NO_COLUMN = "; of a column, such as ds['input_ids'], give the data set itself"


def _named(found: Any, names: Sequence[str] | None, what: str) -> Any:
    """A tuple as a dict with these names."""
    if not isinstance(found, tuple | list):
        return found
    if names is None:
        raise JobError(
            f"{what} {kind_of(found)} of {len(found)}: a dict of tensors by argument name was expected; name"
            f" its parts with Job(names=(...)){_NO_COLUMN if isinstance(found, list) else ''}"
        )
    if len(found) != len(names):
        raise JobError(f"{what} {kind_of(found)} of {len(found)}, Job(names=) has {len(names)}")
    return dict(zip(names, found, strict=True))


def _require_tensors(found: object, what: str) -> None:
    from torch import Tensor

    expected = "a dict of tensors by argument name was expected"
    if not isinstance(found, Mapping):
        raise JobError(f"{what} {kind_of(found)}: {expected}{_NO_COLUMN}")
    if not found:
        raise JobError(f"{what} empty: {expected}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            others = {key: one for key, one in found.items() if not isinstance(one, Tensor)}
            raise JobError(f"{what} a dict with {name!r}: {type(value).__name__}: {expected}{_cure(others)}")


def _cure(others: Mapping[Any, Any]) -> str:
    """What makes tensors of the parts of an item that are none: text, lists of numbers, arrays or numbers."""
    if text := [name for name, value in others.items() if isinstance(value, str)]:
        return f"; text must become numbers by a tokenizer, or be left out: data.remove_columns({text})"
    if any(isinstance(value, list) for value in others.values()):
        collate = "Pairs" if others.keys() >= {"prompt", "chosen", "rejected"} else "Pad"
        return f"; lists of numbers become one with Job(collate=farflung.data.{collate}(length))"
    if any(isinstance(value, int | float) or hasattr(value, "__array__") for value in others.values()):
        return "; torch.as_tensor makes one; so does data.with_format('torch') of the package datasets"
    return ""


def _require_alike(name: str, tensors: list[Tensor]) -> None:
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise JobError(
            f"items of one batch must have equal shapes, {name!r} has {' and '.join(map(str, shapes[:3]))}:"
            " pad them with Job(collate=farflung.data.Pad(length))"
        )
    dtypes = sorted({str(tensor.dtype) for tensor in tensors})
    if len(dtypes) > 1:
        raise JobError(f"items of one batch must have one dtype, {name!r} has {' and '.join(dtypes)}")
