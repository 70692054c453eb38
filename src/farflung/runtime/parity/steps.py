"""Compare a captured, cut and trained model with eager training, in one process."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from farflung.opdag import wire
from farflung.opdag.graph import Graph, Precision
from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.eager import Batch, Reference, attending_as, own
from farflung.runtime.torch_backend.verify import verify_segment
from farflung.runtime.training import Training
from farflung.text import count_of, format_bytes

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 5e-4
"""Where gradients cancel, their rounding shows: those of an adapter of T5's keys, to which softmax is blind
if all shift alike, differ by 1.2e-4 with AVX-512 of an AMD EPYC, and others by 1.5e-4 with AVX2.
"""
PARAMETER_TOLERANCE = 1e-4


class Tolerances(msgspec.Struct, frozen=True):
    """The largest relative differences that `check` calls equal (docs/explanation/numerics.md)."""

    loss: float = LOSS_TOLERANCE
    gradient: float = GRADIENT_TOLERANCE
    parameter: float = PARAMETER_TOLERANCE


_AUTOCAST = Tolerances(gradient=2e-2, parameter=2e-2)
"""In bfloat16 a graph is bit-equal to eager unless the model computes differently when it is exported, or
gradients are added in another order where it is cut (docs/explanation/numerics.md): the last bit is 2^-8. A
parameter that begins at zero, such as one of LoRA's, is its gradients after some steps.
"""
_OF_PARAMETERS = {
    "float16": Tolerances(loss=1e-3, gradient=4e-3, parameter=2e-3),
    "bfloat16": Tolerances(loss=1e-2, gradient=2e-2, parameter=1e-2),
}
"""Parameters of two bytes: gradients are added in that type, and in another order where several segments
read one parameter. The last bit is 2^-10 of a float16, 2^-7 of a bfloat16; a gradient may differ by a few.
"""
_OF_FROZEN = {"float16": Tolerances(gradient=4e-3, parameter=4e-3), "bfloat16": _AUTOCAST}
"""A frozen base of two bytes computes in that type, though the adapter that it trains has four."""


def tolerances(graph: Graph, precision: Precision) -> Tolerances:
    """What `check` allows for a graph: more where parameters or the computation have two bytes."""
    parameters = list(graph.inputs_of("parameter"))
    trained = {graph.values[entry.value].dtype for entry in parameters if entry.trainable}
    frozen = {graph.values[entry.value].dtype for entry in parameters if not entry.trainable}
    for kind in ("bfloat16", "float16"):
        if kind in trained:
            return _OF_PARAMETERS[kind]
    for kind in ("bfloat16", "float16"):
        if kind in frozen:
            return _OF_FROZEN[kind]
    return _AUTOCAST if precision == "bfloat16" else Tolerances()


class CheckReport(msgspec.Struct, frozen=True):
    """The result of `check`; differences are relative (docs/explanation/numerics.md)."""

    ok: bool
    loss_difference: float
    worst_gradient_difference: float
    worst_parameter_difference: float
    segments: int
    cut_bytes: int
    worst_gradient: str
    worst_parameter: str
    steps: int
    evaluation_difference: float

    def __repr__(self) -> str:
        """What was compared and how far it differs, in lines."""
        verdict = "ok" if self.ok else "NOT ok: the cut model and your module compute different results"
        crossing = f"{format_bytes(self.cut_bytes)} cross the cuts for each microbatch"
        return "\n".join(
            [
                f"loss differs by        {self.loss_difference:.1e} (relative)",
                f"worst gradient by      {self.worst_gradient_difference:.1e}  {self.worst_gradient}",
                f"worst parameter by     {self.worst_parameter_difference:.1e}  {self.worst_parameter}",
                f"evaluation loss by     {self.evaluation_difference:.1e}",
                f"{count_of(self.segments, 'segment')}; {crossing}",
                verdict,
            ]
        )


def named_state(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """Every parameter and buffer of `module` by the name that the graph uses."""
    state: dict[str, Tensor] = dict(module.named_buffers(remove_duplicate=False))
    state.update(module.named_parameters(remove_duplicate=False))
    return {entry.name: state[entry.name] for entry in graph.inputs if entry.kind in ("parameter", "buffer")}


def _whole_state(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """The state in the graph, and every buffer outside it: eager may change one that the graph lost."""
    return dict(module.named_buffers()) | named_state(module, graph)


def parameter_names(module: nn.Module, graph: Graph) -> dict[int, str]:
    """The name of every parameter of `module` by its `id`: the graph's name if it has several."""
    known = {entry.name for entry in graph.inputs_of("parameter")}
    found: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in known or id(parameter) not in found:
            found[id(parameter)] = name
    return found


def gradient_difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, str]:
    """The worst max|a-b| / max(max|b|, 1e-4 x the model's largest gradient entry), and its parameter.

    Infinite if one side has a gradient that the other lacks.
    """
    if extra := sorted(set(ours) - set(theirs)):
        return math.inf, extra[0]
    largest = max((float(g.abs().max()) for g in theirs.values() if g.numel()), default=0.0)
    return _worst(ours, theirs, 1e-4 * largest)


def parameter_difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, str]:
    """The worst max|a-b| / max(max|b|, 1e-3), and its parameter."""
    return _worst(ours, theirs, 1e-3)


