"""What both ends of a link know about a tensor without sending it.

`Context` is its position in the run. `Mask` says which elements of an activation were sent; it is stored from
the forward to the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.codec.encoding.payload import from_bits, to_bits
from farflung.seeds import mix

_BITS_A_POSITION = 32


@dataclass(frozen=True, eq=False)
class Mask:
    """Some of `elements` elements, as positions or as a bit for each, whichever takes less memory."""

    elements: int
    count: int
    _stored: NDArray[np.uint8] | NDArray[np.uint32]

    @staticmethod
    def of(positions: NDArray[np.int64], elements: int) -> Mask:
        """The mask with ascending `positions` (row major) of a tensor of `elements`."""
        if len(positions) * _BITS_A_POSITION <= elements:
            return Mask(elements, len(positions), positions.astype(np.uint32))
        return Mask(elements, len(positions), to_bits(positions, elements))

    @property
    def positions(self) -> NDArray[np.int64]:
        """Ascending."""
        if self.count * _BITS_A_POSITION <= self.elements:
            return self._stored.astype(np.int64)
        return from_bits(self._stored.astype(np.uint8, copy=False), self.elements)

    @property
    def nbytes(self) -> int:
        """Memory of the mask in bytes."""
        return self._stored.nbytes


@dataclass(frozen=True, eq=False)
class Context:
    """The position of a tensor in a run.

    Attributes
    ----------
    seed
        Seed of random signs and roundings. It must differ for each step, microbatch and value: with the same
        signs at every step, the errors of a gradient would add up (`Context.at`).
    train
        Whether this is a training step; encoding in an evaluation pass changes no state.
    mask
        For a gradient: which elements of its activation were sent.
    keys
        One number for each row of the tensor (all dimensions but the last), such as the token it belongs to.
    """

    seed: int = 0
    train: bool = True
    mask: Mask | None = None
    keys: NDArray[np.integer] | None = None

    @staticmethod
    def at(
        job_seed: int,
        step: int,
        microbatch: int,
        value: int,
        *,
        train: bool = True,
        gradient: bool = False,
        target: int = 0,
        mask: Mask | None = None,
        keys: NDArray[np.integer] | None = None,
    ) -> Context:
        """The context of `value` sent to segment `target` (for a gradient: sent back from it).

        `step` counts passes of its kind and `microbatch` over all replicas, so a repeated step draws the same
        numbers.
        """
        seed = job_seed
        for number in (2 * train + gradient, step, microbatch, value, target + 1):
            seed = mix(seed, number)
        return Context(seed, train, mask, keys)


NO_CONTEXT = Context()
