"""The memory that a segment needs, as XLA reports it for the compiled programs.

The estimate from shapes (`runtime/footprint.py`) is for PyTorch's kernels. XLA fuses some ops that these
write to memory, and writes others that these never do, such as the scores of all pairs in causal attention.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jax.stages import Compiled

from farflung.opdag.segment import Segment
from farflung.runtime.footprint import needs_of, runs_back_at_once
from farflung.runtime.optimizers.memory import memory_of_updates
from farflung.runtime.training import Training
from farflung.workload.footprint import Needs


class ProgramMemory(NamedTuple):
    """Bytes that a program needs besides its arguments: results with memory of their own, and temporary
    memory.
    """

    made: int
    working: int

    @property
    def bytes(self) -> int:
        """The sum of both."""
        return self.made + self.working


NOTHING = ProgramMemory(0, 0)


class Passes(NamedTuple):
    """The programs of a microbatch; `left` is the memory held between the two parts of its backward pass."""

    forward: ProgramMemory
    inputs: ProgramMemory
    weights: ProgramMemory
    left: int


def program_memory(program: Compiled) -> ProgramMemory:
    """XLA's report on a program; zeros if it has none."""
    analysis = program.memory_analysis()
    if analysis is None:
        return NOTHING
    return ProgramMemory(
        analysis.output_size_in_bytes - analysis.alias_size_in_bytes, analysis.temp_size_in_bytes
    )


def compiled_needs(
    segment: Segment, training: Training, passes: Passes, evaluation: ProgramMemory, update: ProgramMemory
) -> Needs[float]:
    """The memory that a worker needs for the segment's programs; other parts are estimated from shapes."""
    by_shapes = needs_of(
        segment, training.microbatch_size, memory_of_updates(training.optimizer, training.copies)
    )
    returned = by_shapes.returned
    left = max(returned, float(passes.left))
    waiting = max(passes.forward.made + returned, left)
    if runs_back_at_once(segment):
        waiting = left
    running = max(
        passes.forward.bytes,
        passes.forward.made + returned + passes.inputs.bytes,
        left + passes.weights.bytes,
        evaluation.bytes,
        waiting,
    )
    return dataclasses.replace(
        by_shapes,
        running=running,
        again=max(running, passes.forward.bytes + returned),
        waiting=waiting,
        left=left,
        updating=update.bytes,
    )
