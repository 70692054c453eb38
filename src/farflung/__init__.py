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
    from farflung.runtime.optimizer import SGD, AdamW, Constant, WarmupCosine

__version__ = "0.1.0"

__all__ = [
    "AdamW",
    "Capture",
    "Constant",
    "Job",
    "SGD",
    "WarmupCosine",
    "capture",
    "data",
    "plan",
    "simulate",
]

_HOMES = {
    "AdamW": "farflung.runtime.optimizer",
    "Capture": "farflung.opdag.capture",
    "Constant": "farflung.runtime.optimizer",
    "Job": "farflung.client.api.job",
    "SGD": "farflung.runtime.optimizer",
    "WarmupCosine": "farflung.runtime.optimizer",
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
