"""Principal axes: a tensor is turned so that most of what it is lies in few of its columns, and then written.

What crosses a boundary of a trained network varies much more in some directions of its features than in
others. Along its principal axes most columns are so small that even levels at the same distance give them
hardly a bit, and the error stays what it was: of a GPT 64 wide, 1.4 to 2.5 bits less for each element.

The writer learns the axes from what it writes and sends them now and then as whole numbers, a byte for each:
with one payload of a step, to hold from its commit on. So payloads of one step may come in any order, and a
step that is run again gives the same bytes. Levels and axes are whole numbers, and so are their products as
long as they are small: both ends read the same bits, and a reference may be learned from them.
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
from farflung.codec.families.scalar_quantizer import Even, require_distance
from farflung.errors import CodecError

_HEADER = struct.Struct("<BIIf")
_PLAIN, _LEVELS, _LEVELS_AND_AXES = 0, 1, 2
MOST_WIDTH = 2048
"""Of a tensor with more features no axes are learned: levels alone are written."""
_LARGEST = 127
_FIRST_SLABS = (5, 10, 15)
_UNITS = 240
"""Slabs are in units of one plane for each so many."""
_EARLY = (1, 2, 4, 8, 16)
"""After so many steps the axes are learned anew, and then every so often."""
_WIDE = 512
"""Features beyond this make the axes' own bytes and decomposing them weigh: these are learned less often."""
_MEMORY = 4
"""Steps over which the moments are averaged. Axes of 8 to 40 steps ago took a quarter to a third more bits of
activations while a GPT learned quickly, and as many bits when it was nearly done."""
_NOTED = 512
"""Of a tensor, the moments of about so many of its rows are taken, evenly spread."""
_EXACT = 2.0**24
_SNAPSHOT_STEPS = 2**40

Axes8 = NDArray[np.int8]


class _Kept(msgspec.Struct, frozen=True):
    """A snapshot; empty bytes are nothing yet."""

    width: int
    steps: int
    axes: bytes
    announced: bytes
    moments: bytes


