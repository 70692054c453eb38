"""The mean of the rows seen for each key, kept bit-equal on two machines.

Rows of one step may arrive in any order, so they are summed as integers, where order does not matter. The
mean is updated when the step is applied, by operations whose rounding IEEE 754 specifies.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.floats import Float32
from farflung.errors import CodecError

Keys = NDArray[np.int64]

_UNIT = 2.0**-22
_MOST = 2.0**18
MOST_ROWS = 2**22
"""Limit for one step: this many rows of the largest magnitude add up without overflow."""
_ROWS_AT_ONCE = 256


class _Snapshot(msgspec.Struct, frozen=True):
    """A snapshot."""

    keys: int
    width: int
    version: int
    means: bytes
    visits: bytes


class RunningMean:
    """Means of `width` numbers for keys 0 to `keys` - 1, initially zero.

    In each step, a key's mean moves towards the mean of its rows by 1/n, where n is the number of steps that
    had the key, at most `horizon`, so that it follows a model that changes.
    """

    def __init__(self, keys: int, width: int, horizon: int) -> None:
        self._horizon = horizon
        self._means = np.zeros((keys, width), np.float32)
        self._visits = np.zeros(keys, np.int64)
        self._sums: NDArray[np.int64] | None = None
        self._counts = np.zeros(keys, np.int64)
        self.version = 0

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self._means.shape[1]

    def of(self, keys: Keys) -> Float32:
        """The mean for each key, as of the last commit: (keys, width)."""
        return self._means[keys]

    def add_rows(self, keys: Keys, rows: Float32) -> None:
        """Add rows of the current step; rows that are not finite are ignored.

        Raises
        ------
        CodecError
            The step has more than 2^22 rows.
        """
        if self._counts.sum() + len(keys) > MOST_ROWS:
            raise CodecError(
                f"a step has more than {MOST_ROWS} rows of one value: send it without a reference"
            )
        if self._sums is None:
            self._sums = np.zeros(self._means.shape, np.int64)
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            self._add(keys[start : start + _ROWS_AT_ONCE], rows[start : start + _ROWS_AT_ONCE], self._sums)

    def commit(self) -> None:
        """Update the means of the keys that the step had."""
        seen = np.flatnonzero(self._counts)
        if len(seen) and self._sums is not None:
            means = self._sums[seen] * (_UNIT / self._counts[seen])[:, None]
            self._visits[seen] += 1
            rates = 1.0 / np.minimum(self._visits[seen], self._horizon)
            old = self._means[seen].astype(np.float64)
            new = (old + (means - old) * rates[:, None]).astype(np.float32)
            self._means[seen] = new
            self.version = zlib.crc32(new.data, zlib.crc32(seen.data, self.version))
        self.discard()

    def discard(self) -> None:
        """Discard the rows of the current step."""
        if self._sums is not None:
            self._sums[np.flatnonzero(self._counts)] = 0
        self._counts.fill(0)

    def snapshot(self) -> bytes:
        """Means, visits and version as of the last commit."""
        keys, width = self._means.shape
        stored = _Snapshot(keys, width, self.version, self._means.tobytes(), self._visits.tobytes())
        return msgspec.msgpack.encode(stored)

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot; CodecError if it has other keys or another width, or is damaged."""
        try:
            stored = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise CodecError(f"a snapshot of running means cannot be read: {error}") from error
        keys, width = self._means.shape
        sizes = (len(stored.means), len(stored.visits))
        if (stored.keys, stored.width) != (keys, width) or sizes != (self._means.nbytes, self._visits.nbytes):
            raise CodecError(
                f"a snapshot of running means is of {stored.keys} keys and width {stored.width}, "
                f"expected {keys} and {width}: it belongs to another value"
            )
        means = np.frombuffer(stored.means, np.float32).reshape(keys, width).copy()
        visits = np.frombuffer(stored.visits, np.int64).copy()
        if not _is_valid(means, visits, stored.version):
            raise CodecError("a snapshot of running means has impossible contents: it is damaged")
        self.discard()
        self._means, self._visits, self.version = means, visits, stored.version

    def _add(self, keys: Keys, rows: Float32, sums: NDArray[np.int64]) -> None:
        usable = np.isfinite(rows).all(axis=1)
        keys, rows = keys[usable], rows[usable]
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        unique, starts = np.unique(keys[order], return_index=True)
        numbers = np.rint(np.clip(rows[order].astype(np.float64), -_MOST, _MOST) / _UNIT).astype(np.int64)
        sums[unique] += np.add.reduceat(numbers, starts, axis=0)
        self._counts[unique] += np.diff(starts, append=len(keys))


def _is_valid(means: Float32, visits: NDArray[np.int64], version: int) -> bool:
    """Whether commits can have led to this state: a key that no step had still has the mean zero."""
    if not np.isfinite(means).all() or np.abs(means).max(initial=0.0) > _MOST or not 0 <= version < 2**32:
        return False
    return bool(visits.min(initial=0) >= 0 and not means[visits == 0].any())
