"""What XLA says that a segment's programs take, beside the peak of a process that trains it on JAX."""

from __future__ import annotations

import sys

import pytest
from benchmarks.estimates.footprint import Answer, Question, ask
from benchmarks.models.library import tokens
from examples.gpt import GPT, Config

from farflung.opdag.capture import capture
from farflung.planner import place
from farflung.planner.assignment import Assignment
from farflung.planner.cutting.balanced import balanced_cut
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.training import Training
from farflung.workload import workload_of

SAMPLES, WINDOW = 8, 3
BESIDE = 6e6  # what a process takes beside its arrays: 1.7 to 5.1 MB were seen

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"),
        reason="a process's peak is read from /proc, which only Linux has",
    ),
    pytest.mark.slow,
]


def trained(worker: int, recompute: bool) -> Answer:
    """A GPT in two segments, of which one worker's trains."""
    module = GPT(Config(layers=2, heads=4, width=128, sequence=128))
    graph = capture(module, tokens(128, 256)(SAMPLES)).graph
    training = Training(10, 2 * WINDOW, SAMPLES, AdamW(lr=0.1))
    cut = balanced_cut(workload_of(graph, 2 * WINDOW, SAMPLES), 2).cuts
    assignment = Assignment(cut, (("a",), ("b",)), 2 * WINDOW, WINDOW, recompute=(recompute,) * 2)
    planned = place(graph, assignment, SAMPLES)
    programs = {worker: planned.programs[worker]}
    return ask(Question(programs, planned.plan, training, recompute, "jax"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("worker", "recompute"),
    [
        pytest.param(0, False, marks=pytest.mark.full),
        pytest.param(1, False, marks=pytest.mark.full),
        (1, True),
    ],
)
def test_a_worker_needs_what_its_compiled_programs_say(worker: int, recompute: bool) -> None:
    found = trained(worker, recompute)
    assert found.compiled_bytes is not None
    assert 0.97 * (found.peak_bytes - BESIDE) <= found.compiled_bytes <= 1.10 * found.peak_bytes
