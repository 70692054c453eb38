"""Floats of 16 bits as float32, which every one of them is: no bit of a value changes with the machine."""

from __future__ import annotations

from typing import Literal

Kind = Literal["bfloat16", "float16"]
PIECE_BYTES = 2**20


def widen(stored: memoryview, kind: str) -> memoryview:
    """Bytes of bfloat16 or float16 values, little endian, as those of the same values in float32."""
    import numpy as np

    if kind == "float16":
        halves = np.frombuffer(stored, dtype="<f2")
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return memoryview(halves.astype("<f4").data).cast("B")
    words = np.frombuffer(stored, dtype="<u2").astype("<u4") << np.uint32(16)
    return memoryview(words.data).cast("B")


def widen_in_place(memory: memoryview, kind: str) -> None:
    """The same for the second half of `memory`, which takes no memory for more than a piece of it."""
    half = len(memory) // 2
    for start in range(0, half, PIECE_BYTES):
        stop = min(half, start + PIECE_BYTES)
        # What is written ends before the bytes that are still to be read.
        memory[2 * start : 2 * stop] = widen(memory[half + start : half + stop], kind)
