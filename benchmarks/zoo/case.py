"""What a model of the zoo is: how it is made, what it is fed, how closely its cut form must follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farflung.opdag.capture.capture import LossFunction

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class RealSize:
    """The model as people train it; never given weights. `precise` says which one it is."""

    precise: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]


@dataclass(frozen=True)
class Case:
    """A model by name, small enough for a test.

    Parameters
    ----------
    build
        Seeds and makes it.
    batch
        Makes a batch from a number of samples and a seed.
    loss
        The job's loss function, where the module does not return its loss.
    tolerance
        How far a gradient of the cut model may be from eager's, as docs/explanation/numerics.md
        defines differences;
        0 asks for equal bits wherever it is cut.
    notes
        What is special about it: why it is here, and where its tolerance comes from.
    real
        The same architecture at its usual size, where `make models` shows it.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    loss: LossFunction | None = None
    tolerance: float = 0.0
    notes: str = ""
    real: RealSize | None = None


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """`make` with the same weights at every call."""

    def build() -> nn.Module:
        torch.manual_seed(11)
        return make()

    return build
