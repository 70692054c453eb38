"""Every element, unchanged or in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from farflung.codec.base import Declared, Encoded, Lossy
from farflung.codec.context import NO_CONTEXT, Context, Mask
from farflung.codec.encoding.floats import (
    Bfloat16Bits,
    Floats,
    flat,
    flat_target,
    pieces,
    places,
    to_bfloat16,
    widen,
)
from farflung.codec.encoding.payload import Part, Payload, Reader


class Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plain"):
    """The tensor's own bytes, row major, without a header: what a link without a codec carries."""

    def encode(self, array: Floats, context: Context = NO_CONTEXT) -> Encoded:
        """See `Codec`; copies nothing if the array is contiguous."""
        return Encoded((Part.of(flat(array)),))

    def decode(self, payload: Payload, into: Floats, context: Context = NO_CONTEXT) -> Mask | None:
        """See `Codec`."""
        elements, reader = flat_target(into), Reader(payload)
        elements[:] = reader.take(elements.dtype, len(elements))
        reader.end()
        return None

    def declared(self) -> Declared:
        """See `Codec`."""
        return Declared(32, 0.0, 0.0, 11.4, 11.4)

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""
        return nbytes


class Bfloat16(Lossy, frozen=True, tag="bfloat16"):
    """The upper half of each float32, rounded to nearest; bfloat16 itself is sent unchanged."""

    def declared(self) -> Declared:
        """See `Codec`."""
        return Declared(16, 2**-8, 0.0017, 2.9, 4.1)

    def _write(self, elements: Floats, shape: Sequence[int], context: Context) -> Encoded | None:
        coded = np.empty(len(elements), np.uint16)
        for start, piece in pieces(elements, 1):
            if not to_bfloat16(piece, coded[start : start + len(piece)]):
                return None
        return Encoded((Part.of(coded),))

    def _read(self, reader: Reader, elements: Floats, shape: Sequence[int], context: Context) -> Mask | None:
        coded: Bfloat16Bits = reader.take(np.uint16, len(elements))
        for start, place in places(elements, 1):
            widen(coded[start : start + len(place)], place)
        return None
