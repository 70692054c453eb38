"""The module that is exported: the user's module on a batch, down to its scalar loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from farflung.errors import CaptureError
from farflung.opdag.capture.symbols import in_words
from farflung.opdag.graph import LOSS_WEIGHT, Precision
from farflung.text import kind_of

LossFunction = Callable[[Any, dict[str, Tensor]], Tensor]
MetricFunction = Callable[[Any, dict[str, Tensor]], Tensor | tuple[Tensor, Tensor]]
"""Gives a metric's mean over a microbatch as a scalar, or a sum and the count that divides it."""
CALLED = "Job(loss=) is called as"
"""The beginning of the note on errors of the job's own `loss`."""
CASTS: dict[Precision, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
"""The type to which autocast casts in each precision; None means no autocast."""


class Returned:
    """How many scalars each metric returned; an object, because export restores a module's dicts."""

    def __init__(self) -> None:
        self.scalars: dict[str, int] = {}


class LossModule(nn.Module):
    """Calls the user's module on a batch and returns its scalar loss.

    The batch is passed as keyword arguments. The loss is the result itself, its `loss` attribute or key, or
    the result of the job's `loss(outputs, batch)`; with such a function the module receives only the entries
    that its `forward` names. In bfloat16 both run under autocast, and the loss becomes float32. A batch with
    `LOSS_WEIGHT` weights its loss, and the metrics that are means.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction | None,
        precision: Precision = "float32",
        metrics: Mapping[str, MetricFunction] | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self._loss = loss
        self.metrics = dict(metrics or {})
        self.returned = Returned()
        self._casts_to = CASTS[precision]
        self._accepted = _accepted_names(module) if loss is not None else None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self._computed(batch)[0]

    def measured(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The loss, and then the scalars of each metric."""
        loss, outputs = self._computed(batch)
        weight = batch.get(LOSS_WEIGHT)
        given = {name: value for name, value in batch.items() if name != LOSS_WEIGHT}
        outputs = tree_map_only(Tensor, Tensor.detach, outputs)
        scalars: list[Tensor] = []
        for name, metric in self.metrics.items():
            with self.casting():
                found = _scalars_of(name, metric, outputs, given)
            self.returned.scalars[name] = len(found)
            is_mean = len(found) == 1 and weight is not None
            scalars += [found[0] * weight.amax()] if is_mean and weight is not None else found
        return (loss, *scalars)

    def _computed(self, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        weight = batch.get(LOSS_WEIGHT)
        with self.casting():
            loss, outputs = self._loss_of(
                {name: value for name, value in batch.items() if name != LOSS_WEIGHT}
            )
        if loss.dtype is torch.float64:
            _require_single_precision(self.module, batch)
        loss = loss.float() if loss.dtype is self._casts_to else loss
        return loss if weight is None else loss * weight.amax(), outputs

    def casting(self) -> AbstractContextManager[object]:
        """A context with autocast as the precision requires."""
        return torch.autocast("cpu", self._casts_to) if self._casts_to is not None else nullcontext()

    def _loss_of(self, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        """The loss and the module's outputs."""
        accepted = self._accepted
        outputs = self.module(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
        if self._loss is not None:
            return self._judged(outputs, batch), outputs
        found = outputs["loss"] if isinstance(outputs, Mapping) and "loss" in outputs else outputs
        advice = "return one, or an object with `loss`, or give Job(loss=...)"
        return _scalar(getattr(found, "loss", found), "the model", advice), outputs

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


def _scalars_of(name: str, metric: MetricFunction, outputs: object, batch: dict[str, Tensor]) -> list[Tensor]:
    """What a metric returns, as float32 scalars; its errors carry a note on how it is called."""
    try:
        found = metric(outputs, batch)
    except Exception as error:
        error.add_note(f"the metric {name!r} is called as metric(outputs, batch)")
        raise
    scalars = list(found) if isinstance(found, tuple) else [found]
    if not 1 <= len(scalars) <= 2 or any(not isinstance(one, Tensor) or one.ndim for one in scalars):
        raise CaptureError(
            f"the metric {name!r} must return its mean over the batch as a scalar tensor, or two: a sum and"
            f" the count that divides it; found {kind_of(found)}",
            "inputs",
        )
    return [one.detach().float() for one in scalars]


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
        extra = [name for name in names if name not in signature.parameters]
        cure = f"; leave out what it does not take: data.remove_columns({extra})" if extra else ""
        raise CaptureError(
            f"the model's forward cannot be called with a batch: {error}; items of the data have"
            f" {', '.join(names)}, forward takes {takes}{cure}",
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
        found = type(loss).__name__
        if isinstance(loss, Tensor):
            found = f"a tensor of shape {in_words(list(loss.shape))}"
        raise CaptureError(
            f"{whose} must return the mean loss as a scalar tensor, found {found}: {advice}",
            "inputs",
        )
    return loss
