"""From a module to an OP-DAG: export in train mode, keep gradient modes, functionalise, normalise.

`torch.export` traces the module with fake tensors. We do not decompose to Core ATen: that silently
loses `no_grad` and `detach`, breaks views and needs 1.4-3 times the nodes. An empty decomposition table only
makes the graph functional; ops that the opset lacks are decomposed one by one (`decompose.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag import wire
from farflung.opdag.capture import python_state
from farflung.opdag.capture.call_recorder import Watch
from farflung.opdag.capture.custom_functions import CUSTOM_FUNCTIONS, plain_functions
from farflung.opdag.capture.decompose import functional, is_functional
from farflung.opdag.capture.draft import Origin
from farflung.opdag.capture.failures import explain_failure, quiet, with_missing_mask, with_switch
from farflung.opdag.capture.lint_results import Remarks, Verdict
from farflung.opdag.capture.lints import (
    check_batch,
    check_masks,
    forbid_buffer_assignment,
    forbid_conversions,
    watch_checkpointing,
)
from farflung.opdag.capture.loss import CASTS, LossFunction, LossModule, MetricFunction, require_names
from farflung.opdag.capture.missing_ops import all_draws, live_draws
from farflung.opdag.capture.module_state import as_if_on_cpu, require_buffers_apart, require_capturable
from farflung.opdag.capture.normalise import Normaliser
from farflung.opdag.capture.other_names import drop_other_names
from farflung.opdag.capture.recurrent import unroll_recurrent_layers
from farflung.opdag.capture.regions import inline_regions
from farflung.opdag.capture.whole_slices import WholeSlices
from farflung.opdag.graph import Graph, Precision
from farflung.opdag.quantized import Quantization


@dataclass(frozen=True)
class Capture:
    """A captured model: the graph, the origin of each node, and the verdict of each lint.

    `origins` maps a node's number to the module path and source line. `draws` are the numbers of all nodes
    that draw random numbers, including those that the graph lacks because nothing depends on them: eager
    execution runs them. `quantization` says what of the graph was quantized after it was captured.
    """

    graph: Graph
    origins: Mapping[int, Origin]
    verdicts: tuple[Verdict, ...]
    draws: tuple[int, ...]
    quantization: Quantization | None = None

    @property
    def lints(self) -> tuple[str, ...]:
        """Remarks for the user, which do not stop a run."""
        remarks = [verdict.words for verdict in self.verdicts if verdict.outcome == "remark"]
        return tuple(remarks if self.quantization is None else [*remarks, *self.quantization.remarks()])

    @property
    def custom_functions(self) -> str:
        """Which custom `autograd.Function`s run as the ops of their forward, in words; empty if none does."""
        found = [verdict.words for verdict in self.verdicts if verdict.lint == CUSTOM_FUNCTIONS]
        return "; ".join(found)


def capture(
    module: nn.Module,
    example: Mapping[str, Tensor],
    loss: LossFunction | None = None,
    precision: Precision = "float32",
    metrics: Mapping[str, MetricFunction] | None = None,
    several_lengths: bool = False,
) -> Capture:
    """Capture `module` in train mode on `example`, a collated batch of at least two samples.

    Only the first dimension of the inputs may vary afterwards. The module's state is not changed and not
    part of the result; it may be on the meta device. In bfloat16 it is captured as it runs under
    `torch.autocast`. `metrics` are computed in evaluations, of outputs without gradients. A model that is
    captured at `several_lengths` keeps slices that take the whole (`whole_slices`).

    Raises
    ------
    CaptureError
        The model has something that a graph cannot hold: data-dependent control flow, an op outside the
        opset, an input that nothing reads
        (docs/reference/capture-checks.md lists all). The message names the op, the module path and the line.
    """
    remarks = Remarks()
    require_capturable(module, remarks)
    given, module = module, as_if_on_cpu(module)
    require_names(module, sorted(example), loss)
    batch = {name: _own(example[name]) for name in sorted(example)}
    if any(tensor.ndim == 0 or tensor.shape[0] < 2 for tensor in batch.values()):
        raise CaptureError(
            "the example batch must hold at least 2 samples, first dimension first", "batch-size"
        )
    with _left_alone(module) as before, WholeSlices() if several_lengths else nullcontext():
        try:
            found = _trace(module, batch, loss, precision, remarks, metrics or {})
        except CaptureError as error:
            trace = partial(_trace, module, batch, loss, precision, Remarks())
            error = with_missing_mask(_of_its_metric(error, trace, metrics or {}), module, batch)
            raise with_switch(error, module) from None
        if changed := python_state.changed(before, found.left):
            words = ", ".join(changed[:4])
            python_state.put(module, found.left)
            again = partial(_trace, module, batch, loss, precision, Remarks(), metrics or {})
            if not _is_same(found.graph, lambda: again().graph):
                raise CaptureError(
                    f"forward changes {words} and then computes something else, which a graph cannot: keep it"
                    " in a buffer",
                    "python-state",
                )
            remarks.add(
                "python-state", f"forward changes {words}, which workers do not; the graph is the same"
            )
    graph = found.graph
    require_buffers_apart(given, graph.mutations)
    return Capture(graph, found.origins, remarks.verdicts(), found.draws)


def _own(tensor: Tensor) -> Tensor:
    """A copy, because export treats a tensor that occurs twice as one input; zeros for a meta tensor."""
    return torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor.detach().clone()


@contextmanager
def _left_alone(module: nn.Module) -> Iterator[python_state.Attributes]:
    """Train mode in this block; afterwards, modes and attributes are restored."""
    modes = [(part, part.training) for part in module.modules()]
    before = python_state.attributes(module)
    module.train()
    try:
        yield before
    finally:
        python_state.put(module, before)
        for part, training in modes:
            part.training = training


def _of_its_metric(
    error: CaptureError,
    trace: Callable[[Mapping[str, MetricFunction]], object],
    metrics: Mapping[str, MetricFunction],
) -> CaptureError:
    """The error, with the name of the metric without which there is none."""
    for name in metrics:
        with suppress(CaptureError):
            trace({other: metric for other, metric in metrics.items() if other != name})
            return CaptureError(f"the metric {name!r} cannot run on workers: {error}", error.lint)
    return error


def _is_same(graph: Graph, trace: Callable[[], Graph]) -> bool:
    """Whether tracing again gives the same graph."""
    try:
        return wire.dump(trace()) == wire.dump(graph)
    except CaptureError:
        return False


@dataclass(frozen=True)
class _Traced:
    """A graph, and the module's attributes after forward."""

    graph: Graph
    origins: Mapping[int, Origin]
    draws: tuple[int, ...]
    left: python_state.Attributes


