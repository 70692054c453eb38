"""Seeds of random ops: a function of (job seed, step, microbatch, node), so that a re-run draws the same."""

from __future__ import annotations

from farflung.mixing import mix


def microbatch_seed(seed: int, train: bool, step: int, microbatch: int) -> int:
    """The state from which every random node of one microbatch draws its own seed by `mix(state, node)`.

    `microbatch` counts over all replicas; evaluation passes draw from a stream of their own.
    """
    return mix(mix(mix(seed, 0 if train else 1), step), microbatch)
