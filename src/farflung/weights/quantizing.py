"""Stored floats as the blocks of a quantized matrix (`farflung.quantization`)."""

from __future__ import annotations

from farflung.quantization import BLOCKS, block_bytes, quantize
from farflung.weights.widening import widen

PIECE_VALUES = 2**20
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def item_bytes(kind: str) -> int:
    """Bytes of a float of that type, which is one that can be quantized."""
    return _ITEM_BYTES[kind]


def quantize_stored(stored: memoryview, kind: str, form: str, memory: memoryview) -> None:
    """Quantize floats, little endian and of type `kind`, into `memory`, a piece at a time.

    Raises
    ------
    NotFiniteError
        A value is infinite or not a number.
    """
    import numpy as np

    step, of_block = PIECE_VALUES * item_bytes(kind), block_bytes(form)
    for start in range(0, len(stored), step):
        piece = stored[start : start + step]
        values = np.frombuffer(piece if kind == "float32" else widen(piece, kind), "<f4")
        first = start // (BLOCKS[form] * item_bytes(kind)) * of_block
        out = np.frombuffer(memory[first : first + len(values) // BLOCKS[form] * of_block], np.uint8)
        quantize(values, form, out)
