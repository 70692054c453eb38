"""What noise on what leaves home (`Job(home_noise=)`) costs in loss.

    python -m benchmarks.home_noise [--levels 0 0.1 0.3 1] [--seeds 3] [--steps 150] [--quick] [--json]

The GPT of `examples/gpt.py` is cut in four. A home worker runs the first and the last segment, and so keeps
inputs and targets; strangers run the two between. It trains by the executors that workers run, with the noise
that home workers add. The loss is that of the trained weights on held-out text, in one piece and without
noise, in nats per byte, and beside it what the fleet itself reports, with noise. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import whole
from benchmarks.learning.run import cut
from benchmarks.learning.subject import Subject, gpt, plain

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob
from farflung.planner.home import kept_at_home
from farflung.plans.wishes import KeepHome
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import MOST_NOISE, Training

LEVELS = (0.0, 0.1, 0.3, 1.0)
HOME = KeepHome(("inputs", "targets"), ("home",))
JUDGED = 16
"""Microbatches of an evaluation."""


@dataclass(frozen=True)
class Run:
    """The loss of the weights after a run, and what the fleet reported of them, in nats per byte."""

    noise: float
    seed: int
    loss: float
    reported: float
    cpu_seconds: float


def trained(subject: Subject, noise: float, seed: int) -> Run:
    """Train with this noise and seed: the seed is that of weights, data and dropout."""
    training = msgspec.structs.replace(
        subject.training, seed=seed, home_noise=noise, validation_microbatches=JUDGED
    )
    subject = replace(subject, training=training)
    order, held_out, model = subject.order(seed), subject.validation(), subject.model(seed)
    graph = capture(model, subject.microbatches(order, 0)[0]).graph
    made = at_home(graph, training, subject.segments)
    segments = received(made.programs, training.microbatch_size)
    pipeline = InProcessPipeline(graph, made.plan, segments, named_state(model, graph), training)
    began, reported = time.process_time(), float("nan")
    for unit in training.units():
        batches = subject.microbatches(order, unit.step) if unit.train else held_out
        shares = pipeline.run(unit.number, batches)
        norm = gradient_norm(share.squares for share in shares)
        pipeline.decide(unit.number, clip_scale(training.clip, norm))
        if not unit.train:
            reported = sum(share.loss for share in shares)
    return Run(noise, seed, plain(model, held_out)[0], reported, time.process_time() - began)


def at_home(graph: Graph, training: Training, segments: int) -> PlannedJob:
    """The planner's cut, of which the home worker has both ends.

    Raises
    ------
    PlanError
        A stranger would read what stays at home.
    """
    made = cut(graph, training, segments)
    names = ["home", *(f"stranger-{n}" for n in range(segments - 2)), "home"]
    placements = [
        msgspec.structs.replace(placed, workers=[name])
        for placed, name in zip(made.plan.placements, names, strict=True)
    ]
    plan = msgspec.structs.replace(made.plan, placements=placements)
    return kept_at_home(replace(made, plan=plan), graph, HOME)


def table(runs: Sequence[Run]) -> str:
    """For each level the mean loss over seeds, its range, and how much more it is than without noise."""
    base = statistics.mean(run.loss for run in runs if run.noise == runs[0].noise)
    lines = []
    for level in dict.fromkeys(run.noise for run in runs):
        losses = [run.loss for run in runs if run.noise == level]
        reported = statistics.mean(run.reported for run in runs if run.noise == level)
        mean = statistics.mean(losses)
        lines.append(
            f"noise {level:<5g} loss {mean:.3f} ({min(losses):.3f} to {max(losses):.3f}),"
            f" {mean / base - 1:+.1%}; reported with noise {reported:.3f}"
        )
    return "\n".join(lines)


def deviation(text: str) -> float:
    """A deviation that `Job(home_noise=)` may have."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_NOISE:
        raise argparse.ArgumentTypeError(f"expected a number of 0 to {MOST_NOISE:g}, found {text!r}")
    return found


def main() -> None:
    """Run all levels with all seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--levels", nargs="+", type=deviation, default=list(LEVELS), help="the first one is compared with"
    )
    parser.add_argument("--seeds", type=whole, default=3, help="how many, from 0 on")
    parser.add_argument("--steps", type=whole, default=150)
    parser.add_argument("--quick", action="store_true", help="a small GPT")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject, runs = gpt(options.steps, options.quick), []
    for seed in range(options.seeds):
        for level in options.levels:
            runs.append(trained(subject, level, seed))
            print(f"noise {level:g}, seed {seed}: {runs[-1].loss:.4f}", file=sys.stderr, flush=True)
    runs.sort(key=lambda run: (options.levels.index(run.noise), run.seed))
    print(json.dumps([asdict(run) for run in runs]) if options.json else table(runs))


if __name__ == "__main__":
    main()
