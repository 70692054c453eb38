"""The route from a module to an OP-DAG: export in train mode, keep gradient modes, functionalise, normalise.

`torch.export` traces the module with fake tensors. Decomposing to Core ATen is avoided on purpose: it loses
`no_grad` and `detach` without a word, breaks views and needs 1.4-3 times the nodes. An empty decomposition
table only makes the graph functional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.capture.grad_mode import inline_gradient_modes
from farflung.opdag.capture.lints import (
    explain_failure,
    forbid_buffer_assignment,
    forbid_custom_functions,
    quiet,
    watch_checkpointing,
)
from farflung.opdag.capture.normalise import Normaliser, Origin
from farflung.opdag.capture.recurrent import unroll_recurrent_layers
from farflung.opdag.graph import Graph

LossFunction = Callable[[Any, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Capture:
    """A captured model: the graph, where each node came from, and what the user should know.

    `origins` maps a node's number to the module path and source line; `lints` are remarks that stop nothing.
    """

    graph: Graph
    origins: Mapping[int, Origin]
    lints: tuple[str, ...]


class LossModule(nn.Module):
    """Calls the user's module on a batch and returns its scalar loss.

    The batch goes in as keyword arguments. The loss is the result itself, its `loss` attribute or key, or
    what the job's `loss(outputs, batch)` makes of it; with such a function the module is given only the
    entries that its `forward` names.
    """

    def __init__(self, module: nn.Module, loss: LossFunction | None) -> None:
        super().__init__()
        self.module = module
        self._loss = loss
        self._accepted = _accepted_names(module) if loss is not None else None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        accepted = self._accepted
        outputs = self.module(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
        if self._loss is not None:
            return _scalar(self._loss(outputs, batch))
        if isinstance(outputs, Mapping) and "loss" in outputs:
            outputs = outputs["loss"]
        return _scalar(getattr(outputs, "loss", outputs))


def _accepted_names(module: nn.Module) -> set[str] | None:
    import inspect

    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def _scalar(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise CaptureError(
            f"the model must return its mean loss as a scalar tensor (or an object with `loss`), found "
            f"{found}: return one, or give Job(loss=...)"
        )
    return loss


def capture(module: nn.Module, example: Mapping[str, Tensor], loss: LossFunction | None = None) -> Capture:
    """Capture `module` in train mode on `example`, a collated batch of at least two samples.

    Only the first dimension of the inputs may vary afterwards. The module's state is not changed and not
    part of the result.

    Raises
    ------
    CaptureError
        Data-dependent control flow, a custom `autograd.Function`, an op outside the opset, or an input that
        nothing reads; names the op, the module path and the user's source line.
    """
    wrapper = LossModule(module, loss)
    names = sorted(example)
    batch = {name: example[name].detach().clone() for name in names}
    if any(tensor.ndim == 0 or tensor.shape[0] < 2 for tensor in batch.values()):
        raise CaptureError("the example batch must hold at least 2 samples, first dimension first")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter {name!r} has a gradient hook, which no worker would run: remove it"
            )
    modes = [(part, part.training) for part in module.modules()]
    wrapper.train()
    try:
        with forbid_custom_functions(), forbid_buffer_assignment(), watch_checkpointing() as remarks:
            exported = _export(wrapper, batch)
    finally:
        for part, training in modes:
            part.training = training
    graph, origins, lints = Normaliser(exported, names, module).run()
    return Capture(graph, origins, (*remarks, *lints))


def _export(wrapper: nn.Module, batch: dict[str, Tensor]) -> torch.export.ExportedProgram:
    shapes = ({name: {0: torch.export.Dim.AUTO} for name in batch},)
    with quiet(), unroll_recurrent_layers():
        try:
            exported = torch.export.export(wrapper, (batch,), strict=False, dynamic_shapes=shapes)
            inline_gradient_modes(exported)
            return exported.run_decompositions({})
        except CaptureError:
            raise
        except Exception as error:
            raise explain_failure(error) from error
