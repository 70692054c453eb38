"""What farflung's generated code costs beside the user's eager module: CPU time, side by side in one process.

Each row alternates the two sides 40 times: the median of the ratios with a bootstrap interval of 90 %. A row
passes if the lower end of its interval is within the limit. One torch thread; random inputs and targets, the
same for both sides.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.gpt import GPT, Config

from farflung.heap import keep_freed_memory
from farflung.opdag.capture import capture
from farflung.planner import plan_graph
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import named_state
from farflung.runtime.training import Training

SEQUENCE = 128
SAMPLES = 4
MICROBATCHES = 2
Side = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """A GPT by width and depth, and what four segments of it may cost (None: not measured)."""

    name: str
    width: int
    layers: int
    heads: int
    segments_limit: float | None


SIZES = [Size("tiny", 32, 8, 4, None), Size("small", 128, 4, 4, 1.10), Size("medium", 384, 6, 6, 1.03)]


@dataclass(frozen=True)
class Row:
    """One comparison; ratios are ours / eager, milliseconds are of CPU time."""

    name: str
    segments: int
    ratio: float
    low: float
    high: float
    limit: float
    eager_ms: float
    ok: bool


def batch(seed: int) -> dict[str, Tensor]:
    """Random tokens and random targets."""
    generator = torch.Generator().manual_seed(seed)
    names = ("tokens", "targets")
    return {n: torch.randint(0, 256, (SAMPLES, SEQUENCE), generator=generator) for n in names}


def sides(size: Size, dropout: float, segments: int) -> tuple[Side, Side]:
    """Forward and backward of one step's microbatches: the cut model's and the eager module's."""
    torch.manual_seed(0)
    config = Config(
        sequence=SEQUENCE, layers=size.layers, heads=size.heads, width=size.width, dropout=dropout
    )
    module = GPT(config).train()
    graph = capture(module, batch(0)).graph
    training = Training(10**6, MICROBATCHES, SAMPLES, SGD(lr=0.0))
    planned = plan_graph(graph, MICROBATCHES, SAMPLES, [str(number) for number in range(segments)])
    state = named_state(copy.deepcopy(module), graph)
    pipeline = InProcessPipeline(graph, planned.plan, planned.segments, state, training)
    microbatches = [batch(seed) for seed in range(1, MICROBATCHES + 1)]
    unit = next(iter(training.units()))

    def one_segment() -> None:
        (segment,) = pipeline.segments
        names = {entry.value: entry.name for entry in graph.inputs_of("input")}
        for number, tensors in enumerate(microbatches):
            segment.forward(unit, number, {value: tensors[name] for value, name in names.items()})
            segment.backward(unit, number, {}, lambda value, gradient: None)
            segment.accumulate(unit, number)
        segment.drop()

    units = iter(range(10**6))

    def several_segments() -> None:
        number = next(units)
        pipeline.run(number, microbatches)
        for segment in pipeline.segments:
            segment.drop()
        pipeline.decide(number, 1.0)

    def eager() -> None:
        for tensors in microbatches:
            loss = module(**tensors)
            loss.backward(torch.full_like(loss, 1 / MICROBATCHES))
            float(loss.detach())
        module.zero_grad(set_to_none=True)

    return (one_segment if segments == 1 else several_segments), eager


def seconds(side: Side, repeats: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(repeats):
        side()
    return (time.process_time() - start) / repeats


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 90 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[100], medians[1899]


def compare(name: str, size: Size, dropout: float, segments: int, limit: float, pairs: int) -> Row:
    """Alternate the two sides, each first in every other pair."""
    ours, eager = sides(size, dropout, segments)
    for side in (ours, eager, ours, eager):
        side()
    repeats = max(1, round(0.05 / max(seconds(eager, 1), 1e-6)))
    ratios, eager_seconds = [], []
    for pair in range(pairs):
        first, second = (ours, eager) if pair % 2 else (eager, ours)
        times = {first: seconds(first, repeats), second: seconds(second, repeats)}
        ratios.append(times[ours] / times[eager])
        eager_seconds.append(times[eager])
    low, high = interval(ratios)
    median = statistics.median(ratios)
    return Row(
        name, segments, median, low, high, limit, 1000 * statistics.median(eager_seconds), low <= limit
    )


def rows(pairs: int) -> list[Row]:
    """Every comparison that the overhead promise names."""
    found: list[Row] = []
    for size in SIZES:
        found.append(compare(size.name, size, 0.0, 1, 1.03, pairs))
        found.append(compare(f"{size.name} dropout", size, 0.1, 1, 1.10, pairs))
        if size.segments_limit is not None:
            found.append(compare(size.name, size, 0.0, 4, size.segments_limit, pairs))
    return found


def main() -> int:
    """Print the rows; 1 if one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="10 pairs instead of 40")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do; of both sides
    found = rows(10 if options.quick else 40)
    ok = all(row.ok for row in found)
    if options.json:
        print(json.dumps({"ok": ok, "rows": [asdict(row) for row in found]}))
        return 0 if ok else 1
    for row in found:
        print(
            f"{row.name:16} {row.segments} segments  {row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
            f"  limit {row.limit:.2f}  eager {row.eager_ms:.1f} ms  {'ok' if row.ok else 'OVER'}"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
