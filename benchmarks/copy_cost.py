"""What a version of the state costs: CPU time of the copy in memory that training waits for, and, apart, of
the thread that writes a copy to disk and verifies one that arrives.

All segments run in this process, on one thread; after each step all shares are copied, as after a commit.
The ratio is that of the copies to the step. A step of several workers takes at least as long as a worker's
part of it, so the ratio is an upper bound. And workers do not copy each step
(`broker/core/protecting/versions.py`).

    python -m benchmarks.copy_cost [--steps 30] [--json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import one_of, several, whole
from benchmarks.kills.job import COURSE
from benchmarks.race.course import Course

from farflung.heap import keep_freed_memory
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.capture import capture
from farflung.planner import plan_graph
from farflung.protocol.copies import StateVersion
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.steps import named_state
from farflung.runtime.training import Training
from farflung.worker.storing.copy_format import Piece
from farflung.worker.storing.copy_store import CopyStore

COURSES = {"small": COURSE, "race": Course()}
WORKERS = ["w0", "w1", "w2"]
LIMIT = 0.01
"""Of a step's time, for the copy that it waits for."""


class Row(msgspec.Struct, frozen=True):
    """One model; times are medians of CPU milliseconds, over all segments."""

    name: str
    state_bytes: int
    step_ms: float
    copy_ms: float
    write_ms: float
    receive_ms: float
    ratio: float
    ok: bool


def pipeline_of(course: Course) -> tuple[InProcessPipeline, list[dict[str, torch.Tensor]]]:
    """The course's model in three segments, and the inputs of a step."""
    draw, shape = torch.Generator().manual_seed(1), (course.microbatch_size, course.sequence)
    inputs = [
        {name: torch.randint(0, 256, shape, generator=draw) for name in ("tokens", "targets")}
        for _ in range(course.microbatches)
    ]
    module = course.model().train()
    graph = capture(module, inputs[0]).graph
    training = Training(10**6, course.microbatches, course.microbatch_size, course.optimizer())
    planned = plan_graph(graph, course.microbatches, course.microbatch_size, WORKERS)
    state = named_state(module, graph)
    return InProcessPipeline(graph, planned.plan, planned.segments, state, training), inputs


def copied(pipeline: InProcessPipeline) -> list[dict[Piece, memoryview]]:
    """A copy in memory of each segment's share, as a worker makes it after a commit."""
    return [
        {
            Piece(number, key): buffer
            for key, buffer in runner.snapshot(changed_by_training(runner.segment), slots=True).items()
        }
        for number, runner in enumerate(pipeline.segments)
    ]


def measure(name: str, course: Course, steps: int, folder: Path) -> Row:
    """Alternate steps, copies, and what is done with copies beside training."""
    pipeline, inputs = pipeline_of(course)
    own, held = (CopyStore(_made(folder / name / which), 10**10) for which in ("own", "held"))
    times: dict[str, list[float]] = {"step": [], "copy": [], "write": [], "receive": []}
    state_bytes = 0
    for unit in range(steps + 2):
        began = [time.process_time()]
        pipeline.run(unit, inputs)
        pipeline.decide(unit, 1.0)
        began.append(time.process_time())
        shares = copied(pipeline)
        began.append(time.process_time())
        version = StateVersion(1, unit)
        copies = [own.write("job-1", version, share, pieces) for share, pieces in enumerate(shares)]
        began.append(time.process_time())
        for copy in copies:
            incoming = held.receive(copy)
            incoming.write(0, own.read_slice(own.path_of(copy), 0, copy.bytes))
            incoming.verify()
            incoming.finish()
        began.append(time.process_time())
        state_bytes = sum(copy.bytes for copy in copies)
        for store in (own, held):
            store.retain("job-1", [], version)
        for number, what in enumerate(times):
            times[what].append(1000 * (began[number + 1] - began[number]))
    step, copy_, write, receive = (statistics.median(found[2:]) for found in times.values())
    return Row(name, state_bytes, step, copy_, write, receive, copy_ / step, copy_ / step <= LIMIT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows; 1 if a copy takes more than its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=whole, default=30, help="of each model: %(default)s")
    parser.add_argument(
        "--models", type=several(one_of(COURSES)), default=",".join(COURSES), help="%(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(name, COURSES[name], options.steps, Path(folder)) for name in options.models.split(",")
        ]
    if options.json:
        print(msgspec.json.encode(rows).decode())
    for row in [] if options.json else rows:
        verdict = f"limit {LIMIT:.0%}: {'ok' if row.ok else 'OVER'}"
        print(
            f"{row.name}: {row.state_bytes / 1e6:.1f} MB of state; a step takes {row.step_ms:.0f} ms of CPU,"
            f" its copy {row.copy_ms:.1f} ms ({row.ratio:.2%}, {verdict}); beside training"
            f" {row.write_ms:.0f} ms to write it, and {row.receive_ms:.0f} ms to keep as much for others"
        )
    return 0 if all(row.ok for row in rows) else 1


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