def _worst(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], floor: float) -> tuple[float, str]:
    missing = sorted(set(theirs) - set(ours))
    if missing:
        return float("inf"), missing[0]
    worst = (0.0, "")
    for name, expected in theirs.items():
        if torch.equal(ours[name], expected):  # also masks of -inf, whose difference is nan
            continue
        reference = expected.detach().double()
        distance = float((ours[name].detach().double() - reference).abs().max())
        scale = max(float(reference.abs().max()), floor)
        worst = max(worst, (_number(distance / scale if scale else distance), name))
    return worst


def relative(ours: float, theirs: float) -> float:
    """|ours - theirs| / |theirs|; infinite if one is not a number."""
    return _number(abs(ours - theirs) / max(abs(theirs), 1e-12))


def _number(difference: float) -> float:
    """Replace nan by infinity: nan compares false with everything, so a maximum would lose it."""
    return math.inf if math.isnan(difference) else difference


class Comparison:
    """The cut model and the user's eager module, trained side by side on the same microbatches.

    Both use copies of `module`. `loss_of(module)` returns the function from a batch to the scalar loss.
    `draws` are as in `Reference`. `held` are parameters that the cut model holds in another form, by name.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_of: Callable[[nn.Module], Callable[[Batch], Tensor]],
        graph: Graph,
        plan: Plan,
        segments: Sequence[Segment],
        training: Training,
        draws: Sequence[int] | None = None,
        held: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._graph = graph
        self._training = training
        self._eager = copy.deepcopy(module)
        self._loss_of = loss_of(self._eager)
        owned = [segment.owned for segment in segments]
        self._reference = Reference(self._eager, self._loss_of, graph, training, draws, owned)
        ours = copy.deepcopy(module)
        self._state = _whole_state(ours, graph)
        state = {**named_state(ours, graph), **(held or {})}
        self._pipeline = InProcessPipeline(graph, plan, segments, state, training)
        self._units = {unit.step: unit.number for unit in training.units() if unit.train}

    def step(self, microbatches: Sequence[Batch]) -> tuple[float, tuple[float, str], tuple[float, str]]:
        """One training step on both sides: relative loss difference, worst gradient, worst parameter."""
        unit = self._units[self._reference.step]
        shares = self._pipeline.run(unit, microbatches)
        expected = self._reference.accumulate(microbatches)
        loss = sum(share.loss for share in shares)
        gradients = gradient_difference(self.gradients(), self._eager_gradients())
        norm = gradient_norm(share.squares for share in shares)
        self._pipeline.decide(unit, clip_scale(self._training.global_clip, norm))
        self._reference.apply()
        return (
            relative(loss, expected),
            gradients,
            parameter_difference(self._state, _whole_state(self._eager, self._graph)),
        )

    def evaluation_difference(self, batch: Batch) -> float:
        """The difference between the evaluation graph's loss on a microbatch and that of `module.eval()`."""
        unit = next(iter(self._training.units()))
        assert not unit.train and unit.microbatches == 1
        loss = sum(share.loss for share in self._pipeline.run(unit.number, [batch]))
        self._pipeline.decide(unit.number, 1.0)
        before = [(buffer, buffer.clone()) for buffer in self._eager.buffers()]
        self._eager.eval()
        with torch.no_grad(), attending_as(self._graph):
            expected = float(self._loss_of(own(batch)))
            for buffer, value in before:
                buffer.copy_(value)  # some modules update a buffer in either mode
        self._eager.train()
        return relative(loss, expected)

    @property
    def tolerances(self) -> Tolerances:
        """The differences that are allowed."""
        return tolerances(self._graph, self._training.precision)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the cut model by the graph's names."""
        return {n: g for segment in self._pipeline.segments for n, g in segment.gradients().items()}

    def _eager_gradients(self) -> dict[str, Tensor]:
        names = parameter_names(self._eager, self._graph)
        return {names[id(p)]: p.grad for p in self._eager.parameters() if p.grad is not None}


def compare(
    comparison: Comparison,
    steps: Sequence[Sequence[Batch]],
    plan_cut_bytes: int,
    segments: int,
    evaluates: bool = True,
) -> CheckReport:
    """Train both sides over `steps` (each a list of microbatches) and report the worst differences.

    The evaluation graph is compared first, on the first microbatch. It counts only if the job `evaluates`.
    """
    evaluation = comparison.evaluation_difference(steps[0][0])
    rows = [comparison.step(microbatches) for microbatches in steps]
    loss = max(row[0] for row in rows)
    gradient = max(row[1] for row in rows)
    parameter = rows[-1][2]
    allowed = comparison.tolerances
    ok = (
        loss <= allowed.loss
        and gradient[0] <= allowed.gradient
        and parameter[0] <= allowed.parameter
        and (evaluation <= allowed.loss or not evaluates)
    )
    return CheckReport(
        ok=ok,
        loss_difference=loss,
        worst_gradient_difference=gradient[0],
        worst_parameter_difference=parameter[0],
        segments=segments,
        cut_bytes=plan_cut_bytes,
        worst_gradient=gradient[1],
        worst_parameter=parameter[1],
        steps=len(rows),
        evaluation_difference=evaluation,
    )


def received(programs: Sequence[bytes], batch: int) -> list[Segment]:
    """Segments as a worker receives them: decoded, validated, and verified on the meta device."""
    segments = [wire.load_segment(program, batch) for program in programs]
    for segment in segments:
        verify_segment(segment, batch)
    return segments
