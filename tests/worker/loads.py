"""A small plan as the broker sends it, for tests of a worker."""

from __future__ import annotations

from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.protocol.messages import Load
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training
from farflung.worker.computing.task_deadlines import Limits

STEPS, MICROBATCHES, WINDOW = 3, 4, 2


def plan() -> Plan:
    """Segments 0, 1, 2 on workers a, b, c; value 1 goes from 0 to 1, value 2 on to 2, 0 and 3 are fed."""
    placements = [Placement(n, [worker], 10, 16, 1) for n, worker in enumerate("abc")]
    edges = [
        Edge(0, FEEDER, 0, 8, False),
        Edge(1, 0, 1, 32, True),
        Edge(2, 1, 2, 32, True),
        Edge(3, FEEDER, 2, 8, False),
    ]
    return Plan(placements, edges, MICROBATCHES, WINDOW)


def load(attempt: int = 5) -> Load:
    """Job `job-1` on that plan, submitted by `desk`."""
    programs = [SegmentProgram(n, b"", {"weight": 12, "bias": 4}) for n in range(3)]
    training = Training(
        steps=STEPS, microbatches=MICROBATCHES, microbatch_size=2, optimizer=SGD(lr=0.1), copies=1
    )
    return Load("job-1", attempt, plan(), training, programs, {"c": ["c:1"], "a": ["a:1"]}, "desk")


def fresh(size: int) -> memoryview:
    """Memory, as a backend gives it."""
    return memoryview(bytearray(size))


def limits(**changes: float) -> Limits:
    """What a worker's owner lends, at the default lease and a TFLOP/s."""
    given = {"tflops": 1.0, "pass_seconds": 60.0, "longest_pass_seconds": 3600.0, "chore_seconds": 240.0}
    return Limits(**{**given, **changes})
