"""Numbers made of other numbers: seeds that depend on where they are used, and on nothing else.

The mixing is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

_MASK = 2**64 - 1


def mix(state: int, number: int) -> int:
    """A 64-bit seed that depends on both arguments and is well spread even where they are small."""
    z = (state + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
