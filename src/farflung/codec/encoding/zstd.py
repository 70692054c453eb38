"""zstandard, one instance per thread: compress bytes, and decompress to a known size."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import zstandard

from farflung.errors import CodecError

_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, chain_log=6, min_match=7
)
"""Hardly any search for repetitions, except runs of zeros: level 1 finds matches that cost more than
Huffman's code of the same bytes, up to a tenth of sparse numbers.
"""

_tools = threading.local()
_Tool = TypeVar("_Tool")


def compress(data: memoryview, level: int | None = None) -> bytes:
    """Compress at a level of zstandard, or with little more than Huffman's code if `level` is None."""
    if level is None:
        compressor = _per_thread("huffman", lambda: zstandard.ZstdCompressor(compression_params=_HUFFMAN))
    else:
        compressor = _per_thread(f"level {level}", lambda: zstandard.ZstdCompressor(level=level))
    return bytes(compressor.compress(data))


def decompress(body: memoryview, size: int, what: str) -> bytes:
    """Decompress to `size` bytes; allocates memory only if the body declares the same size.

    Raises
    ------
    CodecError
        It declares another size or is damaged; the message begins with `what`.
    """
    try:
        if zstandard.frame_content_size(body) != size:
            raise CodecError(f"{what} does not decompress to {size} bytes: it is damaged")
        return bytes(
            _per_thread("expanding", zstandard.ZstdDecompressor).decompress(body, max_output_size=size)
        )
    except zstandard.ZstdError as error:
        raise CodecError(f"{what} cannot be decompressed ({error}): it is damaged") from error


def _per_thread(name: str, make: Callable[[], _Tool]) -> _Tool:
    """This thread's instance: making one takes a while, and threads must not share them."""
    if not hasattr(_tools, name):
        setattr(_tools, name, make())
    tool: _Tool = getattr(_tools, name)
    return tool
