"""zstandard, for one thread at a time: bytes made fewer, and back within a size that is known before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import zstandard

from farflung.errors import CodecError

_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, window_log=17, hash_log=6, chain_log=6, min_match=7
)
"""Hardly any search for what repeats, except for runs of nothing: level 1 finds matches that cost more than
Huffman's code of the same bytes, up to a tenth of sparse numbers."""

_tools = threading.local()
_Tool = TypeVar("_Tool")


def pressed(data: memoryview, level: int | None = None) -> bytes:
    """The bytes, compressed at a level of zstandard, or in little more than Huffman's code."""
    if level is None:
        compressor = _kept("huffman", lambda: zstandard.ZstdCompressor(compression_params=_HUFFMAN))
    else:
        compressor = _kept(f"level {level}", lambda: zstandard.ZstdCompressor(level=level))
    return bytes(compressor.compress(data))


def expanded(body: memoryview, size: int, what: str) -> bytes:
    """`size` bytes; memory is taken only for a body that says the same.

    Raises
    ------
    CodecError
        It does not, or is damaged; `what` it is of begins the sentence.
    """
    try:
        if zstandard.frame_content_size(body) != size:
            raise CodecError(f"{what} does not become {size} bytes: it is damaged")
        return bytes(_kept("expanding", zstandard.ZstdDecompressor).decompress(body, max_output_size=size))
    except zstandard.ZstdError as error:
        raise CodecError(f"{what} cannot be expanded ({error}): it is damaged") from error


def _kept(name: str, make: Callable[[], _Tool]) -> _Tool:
    """This thread's own: they keep tables that take a while to make, and no two threads may share one."""
    if not hasattr(_tools, name):
        setattr(_tools, name, make())
    found: _Tool = getattr(_tools, name)
    return found
