"""How far the estimator is from what segments take: by formula (flops), and by a profile of the device.

Four models are cut into four segments that train in this process, every forward and backward run timed.
Beside it the device is profiled, in turns, so that both see the same machine. The formula needs one number
for the device; it gets what a matrix product reaches.

    python benchmarks/estimator.py [--json] [--rounds 5] [--models gpt resnet vit gpt2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.models import gpt, resnet, vit
from benchmarks.models.library import pictures, tokens
from examples.gpt import GPT, Config

from farflung.opdag.capture import capture
from farflung.planner import plan_graph
from farflung.runtime.check import named_state, received
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizer import SGD
from farflung.runtime.torch_backend.profile import profile_graph
from farflung.runtime.training import Training
from farflung.workload import workload_of
from farflung.workload.arrays import Floats
from farflung.workload.profile import node_seconds

SEGMENTS, MICROBATCHES = 4, 2
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model and a maker of microbatches for it."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    samples: int


SUBJECTS = {
    "gpt": Subject(lambda: GPT(Config(layers=8, heads=8, width=256)), tokens(128, 256), 4),
    "gpt2": Subject(lambda: gpt.GPT(gpt.Sizes(4, 768, 12, 256, 8192)), tokens(256, 8192), 2),
    "resnet": Subject(lambda: resnet.ResNet((1, 2, 2, 1), 100, width=32), pictures(96, 100), 4),
    "vit": Subject(lambda: vit.ViT(vit.Sizes(4, 192, 3, 96, 16, 100)), pictures(96, 100), 4),
}


@dataclass(frozen=True)
class Row:
    """One model: seconds of a microbatch forward and backward, and errors (0.1: 10 % too much).

    `*_error` is of the whole, `*_segment_errors` of each segment's share of the whole.
    """

    model: str
    nodes: int
    kinds: int
    profiling_seconds: float
    measured_seconds: float
    profile_error: float
    formula_error: float
    profile_segment_errors: list[float]
    formula_segment_errors: list[float]


class Stopwatch:
    """A pipeline whose segments' runs are timed: CPU seconds of this thread, by segment."""

    def __init__(self, pipeline: InProcessPipeline) -> None:
        self.pipeline = pipeline
        self.seconds = [0.0] * len(pipeline.segments)
        for number, segment in enumerate(pipeline.segments):
            segment.forward = self._timed(number, segment.forward)  # type: ignore[method-assign]
            segment.backward = self._timed(number, segment.backward)  # type: ignore[method-assign]

    def step(self, unit: int, batches: list[Batch]) -> list[float]:
        """Seconds of each segment for one microbatch, forward and backward."""
        self.seconds = [0.0] * len(self.seconds)
        self.pipeline.run(unit, batches)
        self.pipeline.decide(unit, 1.0)
        return [seconds / len(batches) for seconds in self.seconds]

    def _timed(self, number: int, run: Callable) -> Callable:
        def timed(*arguments: object) -> object:
            begin = time.thread_time()
            result = run(*arguments)
            self.seconds[number] += time.thread_time() - begin
            return result

        return timed


def matrix_tflops() -> float:
    """What a product of 1,024 x 1,024 matrices reaches."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(8):
        begin = time.thread_time()
        a @ b
        seconds.append(time.thread_time() - begin)
    return 2 * 1024**3 / statistics.median(seconds) / 1e12


def measure(name: str, rounds: int) -> Row:
    """Profile and train one model in turns."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    module, batches = subject.build(), [subject.batch(subject.samples) for _ in range(MICROBATCHES)]
    graph = capture(module, batches[0]).graph
    workload = workload_of(graph, MICROBATCHES, subject.samples)
    training = Training(10**6, MICROBATCHES, subject.samples, SGD(lr=0.0))
    planned = plan_graph(graph, MICROBATCHES, subject.samples, [f"w{n}" for n in range(SEGMENTS)])
    state = named_state(module, graph)
    segments = received(planned.programs, subject.samples)
    watch = Stopwatch(InProcessPipeline(graph, planned.plan, segments, state, training))
    watch.step(0, batches)
    shares, wholes, formula, cost = [], [], [], []
    at = {node.number: position for position, node in enumerate(graph.nodes)}
    parts = [[at[node.number] for node in segment.nodes] for segment in segments]
    for number in range(1, rounds + 1):
        begin = time.thread_time()
        profile = profile_graph(graph, state, batches[0])
        cost.append(time.thread_time() - begin)
        formula.append(3 * workload.flops.sum() / matrix_tflops() / 1e12)
        wholes.append(node_seconds(workload, graph, profile))
        shares.append(watch.step(number, batches))
    measured = np.median(shares, axis=0)
    predicted = np.median(wholes, axis=0)
    return Row(
        model=name,
        nodes=len(graph.nodes),
        kinds=len(profile.times),
        profiling_seconds=statistics.median(cost),
        measured_seconds=float(measured.sum()),
        profile_error=float(predicted.sum() / measured.sum() - 1),
        formula_error=float(statistics.median(formula) / measured.sum() - 1),
        profile_segment_errors=errors(predicted, parts, measured),
        formula_segment_errors=errors(workload.flops, parts, measured),
    )


def errors(costs: Floats, parts: list[list[int]], measured: Floats) -> list[float]:
    """Of each segment's share of the whole; what is recomputed in several segments costs nothing."""
    seconds = np.array([costs[part].sum() for part in parts])
    return list((seconds / seconds.sum()) / (measured / measured.sum()) - 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    arguments = parser.parse_args()
    rows = [measure(name, arguments.rounds) for name in arguments.models]
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(
        "model    nodes kinds   profiled  microbatch | whole: profile formula | worst part: profile formula"
    )
    for row in rows:
        worst = [max(map(abs, found)) for found in (row.profile_segment_errors, row.formula_segment_errors)]
        print(
            f"{row.model:8s} {row.nodes:5d} {row.kinds:5d} {row.profiling_seconds:9.1f} s "
            f"{1e3 * row.measured_seconds:10.1f} ms | {row.profile_error:+13.1%} {row.formula_error:+8.1%} | "
            f"{worst[0]:19.1%} {worst[1]:7.1%}"
        )


if __name__ == "__main__":
    main()
