"""Seeds of random ops: a function of (job seed, step, microbatch, node), so that a re-run draws the same.

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


def microbatch_seed(seed: int, train: bool, step: int, microbatch: int) -> int:
    """The state from which every random node of one microbatch draws its own seed by `mix(state, node)`.

    `microbatch` counts over all replicas; evaluation passes draw from a stream of their own.
    """
    return mix(mix(mix(seed, 0 if train else 1), step), microbatch)
