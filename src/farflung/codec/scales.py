"""The bfloat16 scales of blocks, as payloads hold them."""

from __future__ import annotations

import numpy as np

from farflung.codec.floats import Bfloat16Bits, Float32
from farflung.codec.payload import Reader
from farflung.errors import CodecError


def as_scales(bits: Bfloat16Bits) -> Float32:
    """Scales in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_scales(reader: Reader, count: int) -> Float32:
    """The next `count` scales; CodecError if one is not finite."""
    scales = as_scales(reader.take(np.uint16, count))
    if not np.isfinite(scales).all():
        raise CodecError("a payload has scales that are not finite: it is damaged")
    return scales
