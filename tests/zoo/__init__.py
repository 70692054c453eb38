"""The models that tests capture, cut and train, one file a family.

`CASES` are small modules of our own that many tests run through; `case(name)` finds any.
"""

from __future__ import annotations

from tests.zoo import gpt, resnet, structures
from tests.zoo.case import Batch, Case, RealSize

CASES: list[Case] = [*gpt.CASES, *resnet.CASES, *structures.CASES]

__all__ = ["Batch", "CASES", "Case", "RealSize", "case"]


def case(name: str) -> Case:
    """The case called `name`."""
    return next(found for found in CASES if found.name == name)
