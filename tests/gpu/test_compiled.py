"""A segment that torch's compiler made, on the CPU, where it compiles C++: beside the same uncompiled."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.devices import STEADY, Run
from benchmarks.zoo.side_by_side import microbatches
from torch._functorch import partitioners

from farflung.runtime.footprint import needs_of
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.parity.steps import gradient_difference, parameter_difference
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.compiled import CompiledPass, Uncompiled, compiled_needs
from farflung.runtime.torch_backend.recomputation import RecomputingPass
from farflung.runtime.torch_backend.segment import TorchSegment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="torch compiles for the CPU with g++, which is absent"
    ),
]


def compiled(run: Run) -> Run:
    """The same run, whose segments are compiled as they would be on a GPU."""
    for segment in run.pipeline.runners():
        _compile(segment)
    return run


def _compile(segment: TorchSegment) -> None:
    given = segment.segment.without_metrics()
    made = CompiledPass(given, 2, segment._entries, segment._state, segment._place)
    (sized,) = segment._sized
    again = isinstance(sized.training, RecomputingPass)
    segment._sized = [sized._replace(training=RecomputingPass(made) if again else made)]


@pytest.mark.parametrize(
    ("name", "recompute", "tolerance"),
    [
        ("frozen", False, 1e-4),
        pytest.param("gpt-tied", False, 1e-4, marks=pytest.mark.full),
        pytest.param("gpt2-mask", True, 1e-4, marks=pytest.mark.full),
        pytest.param("batch-norm", False, 1e-2, marks=pytest.mark.full),  # of two samples, ill-conditioned
    ],
)
def test_a_compiled_segment_has_the_numbers_of_an_uncompiled_one(
    name: str, recompute: bool, tolerance: float
) -> None:
    ours, theirs = (Run(name, [TorchBackend()], 2, recompute, STEADY) for _ in range(2))
    compiled(ours)
    for _ in range(2):
        found, expected = ours.step(), theirs.step()
        assert found.keys() == expected.keys()
        assert gradient_difference(found, expected)[0] < tolerance
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert parameter_difference(ours.state(), theirs.state())[0] < 1e-4


@pytest.mark.full
def test_dropout_draws_again_what_it_drew_for_a_microbatch() -> None:
    one, other = (compiled(Run("gpt-dropout", [TorchBackend()], 2)) for _ in range(2))
    batches = microbatches(case("gpt-dropout"), 2, 2, 0)
    first, again = one.step(batches), other.step(batches)
    assert all(torch.equal(gradient, again[name]) for name, gradient in first.items())
    one.step(batches)
    assert one.losses[1] != one.losses[0]  # another step draws others, beside what it learned


def test_a_gradient_that_does_not_come_counts_as_zeros() -> None:
    """Segment 0 of long-skip sends two values, of which only one gets a gradient."""
    ours, theirs = (Run("long-skip", [TorchBackend()], 2) for _ in range(2))
    compiled(ours)
    batch, found = microbatches(case("long-skip"), 2, 1, 0)[0], []
    for run in (ours, theirs):
        first = run.pipeline.runners()[0]
        unit = first._training.units().at(0)
        assert unit is not None
        names = {entry.value: entry.name for entry in first.segment.inputs if entry.kind == "input"}
        sent = first.forward(unit, 0, {value: batch[name] for value, name in names.items()})
        answered = [value for value in sent if value in first.segment.differentiable]
        assert len(answered) == 2
        first.backward(
            unit, 0, {answered[0]: torch.ones_like(sent[answered[0]])}, lambda value, gradient: None
        )
        first.accumulate(unit, 0)
        found.append(first.gradients())
    mine, other = found
    assert other and other.keys() <= mine.keys()
    assert gradient_difference({name: mine[name] for name in other}, other)[0] < 1e-5
    assert not any(tensor.any() for name, tensor in mine.items() if name not in other)


def test_graphs_that_are_cut_in_another_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioners.min_cut_rematerialization_partition

    def turned(*given: Any, **named: Any) -> Any:
        forward, backward = whole(*given, **named)
        (output,) = (node for node in forward.graph.nodes if node.op == "output")
        output.args = (tuple(reversed(output.args[0])),)
        return forward, backward

    monkeypatch.setattr(partitioners, "min_cut_rematerialization_partition", turned)
    with pytest.raises(Uncompiled, match="another way"):
        compiled(Run("chain", [TorchBackend()], 1))


def test_a_compiled_segment_says_that_it_needs_more() -> None:
    (segment,) = Run("chain", [TorchBackend()], 1).pipeline.runners()
    known = needs_of(segment.segment, 2, memory_of_updates(STEADY))
    assert compiled_needs(segment.segment, segment._training).running == pytest.approx(1.15 * known.running)


def test_what_the_compiler_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise RuntimeError("no kernel for this\nand more")

    monkeypatch.setattr("torch._inductor.compile", refuse)
    run = Run("chain", [TorchBackend()], 1)
    with pytest.raises(Uncompiled, match=r"^RuntimeError: no kernel for this$"):
        compiled(run)
    run.step()
