"""Compare one microbatch of a captured graph with the user's module: loss, every gradient, every buffer.

Capture does this for every job, so it saves memory: neither side copies a parameter, the graph's gradients
exist once, and eager's are compared and freed one by one during its backward pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.capture.custom_functions import compared_functions
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.eager import Batch, SeededRandomOps, attending_as, own
from farflung.runtime.parity.steps import (
    Tolerances,
    parameter_difference,
    parameter_names,
    relative,
    tolerances,
)
from farflung.runtime.training import Training, microbatch_seed
from farflung.text import count_of

_ONLY_IN_TRAINING = frozenset({"aten.native_dropout.default", "aten.scaled_dot_product_attention.default"})


class SelfCheck(msgspec.Struct, frozen=True):
    """Differences between graph and eager; relative, as docs/explanation/numerics.md defines them."""

    loss_difference: float
    worst_gradient_difference: float
    worst_gradient: str
    worst_buffer_difference: float
    worst_buffer: str
    evaluation_difference: float
    gradients: int
    allowed: Tolerances = Tolerances()

    @property
    def trains_as_eager(self) -> bool:
        """Whether a training step is within the tolerances of `farflung check`."""
        return not self.differences()

    def differences(self) -> list[str]:
        """Describe the quantities of a training step that exceed their tolerances."""
        rows = [
            ("the loss", self.loss_difference, self.allowed.loss),
            (f"the gradient of {self.worst_gradient}", self.worst_gradient_difference, self.allowed.gradient),
            (f"buffer {self.worst_buffer}", self.worst_buffer_difference, self.allowed.parameter),
        ]
        return [_beyond(*row) for row in rows if not row[1] <= row[2]]

    @property
    def evaluates_as_eager(self) -> bool:
        """Whether the evaluation graph's loss equals that of `module.eval()` within the tolerance."""
        return self.evaluation_difference <= self.allowed.loss


def _beyond(what: str, difference: float, allowed: float) -> str:
    if not math.isfinite(difference):
        return f"{what} is missing on one side, or is not a number"
    return f"{what} differs by {difference:.1e} ({allowed:.0e} is allowed)"


def self_check(
    module: nn.Module,
    loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]],
    graph: Graph,
    plan: Plan,
    segments: Sequence[Segment],
    training: Training,
    batch: Batch,
    draws: Sequence[int],
) -> SelfCheck:
    """Run one evaluation and one training microbatch on both sides; does not change `module`.

    `plan` has one segment on one worker, `training` one microbatch per step and one evaluation microbatch.
    `draws` are the numbers of the random nodes, as in `Capture`.
    """
    eager = _Eager(module, loss_of, graph, training, draws)
    expected_evaluation = eager.evaluate(batch)  # first, to report failures of the module itself as such
    evaluation, unit = list(training.units())[:2]
    state = _own_state(module, graph)
    pipeline = InProcessPipeline(graph, plan, segments, state, training)
    evaluated = sum(share.loss for share in pipeline.run(evaluation.number, [batch]))
    pipeline.decide(evaluation.number, 1.0)
    loss = sum(share.loss for share in pipeline.run(unit.number, [batch]))
    gradients = {n: g for segment in pipeline.segments for n, g in segment.take_gradients().items()}
    pipeline.decide(unit.number, 1.0)  # without gradients: buffers only

    comparison = _GradientComparison(gradients)
    expected = eager.train(batch, comparison.compare)
    worst = comparison.worst()
    buffers = {name: tensor.detach() for name, tensor in module.named_buffers()}
    buffers.update((name, tensor) for name, tensor in state.items() if name in buffers)
    buffer = parameter_difference(buffers, eager.buffers())
    return SelfCheck(
        loss_difference=relative(loss, expected),
        worst_gradient_difference=worst[0],
        worst_gradient=worst[1],
        worst_buffer_difference=buffer[0],
        worst_buffer=buffer[1],
        evaluation_difference=relative(evaluated, expected_evaluation),
        gradients=comparison.count,
        allowed=tolerances(graph, training.precision),
    )


def require_own_loss(
    module: nn.Module,
    loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]],
    graph: Graph,
    training: Training,
    draws: Sequence[int],
    batch: Batch,
) -> None:
    """Check that the module itself runs on `batch`; CaptureError if it fails or its loss is not finite."""
    _require_number(_Eager(module, loss_of, graph, training, draws).evaluate(batch))


def require_derivatives(
    module: nn.Module,
    loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]],
    graph: Graph,
    training: Training,
    batch: Batch,
) -> None:
    """Check each custom `autograd.Function` that forward applies (`compared_functions`, which raises)."""
    _Eager(module, loss_of, graph, training, ()).compare_functions(batch)


