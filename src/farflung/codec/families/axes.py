"""Principal axes: rotate a tensor so that a few columns hold most of its energy, then encode it.

Activations of a trained network vary much more in some directions of their features than in others. Along the
principal axes most columns are so small that evenly spaced levels at the same distance give them hardly a
bit, at the same error: for a GPT of width 64, 1.4 to 2.5 bits less per element.

The sender learns the axes from what it encodes and sends them at intervals as integers, one byte each, with
one payload of a step; they hold from that step's commit on. So payloads of one step may arrive in any order,
and a repeated step produces the same bytes. Levels and axes are integers, and so are their products as long
as they are small. Both ends therefore decode the same bits, and a reference may learn from them.
"""

from __future__ import annotations

import math
import struct
import zlib
from itertools import accumulate, pairwise, repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

from farflung.codec.base import Encoded, Why
from farflung.codec.context import Context, Mask
from farflung.codec.encoding import integer_coding
from farflung.codec.encoding.floats import Float32, Floats, as_float32, flat, flat_target, narrow
from farflung.codec.encoding.payload import Part, Payload, Reader
from farflung.codec.families.scalar_quantizer import ScalarQuantizer, require_distance
from farflung.errors import CodecError

_HEADER = struct.Struct("<BIIf")
_PLAIN, _LEVELS, _LEVELS_AND_AXES = 0, 1, 2
MOST_WIDTH = 2048
"""Tensors with more features are encoded without axes."""
_LARGEST = 127
_FIRST_SLABS = (5, 10, 15)
_UNITS = 240
"""Slabs grow in units of one plane per this many features."""
_EARLY = (1, 2, 4, 8, 16)
"""The axes are learned anew after these numbers of steps, and then at regular intervals."""
_WIDE = 512
"""With more features than this, sending and decomposing axes costs so much that it is done less often."""
_AVERAGED_STEPS = 4
"""Steps over which the moments are averaged. While a GPT learned quickly, axes that were 8 to 40 steps old
needed a quarter to a third more bits for activations; when it was nearly done they needed the same.
"""
_SAMPLED_ROWS = 512
"""About this many rows of a tensor, evenly spread, contribute to the moments."""
_EXACT = 2.0**24
_SNAPSHOT_STEPS = 2**40

Axes8 = NDArray[np.int8]


class _Snapshot(msgspec.Struct, frozen=True):
    """A snapshot; empty bytes stand for a missing matrix."""

    width: int
    steps: int
    axes: bytes
    announced: bytes
    moments: bytes


