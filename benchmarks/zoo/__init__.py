"""The models that tests capture, cut and train, one file a family.

`CASES` are small modules of our own that many tests run through, `MODELS` the architectures that farflung
answers for (docs/reference/models.md); `case(name)` finds any.
"""

from __future__ import annotations

from benchmarks.zoo import (
    gpt,
    inputs,
    language,
    precision,
    recurrent,
    resnet,
    stereo,
    structures,
    unet,
    vision,
)
from benchmarks.zoo.case import Batch, Case, RealSize

CASES: list[Case] = [*gpt.CASES, *resnet.CASES, *structures.CASES]

MODELS: list[Case] = [
    *language.CASES,
    *vision.CASES,
    *unet.CASES,
    *stereo.CASES,
    *recurrent.CASES,
    *inputs.CASES,
    *precision.CASES,
]

__all__ = ["CASES", "MODELS", "Batch", "Case", "RealSize", "case"]


def case(name: str) -> Case:
    """The case called `name`."""
    return next(found for found in (*CASES, *MODELS) if found.name == name)
