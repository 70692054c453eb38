"""The module that is exported: the user's own on a batch, down to its scalar loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.precision import Precision

LossFunction = Callable[[Any, dict[str, Tensor]], Tensor]
CASTS: dict[Precision, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
"""What autocast casts to in each precision; None is no autocast."""


class LossModule(nn.Module):
    """Calls the user's module on a batch and returns its scalar loss.

    The batch goes in as keyword arguments. The loss is the result itself, its `loss` attribute or key, or
    what the job's `loss(outputs, batch)` makes of it; with such a function the module is given only the
    entries that its `forward` names. In bfloat16 both run under autocast, and the loss becomes float32.
    """

    def __init__(
        self, module: nn.Module, loss: LossFunction | None, precision: Precision = "float32"
    ) -> None:
        super().__init__()
        self.module = module
        self._loss = loss
        self._casts_to = CASTS[precision]
        self._accepted = _accepted_names(module) if loss is not None else None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        with self.casting():
            loss = self._loss_of(batch)
        return loss.float() if loss.dtype is self._casts_to else loss

    def casting(self) -> AbstractContextManager[object]:
        """Autocast to what the precision asks for, as a context."""
        return torch.autocast("cpu", self._casts_to) if self._casts_to is not None else nullcontext()

    def _loss_of(self, batch: dict[str, Tensor]) -> Tensor:
        accepted = self._accepted
        outputs = self.module(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
        if self._loss is not None:
            return _scalar(self._loss(outputs, batch))
        if isinstance(outputs, Mapping) and "loss" in outputs:
            outputs = outputs["loss"]
        return _scalar(getattr(outputs, "loss", outputs))


def _accepted_names(module: nn.Module) -> set[str] | None:
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def _scalar(loss: object) -> Tensor:
    if isinstance(loss, float | int | torch.SymFloat | torch.SymInt):
        raise CaptureError(
            "the model returns its loss as a Python number, which has no gradient: return the tensor, without"
            " .item()",
            "control-flow",
        )
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise CaptureError(
            f"the model must return its mean loss as a scalar tensor (or an object with `loss`), found "
            f"{found}: return one, or give Job(loss=...)",
            "inputs",
        )
    return loss
