"""A segment that torch's compiler made, on the CPU, where it compiles C++: beside the same uncompiled."""

from __future__ import annotations

import shutil

import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.devices import STEADY, Run
from benchmarks.zoo.side_by_side import microbatches

from farflung.runtime.parity.steps import gradient_difference, parameter_difference
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.compiled import CompiledPass, Uncompiled
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
    inner = segment._pass
    made = CompiledPass(given, 2, segment._entries, segment._state, segment._place, inner)
    segment._pass = RecomputingPass(made) if isinstance(inner, RecomputingPass) else made


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


def test_a_microbatch_whose_gradients_do_not_all_arrive_runs_uncompiled() -> None:
    ours, theirs = (Run("chain", [TorchBackend()], 2) for _ in range(2))
    compiled(ours)
    batch = microbatches(case("chain"), 2, 1, 0)[0]
    for run in (ours, theirs):
        first = run.pipeline.runners()[0]
        unit = first._training.units().at(0)
        assert unit is not None
        names = {entry.value: entry.name for entry in first.segment.inputs if entry.kind == "input"}
        first.forward(unit, 0, {value: batch[name] for value, name in names.items()})
        first.backward(unit, 0, {}, lambda value, gradient: None)
        first.accumulate(unit, 0)
    (mine,), (other,) = ([run.pipeline.runners()[0].gradients()] for run in (ours, theirs))
    assert mine.keys() == other.keys()


def test_what_the_compiler_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise RuntimeError("no kernel for this\nand more")

    monkeypatch.setattr("torch._inductor.compile", refuse)
    run = Run("chain", [TorchBackend()], 1)
    with pytest.raises(Uncompiled, match=r"^RuntimeError: no kernel for this$"):
        compiled(run)
    run.step()
