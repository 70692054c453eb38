"""farflung: train one PyTorch model on devices that are far apart.

The public face; each name is imported when it is first used, so that `import farflung` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung import data, errors, metrics, objectives
    from farflung.client.api.checking import capture, check
    from farflung.client.api.connect import connect
    from farflung.client.api.fleet import Fleet
    from farflung.client.api.job import Job
    from farflung.client.api.monitors import EarlyStopping, KeepBest
    from farflung.client.api.planning import plan, simulate
    from farflung.client.api.run import Run
    from farflung.client.output.progress import Observer
    from farflung.client.output.records import StepRow, Summary
    from farflung.errors import FarflungError
    from farflung.localhost.local import local
    from farflung.opdag.capture import Capture
    from farflung.pages.report.notebook import show
    from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Group, Lion, Muon
    from farflung.runtime.optimizers.diloco import DiLoCo, Nesterov
    from farflung.runtime.optimizers.schedules import (
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
    from farflung.runtime.parity.steps import CheckReport

__version__ = "0.1.0"

__all__ = [
    "Adafactor",
    "AdamW",
    "Capture",
    "CheckReport",
    "Constant",
    "CosineAnnealingLR",
    "DiLoCo",
    "EarlyStopping",
    "ExponentialLR",
    "FarflungError",
    "Fleet",
    "Group",
    "Job",
    "KeepBest",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "Muon",
    "Nesterov",
    "Observer",
    "OneCycleLR",
    "Run",
    "SGD",
    "StepLR",
    "StepRow",
    "Summary",
    "Table",
    "WSD",
    "WarmupCosine",
    "capture",
    "check",
    "connect",
    "data",
    "errors",
    "local",
    "metrics",
    "objectives",
    "plan",
    "show",
    "simulate",
]

_MODULES = ("data", "errors", "metrics", "objectives")
_HOMES = {
    "Adafactor": "farflung.runtime.optimizers.declared",
    "AdamW": "farflung.runtime.optimizers.declared",
    "Capture": "farflung.opdag.capture",
    "CheckReport": "farflung.runtime.parity.steps",
    "Constant": "farflung.runtime.optimizers.schedules",
    "CosineAnnealingLR": "farflung.runtime.optimizers.schedules",
    "DiLoCo": "farflung.runtime.optimizers.diloco",
    "EarlyStopping": "farflung.client.api.monitors",
    "ExponentialLR": "farflung.runtime.optimizers.schedules",
    "FarflungError": "farflung.errors",
    "Fleet": "farflung.client.api.fleet",
    "Group": "farflung.runtime.optimizers.declared",
    "Job": "farflung.client.api.job",
    "KeepBest": "farflung.client.api.monitors",
    "LinearLR": "farflung.runtime.optimizers.schedules",
    "Lion": "farflung.runtime.optimizers.declared",
    "MultiStepLR": "farflung.runtime.optimizers.schedules",
    "Muon": "farflung.runtime.optimizers.declared",
    "Nesterov": "farflung.runtime.optimizers.diloco",
    "Observer": "farflung.client.output.progress",
    "OneCycleLR": "farflung.runtime.optimizers.schedules",
    "Run": "farflung.client.api.run",
    "SGD": "farflung.runtime.optimizers.declared",
    "StepLR": "farflung.runtime.optimizers.schedules",
    "StepRow": "farflung.client.output.records",
    "Summary": "farflung.client.output.records",
    "Table": "farflung.runtime.optimizers.schedules",
    "WSD": "farflung.runtime.optimizers.schedules",
    "WarmupCosine": "farflung.runtime.optimizers.schedules",
    "capture": "farflung.client.api.checking",
    "check": "farflung.client.api.checking",
    "connect": "farflung.client.api.connect",
    "local": "farflung.localhost.local",
    "plan": "farflung.client.api.planning",
    "show": "farflung.pages.report.notebook",
    "simulate": "farflung.client.api.planning",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"farflung.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'farflung' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
