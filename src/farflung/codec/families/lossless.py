"""Any codec, and zstandard over the byte planes of what it wrote.

The exponents of neighbouring numbers are alike and their mantissas are not. So items of two and four bytes
are turned left by one bit, which puts all of the exponent in one byte, and each plane of such bytes is
compressed if that helps.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from farflung.codec.base import Declared, Encoded
from farflung.codec.context import NOWHERE, Context, Mask
from farflung.codec.encoding.floats import Floats
from farflung.codec.encoding.payload import Part, Payload, Reader
from farflung.codec.encoding.zstd import expanded, pressed
from farflung.codec.families.blocked import Blocked
from farflung.codec.families.dense import Bfloat16, Plain
from farflung.codec.families.hadamard import Hadamard
from farflung.codec.families.scalar_quantizer import Even
from farflung.codec.families.topk import Masked, TopK
from farflung.errors import CodecError

Inner: TypeAlias = Plain | Bfloat16 | Blocked | Hadamard | Even | TopK | Masked

_ENTRY = np.dtype([("raw", "<u4"), ("stored", "<u4"), ("item_bytes", "<u4")])
_MOST_PLANES = 16
_COUNT_BYTES = 4
_WORDS = {2: np.uint16, 4: np.uint32}
_WORTH_IT = 0.97
"""A plane that keeps more of its size than this is not worth the time to compress and to expand it."""
_LOOK = 2**16
"""So many bytes from a plane's middle are tried first."""


class Lossless(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lossless"):
    """What `codec` writes, compressed without loss; a plane that does not shrink goes as it is."""

    codec: Inner = Bfloat16()
    level: Annotated[int, Meta(ge=1, le=19)] = 1

    def encode(self, array: Floats, context: Context = NOWHERE) -> Encoded:
        """See `Codec`."""
        encoded = self.codec.encode(array, context)
        planes = [(plane, part.item_bytes) for part in encoded.parts for plane in _planes(part)]
        stored = [_pressed(plane, self.level) for plane, _ in planes]
        entries = [
            (len(plane), len(body), item_bytes)
            for (plane, item_bytes), body in zip(planes, stored, strict=True)
        ]
        count = Part.raw(len(planes).to_bytes(_COUNT_BYTES, "little"))
        parts = (count, Part.of(np.array(entries, _ENTRY)), *map(Part.raw, stored))
        return Encoded(parts, encoded.mask, encoded.exact)

    def decode(self, payload: Payload, into: Floats, context: Context = NOWHERE) -> Mask | None:
        """See `Codec`."""
        reader = Reader(payload)
        count = int.from_bytes(reader.bytes(_COUNT_BYTES), "little")
        if count > _MOST_PLANES:
            raise CodecError(f"a payload has {count} planes, expected at most {_MOST_PLANES}: it is damaged")
        entries = [(int(raw), int(stored), int(item)) for raw, stored, item in reader.take(_ENTRY, count)]
        most = self.codec.most_bytes(into.nbytes)
        if sum(raw for raw, _, _ in entries) > most:
            raise CodecError(f"a payload says that it becomes more than {most} bytes: it is another tensor's")
        planes = [(_expanded(reader.bytes(stored), raw), item) for raw, stored, item in entries]
        reader.end()
        return self.codec.decode(_joined(planes), into, context)

    def declared(self) -> Declared:
        """See `Codec`; the ratio is that of the codec alone, for how much is gained depends on the tensor."""
        inner = self.codec.declared()
        # Of bfloat16, half of whose bytes are compressed, zstandard at level 1 takes what is added here.
        pressing = inner.bits / 16
        encode_gbps = 1 / (1 / inner.encode_gbps + 1.7 * pressing)
        decode_gbps = 1 / (1 / inner.decode_gbps + 0.8 * pressing)
        return Declared(inner.bits, inner.worst_error, inner.usual_error, encode_gbps, decode_gbps)

    def most_bytes(self, nbytes: int) -> int:
        """See `Codec`."""
        return _COUNT_BYTES + _MOST_PLANES * _ENTRY.itemsize + self.codec.most_bytes(nbytes)


def _planes(part: Part) -> list[memoryview]:
    if part.item_bytes not in _WORDS:
        return [part.data]
    words = np.frombuffer(part.data, _WORDS[part.item_bytes])
    turned = (words << 1) | (words >> (8 * part.item_bytes - 1))
    return [
        np.ascontiguousarray(plane).data for plane in turned.view(np.uint8).reshape(-1, part.item_bytes).T
    ]


def _pressed(plane: memoryview, level: int) -> memoryview:
    """The plane compressed, or as it is."""
    middle = len(plane) // 2
    for data in (plane[middle : middle + _LOOK], plane):
        small = pressed(data, level)
        if len(small) > _WORTH_IT * len(data):
            return plane
    return memoryview(small)


def _expanded(body: memoryview, size: int) -> memoryview:
    """A plane of `size` bytes, which may have come as it is."""
    return body if len(body) == size else memoryview(expanded(body, size, "a plane of a payload"))


def _joined(planes: list[tuple[memoryview, int]]) -> bytes:
    parts, left = [], planes
    while left:
        item_bytes = left[0][1] if left[0][1] in _WORDS else 1
        group, left = left[:item_bytes], left[item_bytes:]
        if len(group) != item_bytes or len({(len(plane), item) for plane, item in group}) != 1:
            raise CodecError("the planes of a payload do not fit together: it is damaged")
        parts.append(_interleaved([plane for plane, _ in group]))
    return b"".join(parts)


def _interleaved(planes: list[memoryview]) -> memoryview:
    if len(planes) == 1:
        return planes[0]
    together = np.empty((len(planes[0]), len(planes)), np.uint8)
    for number, plane in enumerate(planes):
        together[:, number] = np.frombuffer(plane, np.uint8)
    words = together.reshape(-1).view(_WORDS[len(planes)])
    return ((words >> 1) | (words << (8 * len(planes) - 1))).data
