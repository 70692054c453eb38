"""What both ends of a link know of a tensor without being told.

Which elements of a tensor were sent, remembered from its forward pass to its backward pass.
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
    _kept: NDArray[np.uint8] | NDArray[np.uint32]

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
            return self._kept.astype(np.int64)
        return from_bits(self._kept.astype(np.uint8, copy=False), self.elements)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self._kept.nbytes


@dataclass(frozen=True, eq=False)
class Context:
    """Where a tensor stands in a run.

    Attributes
    ----------
    seed
        Random signs and roundings are drawn from this. It must be another one for each step, microbatch and
        value: the same signs at every step make the errors of a gradient add up (`Context.at`).
    train
        What is written in an evaluation pass changes no state.
    mask
        Of a gradient: which elements of its activation were sent.
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
        """The context of `value` on its way to segment `target` (of a gradient: back from it).

        `step` counts passes of its kind and `microbatch` over all replicas, so a step that is run again
        draws the same.
        """
        seed = job_seed
        for number in (2 * train + gradient, step, microbatch, value, target + 1):
            seed = mix(seed, number)
        return Context(seed, train, mask, keys)


NOWHERE = Context()
