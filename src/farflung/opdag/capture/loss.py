"""The module that is exported: the user's module on a batch, down to its scalar loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.graph import LOSS_WEIGHT, Precision
from farflung.text import kind_of

LossFunction = Callable[[Any, dict[str, Tensor]], Tensor]
CALLED = "Job(loss=) is called as"
"""The beginning of the note on errors of the job's own `loss`."""
CASTS: dict[Precision, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
"""The type to which autocast casts in each precision; None means no autocast."""


class LossModule(nn.Module):
    """Calls the user's module on a batch and returns its scalar loss.

    The batch is passed as keyword arguments. The loss is the result itself, its `loss` attribute or key, or
    the result of the job's `loss(outputs, batch)`; with such a function the module receives only the entries
    that its `forward` names. In bfloat16 both run under autocast, and the loss becomes float32. A batch with
    `LOSS_WEIGHT` weights its loss.
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
        weight = batch.get(LOSS_WEIGHT)
        with self.casting():
            loss = self._loss_of({name: value for name, value in batch.items() if name != LOSS_WEIGHT})
        if loss.dtype is torch.float64:
            _require_single_precision(self.module, batch)
        loss = loss.float() if loss.dtype is self._casts_to else loss
        return loss if weight is None else loss * weight.amax()

    def casting(self) -> AbstractContextManager[object]:
        """A context with autocast as the precision requires."""
        return torch.autocast("cpu", self._casts_to) if self._casts_to is not None else nullcontext()

    def _loss_of(self, batch: dict[str, Tensor]) -> Tensor:
        accepted = self._accepted
        outputs = self.module(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
        if self._loss is not None:
            return self._judged(outputs, batch)
        if isinstance(outputs, Mapping) and "loss" in outputs:
            outputs = outputs["loss"]
        advice = "return one, or an object with `loss`, or give Job(loss=...)"
        return _scalar(getattr(outputs, "loss", outputs), "the model", advice)

    def _judged(self, outputs: object, batch: dict[str, Tensor]) -> Tensor:
        """The loss that the job's own function computes; its errors carry a note on how it is called."""
        assert self._loss is not None
        call = _call(outputs, batch)
        try:
            loss = self._loss(outputs, batch)
        except Exception as error:
            error.add_note(call)
            raise
        return _scalar(loss, "Job(loss=)", call)


def require_names(module: nn.Module, names: Collection[str], loss: LossFunction | None) -> None:
    """Check that `forward` can be called with a batch's entries; CaptureError lists both sides."""
    if module._forward_pre_hooks:  # the loss function may pass something else
        return
    accepted = _accepted_names(module) if loss is not None else None
    signature = inspect.signature(module.forward)
    names = [name for name in names if name != LOSS_WEIGHT]
    try:
        signature.bind(**{name: None for name in names if accepted is None or name in accepted})
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise CaptureError(
            f"the model's forward cannot be called with a batch: {error}; items of the data have"
            f" {', '.join(names)}, forward takes {takes}",
            "inputs",
        ) from None


def _accepted_names(module: nn.Module) -> set[str] | None:
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def _require_single_precision(module: nn.Module, batch: Mapping[str, Tensor]) -> None:
    """Raise CaptureError if the model or the data can be why a loss is float64."""
    if any(parameter.dtype is torch.float64 for parameter in module.parameters()):
        raise CaptureError(
            "the loss must be float32, found float64: parameters of the model are float64: use .float() on it"
            " and on the data where that is float64"
        )
    names = [repr(name) for name, tensor in batch.items() if tensor.dtype is torch.float64]
    if names:
        verb = "is" if len(names) == 1 else "are"
        raise CaptureError(
            f"the loss must be float32, found float64: {', '.join(names)} of the data {verb} float64:"
            " use .float()",
            "inputs",
        )


def _call(outputs: object, batch: Mapping[str, Tensor]) -> str:
    kind = "a tensor" if isinstance(outputs, Tensor) else kind_of(outputs)
    names = ", ".join(map(repr, batch))
    return f"{CALLED} loss(outputs, batch): what the model returned, {kind}, and a dict of tensors, {names}"


def _scalar(loss: object, whose: str, advice: str) -> Tensor:
    if isinstance(loss, float | int | torch.SymFloat | torch.SymInt):
        raise CaptureError(
            f"{whose} returns its loss as a Python number, which has no gradient: return the tensor, without"
            " .item()",
            "control-flow",
        )
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise CaptureError(
            f"{whose} must return the mean loss as a scalar tensor, found {found}: {advice}",
            "inputs",
        )
    return loss
