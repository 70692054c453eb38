"""What a segment takes of its worker's memory: as XLA says of the programs that it has compiled.

The estimate from shapes (`runtime/footprint.py`) is of PyTorch's kernels. XLA fuses some of what these write
out, and writes out what these never do: of causal attention the scores of all pairs.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jax.stages import Compiled

from farflung.opdag.segment import Segment
from farflung.runtime.footprint import needs_of, runs_back_at_once
from farflung.runtime.training import Training
from farflung.workload.footprint import Needs


class Taken(NamedTuple):
    """Bytes that a program takes beside its arguments: its results that have memory of their own, and for a
    moment what it works with.
    """

    made: int
    working: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.made + self.working


NOTHING = Taken(0, 0)


class Passes(NamedTuple):
    """Of the programs of a microbatch; `left` is what lies between the two parts of its backward pass."""

    forward: Taken
    inputs: Taken
    weights: Taken
    left: int


def taken_by(program: Compiled) -> Taken:
    """What XLA says of a program; nothing where it cannot say."""
    said = program.memory_analysis()
    if said is None:
        return NOTHING
    return Taken(said.output_size_in_bytes - said.alias_size_in_bytes, said.temp_size_in_bytes)


def compiled_needs(
    segment: Segment, training: Training, passes: Passes, evaluation: Taken, update: Taken
) -> Needs[float]:
    """What the worker must have for the segment's programs; what is not computed is as by shapes."""
    by_shapes = needs_of(segment, training.microbatch_size, training.optimizer.moments)
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
