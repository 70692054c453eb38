"""The interface of every codec, and the header of their payloads."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from farflung.codec.context import NO_CONTEXT, Context, Mask
from farflung.codec.encoding.floats import Floats, flat, flat_target
from farflung.codec.encoding.payload import Part, Payload, Reader
from farflung.errors import CodecError

_HEADER = struct.Struct("<II")
HEADER_BYTES = _HEADER.size
_CODED, _UNCOMPRESSED = 0, 1
_MOST_SIZE = 2**32 - 1

Why = Literal["", "not finite", "no smaller"]


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor.

    Attributes
    ----------
    parts
        What to send, in order. They may share memory with the tensor, which must not change until they are
        sent.
    mask
        Which elements were sent, if not all of them.
    exact
        The reason if the tensor is sent uncompressed: it has values that the codec cannot encode (NaN,
        infinity, magnitudes above 10^16), which the sender should report; or encoding would not shrink it.
    """

    parts: tuple[Part, ...]
    mask: Mask | None = None
    exact: Why = ""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, including headers and indices, without the frame's header."""
        return sum(len(part.data) for part in self.parts)

    def joined(self) -> bytes:
        """All parts joined, as the receiver gets them."""
        return b"".join(part.data for part in self.parts)


@dataclass(frozen=True)
class Declared:
    """The declared size, error and cost of a codec.

    Attributes
    ----------
    bits
        Bits per element on the wire, including indices and scales, for a tensor of a million elements.
    worst_error
        Upper bound on the error of any finite tensor, relative to its Euclidean norm, down to 10^-18 per
        element; infinite if there is no bound.
    usual_error
        The error for normally distributed numbers, which is typical if the bound is far from it.
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
    """Encodes tensors as bytes and decodes them, without state between tensors."""

    def encode(self, array: Floats, context: Context = NO_CONTEXT) -> Encoded:
        """Encode a tensor of any shape and strides.

        Raises
        ------
        CodecError
            Its elements are not floating-point numbers, or the context does not fit it.
        """

    def decode(self, payload: Payload, into: Floats, context: Context = NO_CONTEXT) -> Mask | None:
        """Fill `into`, contiguous and of the tensor's shape, with what `encode` wrote in an equal context.

        Returns which elements were sent, if not all. All machines decode a payload to the same bits.

        Raises
        ------
        CodecError
            The payload is damaged, or not of such a tensor; the contents of `into` are then undefined.
        """

    def declared(self) -> Declared:
        """Its ratio, error and cost."""

    def most_bytes(self, nbytes: int) -> int:
        """The longest payload of a tensor of `nbytes`, for which a receiver needs memory."""


class Lossy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of lossy codecs; a tensor that they cannot encode in fewer bytes is sent uncompressed."""

    def encode(self, array: Floats, context: Context = NO_CONTEXT) -> Encoded:
        """See `Codec`."""
        elements = flat(array)
        if not len(elements):
            return uncompressed(elements, "no smaller")
        with np.errstate(over="ignore", invalid="ignore"):
            written = self._write(elements, array.shape, context)
        if written is None:
            return uncompressed(elements, "not finite")
        if written.nbytes >= elements.nbytes:
            return uncompressed(elements, "no smaller")
        return coded(written, len(elements))

    def decode(self, payload: Payload, into: Floats, context: Context = NO_CONTEXT) -> Mask | None:
        """See `Codec`."""
        elements, reader = flat_target(into), Reader(payload)
        if is_coded(reader, len(elements)):
            with np.errstate(over="ignore", invalid="ignore"):
                mask = self._read(reader, elements, into.shape, context)
        else:
            mask = None
            elements[:] = reader.take(elements.dtype, len(elements))
        reader.end()
        return mask

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""
        return HEADER_BYTES + nbytes

    @abstractmethod
    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        """The encoded parts; None if there is a number that cannot be encoded."""

    @abstractmethod
    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        """Fill `elements` with the decoded ones; returns which they are, if not all."""


def coded(written: Encoded, elements: int) -> Encoded:
    """The payload of a lossy codec: a header, and what it has written of that many elements."""
    return Encoded((_header(_CODED, elements), *written.parts), written.mask)


def uncompressed(elements: Floats, why: Why) -> Encoded:
    """The payload of a lossy codec for a tensor that it does not encode."""
    return Encoded((_header(_UNCOMPRESSED, len(elements)), Part.of(elements)), exact=why)


def is_coded(reader: Reader, elements: int) -> bool:
    """Whether the payload whose header this reads is coded; otherwise the elements follow.

    Raises
    ------
    CodecError
        It is not of a tensor of that many elements, or damaged.
    """
    kind, size = _HEADER.unpack(reader.bytes(HEADER_BYTES))
    if size != elements & _MOST_SIZE:
        raise CodecError(
            f"expected a payload of {elements} elements, found {size}: it belongs to another tensor"
        )
    if kind not in (_CODED, _UNCOMPRESSED):
        raise CodecError(
            f"a payload begins with {kind}, expected 0 or 1: it is damaged or of a newer farflung"
        )
    return bool(kind == _CODED)


def _header(kind: int, elements: int) -> Part:
    return Part.raw(_HEADER.pack(kind, elements & _MOST_SIZE))
