"""Any codec, followed by zstandard on the byte planes of its output.

Neighbouring numbers have similar exponents and different mantissas. So items of two and four bytes are
rotated left by one bit, which puts the whole exponent into one byte, and each plane of such bytes is
compressed if that helps.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from farflung.codec.base import Declared, Encoded
from farflung.codec.context import NO_CONTEXT, Context, Mask
from farflung.codec.encoding.floats import Floats
from farflung.codec.encoding.payload import Part, Payload, Reader
from farflung.codec.encoding.zstd import compress, decompress
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16, Plain
from farflung.codec.families.hadamard import Hadamard
from farflung.codec.families.scalar_quantizer import ScalarQuantizer
from farflung.codec.families.topk import Masked, TopK
from farflung.errors import CodecError

Inner: TypeAlias = Plain | Bfloat16 | Blocked | Hadamard | ScalarQuantizer | TopK | Masked

_ENTRY = np.dtype([("raw", "<u4"), ("stored", "<u4"), ("item_bytes", "<u4")])
_MOST_PLANES = 16
_COUNT_BYTES = 4
_WORDS = {2: np.uint16, 4: np.uint32}
_MOST_SHARE = 0.97
"""A plane that keeps more of its size than this is not worth the time to compress and decompress it."""
_SAMPLE_BYTES = 2**16
"""This many bytes from the middle of a plane are compressed first, as a test."""


class Lossless(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lossless"):
    """The output of `codec`, compressed without loss; planes that do not shrink are sent unchanged."""

    codec: Inner = Bfloat16()
    level: Annotated[int, Meta(ge=1, le=19)] = 1

    def encode(self, array: Floats, context: Context = NO_CONTEXT) -> Encoded:
        """See `Codec`."""
        encoded = self.codec.encode(array, context)
        planes = [(plane, part.item_bytes) for part in encoded.parts for plane in _planes(part)]
        stored = [_compress(plane, self.level) for plane, _ in planes]
        entries = [
            (len(plane), len(body), item_bytes)
            for (plane, item_bytes), body in zip(planes, stored, strict=True)
        ]
        count = Part.raw(len(planes).to_bytes(_COUNT_BYTES, "little"))
        parts = (count, Part.of(np.array(entries, _ENTRY)), *map(Part.raw, stored))
        return Encoded(parts, encoded.mask, encoded.exact)

    def decode(self, payload: Payload, into: Floats, context: Context = NO_CONTEXT) -> Mask | None:
        """See `Codec`."""
        reader = Reader(payload)
        count = int.from_bytes(reader.bytes(_COUNT_BYTES), "little")
        if count > _MOST_PLANES:
            raise CodecError(f"a payload has {count} planes, expected at most {_MOST_PLANES}: it is damaged")
        entries = [(int(raw), int(stored), int(item)) for raw, stored, item in reader.take(_ENTRY, count)]
        most = self.codec.most_bytes(into.nbytes)
        if sum(raw for raw, _, _ in entries) > most:
            raise CodecError(f"a payload declares more than {most} bytes: it belongs to another tensor")
        planes = [(_decompress(reader.bytes(stored), raw), item) for raw, stored, item in entries]
        reader.end()
        return self.codec.decode(_joined(planes), into, context)

    def declared(self) -> Declared:
        """See `Codec`; the ratio is that of the codec alone, because the gain depends on the tensor."""
        inner = self.codec.declared()
        # Measured on bfloat16, half of whose bytes are compressed, with zstandard at level 1.
        compressed_share = inner.bits / 16
        encode_gbps = 1 / (1 / inner.encode_gbps + 1.7 * compressed_share)
        decode_gbps = 1 / (1 / inner.decode_gbps + 0.8 * compressed_share)
        return Declared(inner.bits, inner.worst_error, inner.usual_error, encode_gbps, decode_gbps)

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""
        return _COUNT_BYTES + _MOST_PLANES * _ENTRY.itemsize + self.codec.most_bytes(nbytes)


def _planes(part: Part) -> list[memoryview]:
    if part.item_bytes not in _WORDS:
        return [part.data]
    words = np.frombuffer(part.data, _WORDS[part.item_bytes])
    rotated = (words << 1) | (words >> (8 * part.item_bytes - 1))
    return [
        np.ascontiguousarray(plane).data for plane in rotated.view(np.uint8).reshape(-1, part.item_bytes).T
    ]


def _compress(plane: memoryview, level: int) -> memoryview:
    """The compressed plane, or the plane itself if that does not help."""
    middle = len(plane) // 2
    for data in (plane[middle : middle + _SAMPLE_BYTES], plane):
        small = compress(data, level)
        if len(small) > _MOST_SHARE * len(data):
            return plane
    return memoryview(small)


def _decompress(body: memoryview, size: int) -> memoryview:
    """A plane of `size` bytes, which may have been sent uncompressed."""
    return body if len(body) == size else memoryview(decompress(body, size, "a plane of a payload"))


def _joined(planes: list[tuple[memoryview, int]]) -> bytes:
    parts, left = [], planes
    while left:
        item_bytes = left[0][1] if left[0][1] in _WORDS else 1
        group, left = left[:item_bytes], left[item_bytes:]
        if len(group) != item_bytes or len({(len(plane), item) for plane, item in group}) != 1:
            raise CodecError("the planes of a payload do not match: it is damaged")
        parts.append(_interleaved([plane for plane, _ in group]))
    return b"".join(parts)


def _interleaved(planes: list[memoryview]) -> memoryview:
    if len(planes) == 1:
        return planes[0]
    interleaved = np.empty((len(planes[0]), len(planes)), np.uint8)
    for number, plane in enumerate(planes):
        interleaved[:, number] = np.frombuffer(plane, np.uint8)
    words = interleaved.reshape(-1).view(_WORDS[len(planes)])
    return ((words >> 1) | (words << (8 * len(planes) - 1))).data