def _own_state(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """The module's own parameters, and copies of its buffers, by the names in the graph."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    state = {entry.name: parameters[entry.name].detach() for entry in graph.inputs_of("parameter")}
    return state | {entry.name: buffers[entry.name].clone() for entry in graph.inputs_of("buffer")}


class _Eager:
    """The user's module with its own buffers and shared parameters."""

    def __init__(
        self,
        module: nn.Module,
        loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]],
        graph: Graph,
        training: Training,
        draws: Sequence[int],
    ) -> None:
        self._module = shared_copy(module)
        self._loss_of = loss_of(self._module)
        self._seed = training.seed
        self._graph = graph
        self._draws = draws

    def evaluate(self, batch: Batch) -> float:
        """The loss of `module.eval()`; buffers stay unchanged."""
        before = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        operators = {node.number: node.op for node in self._graph.nodes}
        numbers = [n for n in self._draws if n in operators and operators[n] not in _ONLY_IN_TRAINING]
        self._module.eval()
        with torch.no_grad(), SeededRandomOps(microbatch_seed(self._seed, False, 0, 0), numbers):
            loss = float(self._loss(batch))
        for buffer, value in before:
            buffer.copy_(value)
        return loss

    def train(self, batch: Batch, take: Callable[[str, Tensor], None]) -> float:
        """The loss in train mode; `take` is called with each parameter's name and gradient, which is then
        freed.
        """
        names = parameter_names(self._module, self._graph)

        def compare(parameter: Tensor) -> None:
            assert parameter.grad is not None
            take(names[id(parameter)], parameter.grad)
            parameter.grad = None

        self._module.train()
        with SeededRandomOps(microbatch_seed(self._seed, True, 0, 0), self._draws):
            loss = self._loss(batch)
        _require_number(float(loss.detach()))
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(compare)
        try:
            loss.backward()
        except Exception as error:
            raise _failed("backward pass", batch, error) from error
        return float(loss.detach())

    def compare_functions(self, batch: Batch) -> None:
        """Run forward in train mode, and compare the Functions in it; torch's generator stays as it is."""
        self._module.train()
        with torch.random.fork_rng(devices=[]), compared_functions():
            self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        try:
            with attending_as(self._graph):
                return self._loss_of(own(batch))
        except CaptureError:
            raise
        except Exception as error:
            raise _failed("forward", batch, error) from error

    def buffers(self) -> dict[str, Tensor]:
        """Every buffer by name, after the training microbatch."""
        return dict(self._module.named_buffers())


def _require_number(loss: float) -> None:
    """Raise CaptureError if the loss is not finite, because then the comparison means nothing."""
    if not math.isfinite(loss):
        raise CaptureError(
            f"the model's loss is {loss} on the first batch, before any step: check the values of the data"
            " and of the model",
            "self-check",
        )


def _failed(what: str, batch: Batch, error: Exception) -> CaptureError:
    samples = len(next(iter(batch.values())))
    doubled = [repr(name) for name, tensor in batch.items() if tensor.dtype is torch.float64]
    advice = f"; float64 in the data: {', '.join(doubled)}, use .float()" if doubled else ""
    line = (str(error).strip() or "no message").splitlines()[0][:200]
    return CaptureError(
        f"the model's own {what} fails on a microbatch of {count_of(samples, 'sample')}:"
        f" {type(error).__name__}: {line}{advice}",
        "self-check",
    )


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters' memory but has its own gradients, buffers and hooks."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in module.parameters()
    }
    for part in module.modules():
        for value in part.__dict__.values():
            if isinstance(value, Tensor) and not value.is_leaf:  # left behind by an old weight_norm
                memo[id(value)] = value.detach()
    return copy.deepcopy(module, memo)


class _GradientComparison:
    """Compares eager's gradients with the graph's as they arrive."""

    def __init__(self, ours: Mapping[str, Tensor]) -> None:
        self._ours = dict(ours)
        self._rows: list[tuple[str, float, float]] = []

    @property
    def count(self) -> int:
        """The number of compared gradients."""
        return len(self._rows)

    def compare(self, name: str, theirs: Tensor) -> None:
        """Compare eager's gradient of a parameter, and drop the graph's."""
        ours = self._ours.pop(name, None)
        if ours is None:
            self._rows.append((name, math.inf, 0.0))
            return
        largest = max(map(abs, map(float, torch.aminmax(theirs)))) if theirs.numel() else 0.0
        distance = 0.0 if torch.equal(ours, theirs) else float(torch.sub(ours, theirs).abs_().max())
        self._rows.append((name, math.inf if math.isnan(distance) else distance, largest))

    def worst(self) -> tuple[float, str]:
        """The worst difference and its parameter; infinite if one side lacks a gradient."""
        if self._ours:
            return math.inf, min(self._ours)
        floor = 1e-4 * max((row[2] for row in self._rows), default=0.0)
        found = [(_ratio(distance, max(largest, floor)), name) for name, distance, largest in self._rows]
        return max(found, default=(0.0, ""))


def _ratio(distance: float, scale: float) -> float:
    return distance / scale if scale else distance
