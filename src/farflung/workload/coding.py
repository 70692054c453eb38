"""What memory codecs and noise on what leaves home need besides segments, for both planner and worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from farflung.codec import Reference
from farflung.codec.catalogue import KEYS, gives_mask, needs_mask, recipe
from farflung.codec.families.axes import MOST_WIDTH
from farflung.opdag.form import Form
from farflung.plans import FP32_BYTES
from farflung.schedule import MOST_WAITING
from farflung.workload.arrays import Floats, Touched

_WORKING_BYTES, _SPARSE_BYTES = 20, 33
"""What a codec works with for each element of one tensor, at most; positions take most of it. Measured of all
families: 18 (along axes), and 32 where a payload keeps nearly every element, which a peer may say."""
_LEARNED_BYTES = 24
"""For each pair of features: axes, those that come next, their inverse, moments and sums."""
_SUBTRACTING_BYTES = 16
_SAMPLING_BYTES = 16
"""As there is what is read back, what it differs by, and both in float32."""
_MEAN_BYTES = 12
"""Of a reference: for each element, as there is a difference and what the writer reads back; for each key and
column."""


class CodingBytes(NamedTuple):
    """Bytes that codecs need for values that cross to other workers.

    `held` is needed for each microbatch in the window, `learned` for the whole run, `working` while a value
    is encoded or decoded. Over several values the first two add up, and the largest `working` counts.
    """

    held: float = 0
    learned: float = 0
    working: float = 0

    def plus(self, other: CodingBytes) -> CodingBytes:
        """Both together."""
        return CodingBytes(
            self.held + other.held, self.learned + other.learned, max(self.working, other.working)
        )

    def bytes(self, window: int) -> float:
        """All bytes with `window` microbatches in flight."""
        return self.held * window + self.learned + self.working


NOTHING = CodingBytes()


@dataclass(frozen=True)
class CodingMemory:
    """The memory that the codecs of a job need, for any choice of codecs on its links.

    Attributes
    ----------
    masks
        Whether both ends store the mask of an activation until its gradient has passed.
    learning
        The number of codecs that learn; each has a state for each value and direction.
    subtracting
        Whether one of them subtracts a reference.
    working_bytes
        Working memory for each element of the tensor that is encoded or decoded.
    noised
        Whether noise is added to what is sent, in a copy that waits for its link.
    """

    masks: bool
    learning: int
    subtracting: bool
    working_bytes: int
    noised: bool = False

    @staticmethod
    @lru_cache(maxsize=64)
    def of(codebook: tuple[str, ...], samples: bool, noised: bool = False) -> CodingMemory | None:
        """The memory of a job with this codebook, which tries all codecs if it `samples`; None without
        codecs and noise.

        Raises
        ------
        CodecError
            There is no such codec.
        """
        if not codebook:
            return CodingMemory(False, 0, False, 0, noised) if noised else None
        gives, needs = any(map(gives_mask, codebook)), any(map(needs_mask, codebook))
        subtracting = any(isinstance(recipe(name).memory, Reference) for name in codebook)
        working = _SPARSE_BYTES if gives or needs else _WORKING_BYTES
        return CodingMemory(
            masks=gives and needs,
            learning=sum(recipe(name).learns for name in codebook),
            subtracting=subtracting,
            working_bytes=working + _SUBTRACTING_BYTES * subtracting + _SAMPLING_BYTES * samples,
            noised=noised,
        )

    def value(self, form: Form) -> CodingBytes:
        """Bytes for one value that goes to one segment of another worker, at either end."""
        if not form.is_codable:
            return NOTHING
        held = -(-form.elements // 8) * self.masks + form.rows * self.subtracting
        learned = self.learning * _LEARNED_BYTES * form.features**2 if form.features <= MOST_WIDTH else 0
        learned += _MEAN_BYTES * KEYS * form.width * self.subtracting
        held += form.nbytes * self.noised
        working = (2 + MOST_WAITING) * form.nbytes * (self.working_bytes > 0)
        return CodingBytes(held, 2 * learned, working + self.working_bytes * form.elements)

    def values(self, forms: Iterable[Form]) -> CodingBytes:
        """Bytes for several values; one codec thread handles all of them."""
        together = NOTHING
        for form in forms:
            together = together.plus(self.value(form))
        return together


_FEEDBACK_BYTES = 8
"""For each element, while error feedback encodes: with the residual, and as it is read back."""
_SUM_COPIES = 5
"""As large as a gradient, for each sum that a worker codes: the residual and the one that is pending,
payloads until they have arrived, and, at the owner, its sum and what it reads back of it."""


def sum_memory(sizes: Iterable[float]) -> CodingBytes:
    """Bytes that codecs need for sums of gradients of these sizes (float32), at most."""
    found = list(sizes)
    most = max(found, default=0.0)
    working = 2 + MOST_WAITING + (_SPARSE_BYTES + _FEEDBACK_BYTES) / FP32_BYTES
    return CodingBytes(0, _SUM_COPIES * sum(found), working * most)


class Crossing(NamedTuple):
    """A value that codecs may write if a cut separates it from a reader; `readers` are ascending."""

    made: int
    readers: tuple[int, ...]
    form: Form


class CodedRanges:
    """The memory of a job's codecs for ranges of one workload.

    It is at least what a worker computes (`runtime.coding`). A value goes to one segment for each reader, up
    to `most_receivers`, although readers may share a segment. Values that pass over a range count for its
    largest tensor.
    """

    def __init__(
        self, nodes: int, values: Sequence[Crossing], memory: CodingMemory, most_receivers: int
    ) -> None:
        sizes = [memory.value(value.form) for value in values]
        self._most_receivers = most_receivers
        self._made = np.array([value.made for value in values], dtype=np.int64)
        self._last = np.array([value.readers[-1] for value in values], dtype=np.int64)
        self._sizes = np.array(sizes, dtype=np.float64).reshape(-1, len(CodingBytes._fields))
        pairs = [(number, reader) for number, value in enumerate(values) for reader in value.readers]
        self._value, self._reader = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._came = [_touched(nodes, values, [size[column] for size in sizes]) for column in (0, 1)]
        self._crossing = np.zeros(nodes + 1)
        for value, size in zip(values, sizes, strict=True):
            over = self._crossing[value.made + 1 : value.readers[-1] + 1]
            np.maximum(over, size.working, out=over)

    def up_to(self, stop: int) -> tuple[Floats, Floats, Floats]:
        """`CodingBytes` of the ranges from every start below `stop` up to it: [stop] each."""
        left = np.bincount(self._value[self._reader >= stop], minlength=len(self._made))
        sent = np.flatnonzero((self._made < stop) & (left > 0))
        receivers = np.minimum(left[sent], self._most_receivers)
        held, learned = (
            came.up_to(stop) + _from(self._made[sent], receivers * self._sizes[sent, column], stop)
            for column, came in enumerate(self._came)
        )
        return held, learned, np.maximum(self._crossing[:stop], self._crossing[stop])


def _touched(nodes: int, values: Sequence[Crossing], sizes: Sequence[float]) -> Touched:
    """Sizes of values that come into a range, each counted once."""
    points = [
        (last, at, size)
        for value, size in zip(values, sizes, strict=True)
        for last, at in pairwise((value.made, *value.readers))
    ]
    return Touched(np.zeros(nodes), points)


def _from(positions: np.ndarray, sizes: Floats, stop: int) -> Floats:
    """The sum of the sizes at or after each position below `stop`."""
    return np.asarray(np.cumsum(np.bincount(positions, sizes, stop)[::-1])[::-1])
