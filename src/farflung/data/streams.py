"""Streams as data: an `IterableDataset` of torch or of `datasets`, whose items get numbers as they come.

A job reads items by number, because it goes on in the middle, and may read those of past steps again after a
fault. So item n is the nth that the stream gives, counted on over its epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any

from farflung.errors import JobError
from farflung.text import count_of, kind_of, raised

MOST_CURSORS = 2
"""One for the run, and one for past steps that are read again meanwhile."""


def is_stream(data: object) -> bool:
    """Whether items come only one after the other: there is no `len`, or it is torch's `IterableDataset`."""
    from torch.utils.data import IterableDataset

    if isinstance(data, IterableDataset):
        return True
    return hasattr(data, "__iter__") and not (hasattr(data, "__len__") and hasattr(data, "__getitem__"))


class StreamItems:
    """The items of a stream by number, each read by iterating.

    When the stream ends, the next epoch begins, after `set_epoch` if it has that. An item that comes later is
    reached by reading on, or by the stream's own `skip` where a run begins. For one that came before the
    newest `kept`, the stream is read from its beginning again. Its first epoch must have `least` items.
    Threads may share it.

    Raises
    ------
    JobError
        It is an iterator, which can be read once only.
    """

    def __init__(self, name: str, source: Any, kept: int, least: int = 1) -> None:
        if isinstance(source, Iterator):
            raise JobError(
                f"{name} is an iterator, which can be read only once: pass an object whose __iter__ begins"
                " anew, such as a torch IterableDataset"
            )
        self._name = name
        self._source = source
        self._kept = kept
        self._least = least
        self._cursors: list[_Cursor] = []  # the one that was used last is the last
        self._lock = Lock()

    @property
    def source(self) -> Any:
        """The stream itself."""
        return self._source

    def __getitem__(self, number: int) -> Any:
        """Item `number`, from 0; raises JobError if the stream gives no more, or too few at first."""
        with self._lock:
            cursor = max(filter(self._is_near(number), self._cursors), key=lambda one: one.next, default=None)
            if cursor is None:
                cursor = _Cursor(self._name, self._source, number, self._kept, self._least)
            others = [one for one in self._cursors if one is not cursor]
            self._cursors = others[1 - MOST_CURSORS :]
            found = cursor.item(number)
            self._cursors.append(cursor)  # not one whose iterator has raised
            return found

    def _is_near(self, number: int) -> Callable[[_Cursor], bool]:
        """Whether a cursor can reach the item; a long way is skipped instead, if the stream can do so."""
        farthest = self._kept if hasattr(self._source, "skip") else number
        return lambda one: one.first <= number <= one.next + farthest

    def forget(self) -> None:
        """Read every item anew."""
        with self._lock:
            self._cursors.clear()


class _Cursor:
    """One pass over the epochs of a stream. Items `first` to before `next` are in memory."""

    def __init__(self, name: str, source: Any, number: int, kept: int, least: int) -> None:
        self._name = name
        self._source = source
        self._kept = max(1, kept)
        self._least = least
        self._taken = 0  # of the first epoch, unless a part of it was skipped
        self._items: deque[Any] = deque()
        self._epoch = 0
        self.next = 0
        self._iterator = self._begin(max(0, number - self._kept))  # threads may ask for earlier ones, too

    @property
    def first(self) -> int:
        """The earliest item that can be given without another pass."""
        return self.next - len(self._items)

    def item(self, number: int) -> Any:
        while self.next <= number:
            self._items.append(self._read())
            self.next += 1
            if len(self._items) > self._kept:
                self._items.popleft()
        return self._items[number - self.first]

    def _begin(self, number: int) -> Iterator[Any]:
        """An iterator at item `number`, by the stream's own `skip` if its first epoch is so long."""
        self._set_epoch()
        if number and callable(skip := getattr(self._source, "skip", None)):
            iterator = iter(skip(number))
            with suppress(StopIteration):
                self._items.append(next(iterator))
                self.next = number + 1
                self._least = 0
                return iterator
        self._iterator = iter(self._source)
        for _ in range(number):
            self._read()
        self.next = number
        return self._iterator

    def _read(self) -> Any:
        """The next item, of the next epoch if this one is over."""
        try:
            item = next(self._iterator)
            self._taken += 1
            return item
        except StopIteration:
            self._require_enough()
            self._epoch += 1
        self._set_epoch()
        self._iterator = iter(self._source)
        try:
            return next(self._iterator)
        except StopIteration:
            raise JobError(
                f"{self._name} ran dry: {kind_of(self._source)} gave no item in epoch {self._epoch + 1}"
            ) from None

    def _require_enough(self) -> None:
        """Refuse a first epoch that fills no batch: its items would stand in one several times."""
        if not self._epoch and 0 < self._taken < self._least:
            raise JobError(
                f"{self._name} is a stream of {count_of(self._taken, 'item')}, one batch needs {self._least}:"
                " make the batch smaller, or let the stream repeat its items itself"
            )

    def _set_epoch(self) -> None:
        if callable(set_epoch := getattr(self._source, "set_epoch", None)):
            set_epoch(self._epoch)


class StreamOrder:
    """The order of a stream, with the interface of `SampleOrder`: step t has items t * batch and on."""

    kind = "stream"

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def indices(self, step: int) -> list[int]:
        """The `batch` items of step `step`."""
        return list(range(step * self.batch, (step + 1) * self.batch))


def first_items(name: str, source: Any, count: int) -> list[Any]:
    """The first items of a stream, at most `count`."""
    iterator = iter(source)
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            raise JobError(raised(f"{name}[{len(found)}]", error)) from error
    return found
