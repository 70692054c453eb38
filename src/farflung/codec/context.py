"""What both ends of a link know of a tensor without being told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farflung.codec.mask import Mask
from farflung.mixing import mix


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
