"""farflung: train one PyTorch model on devices that are far apart.

The public face; each name is imported when it is first used, so that `import farflung` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung import data
    from farflung.client.api.job import Job
    from farflung.client.api.planning import plan, simulate
    from farflung.opdag.capture import Capture, capture
    from farflung.runtime.optimizer import SGD, Adafactor, AdamW, Group, Lion, Muon
    from farflung.runtime.schedules import (
        WSD,
        Constant,
        CosineAnnealingLR,
        ExponentialLR,
        LinearLR,
        MultiStepLR,
        OneCycleLR,
        StepLR,
        Table,
        WarmupCosine,
    )

__version__ = "0.1.0"

__all__ = [
    "Adafactor",
    "AdamW",
    "Capture",
    "Constant",
    "CosineAnnealingLR",
    "ExponentialLR",
    "Group",
    "Job",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "Muon",
    "OneCycleLR",
    "SGD",
    "StepLR",
    "Table",
    "WSD",
    "WarmupCosine",
    "capture",
    "data",
    "plan",
    "simulate",
]

_HOMES = {
    "Adafactor": "farflung.runtime.optimizer",
    "AdamW": "farflung.runtime.optimizer",
    "Capture": "farflung.opdag.capture",
    "Constant": "farflung.runtime.schedules",
    "CosineAnnealingLR": "farflung.runtime.schedules",
    "ExponentialLR": "farflung.runtime.schedules",
    "Group": "farflung.runtime.optimizer",
    "Job": "farflung.client.api.job",
    "LinearLR": "farflung.runtime.schedules",
    "Lion": "farflung.runtime.optimizer",
    "MultiStepLR": "farflung.runtime.schedules",
    "Muon": "farflung.runtime.optimizer",
    "OneCycleLR": "farflung.runtime.schedules",
    "SGD": "farflung.runtime.optimizer",
    "StepLR": "farflung.runtime.schedules",
    "Table": "farflung.runtime.schedules",
    "WSD": "farflung.runtime.schedules",
    "WarmupCosine": "farflung.runtime.schedules",
    "capture": "farflung.opdag.capture",
    "plan": "farflung.client.api.planning",
    "simulate": "farflung.client.api.planning",
}


def __getattr__(name: str) -> object:
    if name == "data":
        return import_module("farflung.data")
    if name not in _HOMES:
        raise AttributeError(f"module 'farflung' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