class _Observed(LossModule):
    """Computes the loss while every torch call of the user's code is observed."""

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction | None,
        precision: Precision,
        metrics: Mapping[str, MetricFunction],
    ) -> None:
        super().__init__(module, loss, precision, metrics)
        self.watch = Watch()

    def forward(self, batch: dict[str, Tensor]) -> Any:
        self.watch.follow(batch)
        before = python_state.attributes(self.module)
        with python_state.forbid_foreign_randomness(), self.watch:
            result = self.measured(batch) if self.metrics else super().forward(batch)
        self.watch.left = python_state.left_by(self.module, before)  # export restores attributes of modules
        return result


def _trace(
    module: nn.Module,
    batch: Mapping[str, Tensor],
    loss: LossFunction | None,
    precision: Precision,
    remarks: Remarks,
    metrics: Mapping[str, MetricFunction],
) -> _Traced:
    wrapper = _Observed(module, loss, precision, metrics)
    with (
        plain_functions(remarks),
        forbid_buffer_assignment(),
        forbid_conversions(),
        watch_checkpointing(remarks),
        unroll_recurrent_layers(),
        quiet(),
    ):
        try:
            exported, is_live = _export(wrapper, dict(batch), CASTS[precision], remarks)
        except CaptureError as error:
            raise _more_exact(error, wrapper.watch.dependent) from None
        except Exception as error:
            if "compiled_fn" in str(error):  # torch fails like this if a buffer that changes has a view
                require_buffers_apart(module, dict(module.named_buffers()))
            raise explain_failure(error, wrapper.watch.dependent) from error
    for place in wrapper.watch.asserted:
        remarks.add("control-flow", f"workers do not check what is asserted of data ({place})")
    names = list(batch)
    normaliser = Normaliser(exported, names, module, wrapper.returned.scalars)
    try:
        check_batch(exported, names, wrapper.watch.fixed_at, remarks)
        graph, origins = normaliser.run()
        check_masks(graph, wrapper.watch.dependent)
    except CaptureError as error:
        raise _more_exact(error, wrapper.watch.dependent) from None
    draws = all_draws(normaliser.draws(), is_live, len(origins))
    return _Traced(graph, origins, draws, wrapper.watch.left)


def _more_exact(error: CaptureError, dependent: str | None) -> CaptureError:
    """Return a more exact error if forward depended on data."""
    if dependent is not None and error.lint in ("opset", "control-flow"):
        return CaptureError(dependent, "control-flow")
    return error


def _export(
    wrapper: LossModule, batch: dict[str, Tensor], casts_to: torch.dtype | None, remarks: Remarks
) -> tuple[torch.export.ExportedProgram, list[bool]]:
    """The functional program and, for each random node of the exported one, whether anything depends on it.

    Casts are added while the graph becomes functional, which keeps each node's source line.
    """
    shapes = ({name: {0: torch.export.Dim.AUTO} for name in batch},)
    exported = torch.export.export(wrapper, (batch,), strict=False, dynamic_shapes=shapes)
    inline_regions(exported, casts_to, remarks)
    drop_other_names(exported)
    is_live = live_draws(exported.graph)
    if casts_to is None and all(is_live) and is_functional(exported):
        return exported, is_live
    with wrapper.casting():
        return functional(exported), is_live