class AxesCoder:
    """One end of a value that is encoded along its principal axes.

    Features are the last dimension, or the second one of tensors with four or more dimensions, such as
    images.

    Parameters
    ----------
    every
        Number of steps between new axes; multiplied for every further 512 features.
    """

    def __init__(self, codec: ScalarQuantizer, every: int) -> None:
        self._codec = codec
        self._every = every
        self._steps = 0
        self._axes: Axes8 | None = None
        self._inverse: Float32 | None = None
        self._next: Axes8 | None = None
        self._moments: NDArray[np.float64] | None = None
        self._sums: NDArray[np.float64] | None = None
        self._rows = 0
        self._sent = False
        self._received_axes: Axes8 | None = None

    def encode(self, array: Floats, context: Context) -> Encoded:
        """See `Coder`; CodecError if the tensor has another number of features than before."""
        elements = flat(array)
        width = _width(array.shape)
        self._require(width)
        rows = _as_rows(as_float32(elements).reshape(array.shape), width)
        with np.errstate(over="ignore", invalid="ignore"):
            coded = self._codec.levels(self._along_axes(rows), context)
        if coded is None:
            return _uncompressed(elements, "not finite")
        if context.train and width <= MOST_WIDTH:
            self._add_moments(rows)
        distance, levels = coded
        parts = [part for start, end in _slabs(width) for part in integer_coding.write(levels[start:end])]
        room = elements.nbytes - sum(len(part.data) for part in parts)
        if room <= 0:
            return _uncompressed(elements, "no smaller")
        kind = _LEVELS
        if context.train and not self._sent and self._next is not None and self._next.nbytes < room:
            self._sent, kind = True, _LEVELS_AND_AXES
            parts.insert(0, Part.of(self._next))
        return Encoded((Part.raw(_HEADER.pack(kind, self._version, rows.size, distance)), *parts))

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Coder`; CodecError also if the two ends have different axes."""
        target, width, reader = flat_target(into), _width(into.shape), Reader(payload)
        self._require(width)
        kind, version, size, distance = _HEADER.unpack(reader.bytes(_HEADER.size))
        if size != target.size or kind not in (_PLAIN, _LEVELS, _LEVELS_AND_AXES):
            raise CodecError(
                f"expected a payload of {target.size} elements, found kind {kind} of {size}: it is damaged"
            )
        if kind == _PLAIN:
            target[:] = reader.take(target.dtype, target.size)
            reader.end()
            return None
        if kind == _LEVELS_AND_AXES and width > MOST_WIDTH:
            raise CodecError(
                f"a payload has axes of {width} features, the limit is {MOST_WIDTH}: it is damaged"
            )
        if version != self._version:
            raise CodecError(
                f"a payload was encoded along axes {version:08x}, but this end has {self._version:08x}: "
                "both ends must restore the snapshot of one step"
            )
        new_axes = (
            reader.take(np.int8, width * width).reshape(width, width) if kind == _LEVELS_AND_AXES else None
        )
        levels = self._read_levels(reader, target.size // width, width)
        largest = max(float(levels.max(initial=0)), -float(levels.min(initial=0)))
        values = self._codec.values(levels, context)
        numbers = self._rotate_back(values, largest, require_distance(distance))
        narrow(_as_elements(numbers, into.shape), target)
        if new_axes is not None and context.train:
            self._received_axes = new_axes.copy()
        return None

    def most_bytes(self, nbytes: int) -> int:
        """See `Coder`."""
        return _HEADER.size + nbytes

    def commit(self) -> None:
        """See `Coder`."""
        if self._received_axes is not None or self._sent:
            self._set_axes(self._next if self._sent else self._received_axes)
            self._next = None
        if self._sums is not None and self._rows:
            self._learn(self._sums / self._rows)
        self.discard()

    def discard(self) -> None:
        """See `Coder`."""
        self._sums, self._rows, self._sent, self._received_axes = None, 0, False, None

    def snapshot(self) -> bytes:
        """See `Coder`."""
        stored = (self._axes, self._next, self._moments)
        width = next((len(one) for one in stored if one is not None), 0)
        return msgspec.msgpack.encode(
            _Snapshot(width, self._steps, *(b"" if one is None else one.tobytes() for one in stored))
        )

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        try:
            state = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise CodecError(f"a snapshot of axes cannot be read: {error}") from error
        if not (0 <= state.width <= MOST_WIDTH and 0 <= state.steps < _SNAPSHOT_STEPS):
            raise CodecError("a snapshot of axes has impossible contents: it is damaged")
        axes, announced = (_matrix(data, state.width, np.int8) for data in (state.axes, state.announced))
        moments = _matrix(state.moments, state.width, np.float64)
        if moments is not None and not np.isfinite(moments).all():
            raise CodecError("a snapshot of axes has moments that are not finite: it is damaged")
        self.discard()
        self._steps, self._next, self._moments = state.steps, announced, moments
        self._set_axes(axes)

    @property
    def _version(self) -> int:
        return 0 if self._axes is None else zlib.crc32(self._axes.tobytes())

    def _require(self, width: int) -> None:
        stored = next((one for one in (self._axes, self._moments) if one is not None), None)
        if stored is not None and len(stored) != width:
            raise CodecError(f"expected a value of {len(stored)} features for its axes, found {width}")

    def _add_moments(self, rows: Float32) -> None:
        rows = rows[:: max(1, len(rows) // _SAMPLED_ROWS)]
        products = (rows.T @ rows).astype(np.float64)
        if np.isfinite(products).all():
            self._sums = products if self._sums is None else self._sums + products
            self._rows += len(rows)

    def _learn(self, moments: NDArray[np.float64]) -> None:
        self._steps += 1
        rate = 1 / min(self._steps, _AVERAGED_STEPS)
        old = moments if self._moments is None else self._moments
        self._moments = old + (moments - old) * rate
        every = self._every * -(-len(moments) // _WIDE)
        if self._steps in _EARLY or self._steps % every == 0:
            self._next = _as_bytes(np.linalg.eigh(self._moments)[1][:, ::-1])

    def _set_axes(self, axes: Axes8 | None) -> None:
        """Use these axes from now on; rows of `axes` multiply the columns of levels."""
        self._axes, self._inverse = axes, None

    def _along_axes(self, rows: Float32) -> Float32:
        """The rows along the axes, (features, rows): a plane for each axis."""
        if self._axes is None:
            return np.ascontiguousarray(rows.T)
        if self._inverse is None:
            try:
                inverse = np.linalg.inv(self._axes.astype(np.float64)) * _LARGEST
            except np.linalg.LinAlgError as error:
                raise CodecError("axes do not span their features: a snapshot is damaged") from error
            self._inverse = np.ascontiguousarray(inverse.T.astype(np.float32))
        return self._inverse @ rows.T

    def _read_levels(self, reader: Reader, rows: int, width: int) -> integer_coding.Integers:
        levels = np.empty((width, rows), np.float32)
        for start, end in _slabs(width):
            levels[start:end] = integer_coding.read(reader, end - start, rows)
        reader.end()
        return levels

    def _rotate_back(self, values: Float32, largest: float, distance: float) -> Float32:
        """Convert values along the axes, (features, rows), back to rows of features.

        Without dither they are levels up to `largest`, and sums of products of integers are exact in any
        order.
        """
        if self._axes is None:
            return values.T * np.float32(distance)
        axes = self._axes.astype(np.float32)
        most = largest * math.sqrt(len(axes)) * float(np.linalg.norm(axes, axis=0).max())
        if most < _EXACT:
            numbers = values.T @ axes
        else:
            numbers = (values.T.astype(np.float64) @ axes.astype(np.float64)).astype(np.float32)
        numbers *= np.float32(distance / _LARGEST)
        return numbers


def _uncompressed(elements: Floats, why: Why) -> Encoded:
    return Encoded((Part.raw(_HEADER.pack(_PLAIN, 0, elements.size, 0.0)), Part.of(elements)), exact=why)


def _as_bytes(axes: NDArray[np.float64]) -> Axes8:
    """The axes, which are columns, as rows of integers up to 127."""
    scaled = axes.T * (_LARGEST / np.abs(axes).max())
    return np.ascontiguousarray(np.rint(scaled).astype(np.int8))


def _matrix(data: bytes, width: int, dtype: type) -> np.ndarray | None:
    if not data:
        return None
    if len(data) != width * width * np.dtype(dtype).itemsize:
        raise CodecError(f"a snapshot of axes is not of {width} features: it is damaged")
    return np.frombuffer(data, dtype).reshape(width, width).copy()


def _slabs(width: int) -> list[tuple[int, int]]:
    """Ranges of axes that are encoded together: neighbouring axes are similar, the first ones least."""
    unit = max(1, round(width / _UNITS))
    sizes = (*_FIRST_SLABS, *repeat(integer_coding.PLANES, width // integer_coding.PLANES))
    ends = [min(unit * end, width) for end in accumulate(sizes)]
    return [(start, end) for start, end in pairwise((0, *ends)) if start < end]


def _width(shape: tuple[int, ...]) -> int:
    if not shape:
        return 1
    return max(1, shape[1] if len(shape) >= 4 else shape[-1])


def _as_rows(array: Float32, width: int) -> Float32:
    if array.ndim >= 4:
        array = np.moveaxis(array, 1, -1)
    return np.ascontiguousarray(array).reshape(-1, width)


def _as_elements(rows: Float32, shape: tuple[int, ...]) -> Float32:
    """Rows of features as the flat elements of a tensor."""
    if len(shape) >= 4:
        moved = (shape[0], *shape[2:], shape[1])
        rows = np.ascontiguousarray(np.moveaxis(rows.reshape(moved), -1, 1))
    return rows.reshape(-1)