class Turned:
    """One end of a value that is written along its principal axes.

    Features are the last dimension; of four dimensions and more, as pictures have them, the second.

    Parameters
    ----------
    every
        Steps after which the axes are sent anew; of more than 512 features, as many times that many.
    """

    def __init__(self, codec: Even, every: int) -> None:
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
        self._got: Axes8 | None = None

    def encode(self, array: Floats, context: Context) -> Encoded:
        """See `Coder`; CodecError if the tensor is another value's."""
        elements = flat(array)
        width = _width(array.shape)
        self._require(width)
        rows = _as_rows(as_float32(elements).reshape(array.shape), width)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._codec.levels(self._along_axes(rows), context)
        if found is None:
            return _whole(elements, "not finite")
        if context.train and width <= MOST_WIDTH:
            self._note(rows)
        distance, levels = found
        parts = [part for start, end in _slabs(width) for part in integer_coding.write(levels[start:end])]
        room = elements.nbytes - sum(len(part.data) for part in parts)
        if room <= 0:
            return _whole(elements, "no smaller")
        kind = _LEVELS
        if context.train and not self._sent and self._next is not None and self._next.nbytes < room:
            self._sent, kind = True, _LEVELS_AND_AXES
            parts.insert(0, Part.of(self._next))
        return Encoded((Part.raw(_HEADER.pack(kind, self._version, rows.size, distance)), *parts))

    def decode(self, payload: Payload, into: Floats, context: Context) -> Mask | None:
        """See `Coder`; CodecError too if the two ends do not have the same axes."""
        target, width, reader = flat_target(into), _width(into.shape), Reader(payload)
        self._require(width)
        kind, version, size, distance = _HEADER.unpack(reader.bytes(_HEADER.size))
        if size != target.size or kind not in (_PLAIN, _LEVELS, _LEVELS_AND_AXES):
            raise CodecError(
                f"a payload of kind {kind} is of {size} elements, not {target.size}: it is damaged"
            )
        if kind == _PLAIN:
            target[:] = reader.take(target.dtype, target.size)
            reader.end()
            return None
        if kind == _LEVELS_AND_AXES and width > MOST_WIDTH:
            raise CodecError(f"a payload has axes of {width} features, at most {MOST_WIDTH} are learned")
        if version != self._version:
            raise CodecError(
                f"a payload was written along axes {version:08x}, here they are {self._version:08x}: "
                "both ends must restore the snapshot of one step"
            )
        news = reader.take(np.int8, width * width).reshape(width, width) if kind == _LEVELS_AND_AXES else None
        levels = self._read_levels(reader, target.size // width, width)
        largest = max(float(levels.max(initial=0)), -float(levels.min(initial=0)))
        values = self._codec.values(levels, context)
        numbers = self._turned_back(values, largest, require_distance(distance))
        narrow(_as_elements(numbers, into.shape), target)
        if news is not None and context.train:
            self._got = news.copy()
        return None

    def most_bytes(self, nbytes: int) -> int:
        """See `Coder`."""
        return _HEADER.size + nbytes

    def commit(self) -> None:
        """See `Coder`."""
        if self._got is not None or self._sent:
            self._take(self._next if self._sent else self._got)
            self._next = None
        if self._sums is not None and self._rows:
            self._learn(self._sums / self._rows)
        self.discard()

    def discard(self) -> None:
        """See `Coder`."""
        self._sums, self._rows, self._sent, self._got = None, 0, False, None

    def snapshot(self) -> bytes:
        """See `Coder`."""
        held = (self._axes, self._next, self._moments)
        width = next((len(one) for one in held if one is not None), 0)
        return msgspec.msgpack.encode(
            _Kept(width, self._steps, *(b"" if one is None else one.tobytes() for one in held))
        )

    def restore(self, snapshot: bytes) -> None:
        """See `Coder`."""
        try:
            kept = msgspec.msgpack.decode(snapshot, type=_Kept)
        except msgspec.DecodeError as error:
            raise CodecError(f"a snapshot of axes cannot be read: {error}") from error
        if not (0 <= kept.width <= MOST_WIDTH and 0 <= kept.steps < _SNAPSHOT_STEPS):
            raise CodecError("a snapshot of axes holds what no step leaves behind: it is damaged")
        axes, announced = (_matrix(data, kept.width, np.int8) for data in (kept.axes, kept.announced))
        moments = _matrix(kept.moments, kept.width, np.float64)
        if moments is not None and not np.isfinite(moments).all():
            raise CodecError("a snapshot of axes has moments that are not finite: it is damaged")
        self.discard()
        self._steps, self._next, self._moments = kept.steps, announced, moments
        self._take(axes)

    @property
    def _version(self) -> int:
        return 0 if self._axes is None else zlib.crc32(self._axes.tobytes())

    def _require(self, width: int) -> None:
        held = next((one for one in (self._axes, self._moments) if one is not None), None)
        if held is not None and len(held) != width:
            raise CodecError(f"a value with axes of {len(held)} features came with {width}")

    def _note(self, rows: Float32) -> None:
        rows = rows[:: max(1, len(rows) // _NOTED)]
        products = (rows.T @ rows).astype(np.float64)
        if np.isfinite(products).all():
            self._sums = products if self._sums is None else self._sums + products
            self._rows += len(rows)

    def _learn(self, moments: NDArray[np.float64]) -> None:
        self._steps += 1
        rate = 1 / min(self._steps, _MEMORY)
        old = moments if self._moments is None else self._moments
        self._moments = old + (moments - old) * rate
        every = self._every * -(-len(moments) // _WIDE)
        if self._steps in _EARLY or self._steps % every == 0:
            self._next = _as_bytes(np.linalg.eigh(self._moments)[1][:, ::-1])

    def _take(self, axes: Axes8 | None) -> None:
        """Axes hold from now on: rows of `axes` are what the columns of levels are multiplied by."""
        self._axes, self._inverse = axes, None

    def _along_axes(self, rows: Float32) -> Float32:
        """(features, rows): a plane for each axis."""
        if self._axes is None:
            return np.ascontiguousarray(rows.T)
        if self._inverse is None:
            try:
                inverse = np.linalg.inv(self._axes.astype(np.float64)) * _LARGEST
            except np.linalg.LinAlgError as error:
                raise CodecError("axes do not span their features: a snapshot is damaged") from error
            self._inverse = np.ascontiguousarray(inverse.T.astype(np.float32))
        return self._inverse @ rows.T

    def _read_levels(self, reader: Reader, rows: int, width: int) -> integer_coding.Wholes:
        levels = np.empty((width, rows), np.float32)
        for start, end in _slabs(width):
            levels[start:end] = integer_coding.read(reader, end - start, rows)
        reader.end()
        return levels

    def _turned_back(self, values: Float32, largest: float, distance: float) -> Float32:
        """Values along the axes, (features, rows), as rows of features again.

        Without dither they are levels up to `largest`, and sums of products of whole numbers are exact in any
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


def _whole(elements: Floats, why: Why) -> Encoded:
    return Encoded((Part.raw(_HEADER.pack(_PLAIN, 0, elements.size, 0.0)), Part.of(elements)), exact=why)


def _as_bytes(axes: NDArray[np.float64]) -> Axes8:
    """The axes, which are the columns, as rows of whole numbers up to 127."""
    scaled = axes.T * (_LARGEST / np.abs(axes).max())
    return np.ascontiguousarray(np.rint(scaled).astype(np.int8))


def _matrix(data: bytes, width: int, dtype: type) -> np.ndarray | None:
    if not data:
        return None
    if len(data) != width * width * np.dtype(dtype).itemsize:
        raise CodecError(f"a snapshot of axes is not of {width} features: it is damaged")
    return np.frombuffer(data, dtype).reshape(width, width).copy()


def _slabs(width: int) -> list[tuple[int, int]]:
    """Neighbouring axes are alike, the first ones least: from where to where so many are written together."""
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
    """Rows of features as the elements of a tensor, flat."""
    if len(shape) >= 4:
        moved = (shape[0], *shape[2:], shape[1])
        rows = np.ascontiguousarray(np.moveaxis(rows.reshape(moved), -1, 1))
    return rows.reshape(-1)
