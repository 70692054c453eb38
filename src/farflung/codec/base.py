"""What every codec does: the one interface, and how a payload begins."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from farflung.codec.context import NOWHERE, Context, Mask
from farflung.codec.encoding.floats import Floats, flat, flat_target
from farflung.codec.encoding.payload import Part, Payload, Reader
from farflung.errors import CodecError

_HEADER = struct.Struct("<II")
HEADER_BYTES = _HEADER.size
_CODED, _AS_IT_IS = 0, 1
_MOST_SIZE = 2**32 - 1

Why = Literal["", "not finite", "no smaller"]


@dataclass(frozen=True)
class Encoded:
    """What a tensor became.

    Attributes
    ----------
    parts
        What to send, in order. They may share memory with the tensor, which must stay as it is until they
        left.
    mask
        Which elements were sent, if not all of them.
    exact
        Why the tensor goes as it is, if it does: it holds values that the codec does not write (NaN,
        infinity, magnitudes above 10^16), which whoever sends it should tell; or coding would not make it
        smaller.
    """

    parts: tuple[Part, ...]
    mask: Mask | None = None
    exact: Why = ""

    @property
    def nbytes(self) -> int:
        """On the wire, headers and indices included, the frame's own aside."""
        return sum(len(part.data) for part in self.parts)

    def joined(self) -> bytes:
        """All parts in one piece, as the receiver gets them."""
        return b"".join(part.data for part in self.parts)


@dataclass(frozen=True)
class Declared:
    """What a codec promises, and what it takes.

    Attributes
    ----------
    bits
        For each element on the wire, indices and scales included, of a tensor of a million elements.
    worst_error
        No finite tensor comes back further away than this share of its Euclidean norm, down to 10^-18 an
        element; infinite if no such promise can be kept.
    usual_error
        The same of normally distributed numbers: a measure of quality where worst cases are far from it.
    encode_gbps, decode_gbps
        10^9 bytes of float32 a CPU second of one core: about the least of what 4M elements of four tensors
        took on an EPYC with AVX-512 that was busy with other work (load 3 to 7 on two cores;
        `benchmarks/codec.py --sizes 4`). An order of magnitude for a choice, on the slow side.
    """

    bits: float
    worst_error: float
    usual_error: float
    encode_gbps: float
    decode_gbps: float

    @property
    def ratio(self) -> float:
        """Bytes of an fp32 tensor over its bytes on the wire."""
        return 32 / self.bits


class Codec(Protocol):
    """Writes tensors as bytes and reads them back; keeps nothing between one and the next."""

    def encode(self, array: Floats, context: Context = NOWHERE) -> Encoded:
        """Write a tensor of any shape and strides.

        Raises
        ------
        CodecError
            Its elements are not floating-point numbers, or the context does not fit it.
        """

    def decode(self, payload: Payload, into: Floats, context: Context = NOWHERE) -> Mask | None:
        """Fill `into`, of the tensor's shape and contiguous, with what `encode` wrote in an equal context.

        Returns which elements were sent, if not all. Two machines read the same payload bit for bit alike.

        Raises
        ------
        CodecError
            The payload is damaged, or not of such a tensor; `into` may hold anything then.
        """

    def declared(self) -> Declared:
        """Its ratio, error and cost."""

    def most_bytes(self, nbytes: int) -> int:
        """The longest payload of a tensor of `nbytes`: what a receiver may have to take."""


class Lossy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of codecs that drop something; a tensor they cannot write in fewer bytes goes as it is."""

    def encode(self, array: Floats, context: Context = NOWHERE) -> Encoded:
        """See `Codec`."""
        elements = flat(array)
        if not len(elements):
            return _as_it_is(elements, "no smaller")
        with np.errstate(over="ignore", invalid="ignore"):
            written = self._write(elements, array.shape, context)
        if written is None:
            return _as_it_is(elements, "not finite")
        if written.nbytes >= elements.nbytes:
            return _as_it_is(elements, "no smaller")
        return Encoded((_header(_CODED, elements), *written.parts), written.mask)

    def decode(self, payload: Payload, into: Floats, context: Context = NOWHERE) -> Mask | None:
        """See `Codec`."""
        elements, reader = flat_target(into), Reader(payload)
        kind, size = _HEADER.unpack(reader.bytes(HEADER_BYTES))
        if size != len(elements) & _MOST_SIZE:
            raise CodecError(f"a payload is of {size} elements, not {len(elements)}: it is another tensor's")
        if kind == _CODED:
            with np.errstate(over="ignore", invalid="ignore"):
                mask = self._read(reader, elements, into.shape, context)
        elif kind == _AS_IT_IS:
            mask = None
            elements[:] = reader.take(elements.dtype, len(elements))
        else:
            raise CodecError(
                f"a payload begins with {kind}, expected 0 or 1: it is damaged or of a newer farflung"
            )
        reader.end()
        return mask

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""
        return HEADER_BYTES + nbytes

    @abstractmethod
    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        """The coded parts; None if there is a number that cannot be written."""

    @abstractmethod
    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        """Fill `elements` with what was written, and say which they are, if not all."""


def _as_it_is(elements: Floats, why: Why) -> Encoded:
    return Encoded((_header(_AS_IT_IS, elements), Part.of(elements)), exact=why)


def _header(kind: int, elements: Floats) -> Part:
    return Part.raw(_HEADER.pack(kind, len(elements) & _MOST_SIZE))
