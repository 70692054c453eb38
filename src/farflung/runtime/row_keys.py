"""Which key each row of a microbatch has, for codecs that subtract the mean of a key's rows.

A key is a whole number that the model is fed, such as a token, less all multiples of how many keys there are.
Who is fed it knows it, and everybody else by what comes written with keys: they go along a chain of links
that are all written so.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from farflung.codec.running_mean import Keys

Place: TypeAlias = tuple[int, int]  # unit, microbatch
_Origin: TypeAlias = tuple[int, int, int]  # whether fed, source segment, value

_WHOLE: dict[str, type[np.integer]] = {"int64": np.int64, "int32": np.int32, "int16": np.int16}


class RowKeys:
    """Of one worker, until their unit is over; `keys` is how many there are, at most 256."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._known: dict[Place, dict[_Origin, NDArray[np.uint8]]] = {}

    def fed(self, place: Place, value: int, data: memoryview, dtype: str) -> None:
        """A model input has come; nothing is learned from one that is no whole numbers."""
        if dtype in _WHOLE:
            numbers = np.frombuffer(data, _WHOLE[dtype])
            self._put(place, (1, -1, value), numbers % self._keys)

    def read(self, place: Place, source: int, value: int, keys: Keys) -> None:
        """A segment's value has come with keys."""
        self._put(place, (0, source, value), keys)

    def of(self, place: Place, rows: int) -> Keys | None:
        """The keys of a value with so many rows, if there are so many.

        Those that came with values go before inputs, and lower numbers before higher ones, so that it does
        not matter what came first.
        """
        known = sorted(self._known.get(place, {}).items())
        return next((keys.astype(np.int64) for _, keys in known if len(keys) == rows), None)

    def forget(self, unit: int) -> None:
        """Units up to this one are over."""
        self._known = {place: known for place, known in self._known.items() if place[0] > unit}

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return sum(keys.nbytes for known in self._known.values() for keys in known.values())

    def _put(self, place: Place, origin: _Origin, keys: NDArray[np.integer]) -> None:
        self._known.setdefault(place, {})[origin] = keys.astype(np.uint8)
