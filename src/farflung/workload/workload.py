"""A model with its costs: arrays over the nodes of an OP-DAG, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BACKWARD_FACTOR = 2.0
"""Backward operations for each operation of a forward pass."""

OPTIMIZER_COPIES = 4
"""Of every trainable parameter a worker holds itself, its gradient and AdamW's two moments."""


@dataclass(frozen=True)
class Span:
    """A value that may cross a cut: made at one node, read at later ones (`readers`, ascending).

    `bytes` is its size for one microbatch; a `gradient` of the same size travels back, or none.
    """

    value: int
    made: int
    readers: tuple[int, ...]
    bytes: int
    gradient: bool


@dataclass(frozen=True)
class Feed:
    """A model input: the feeder sends its `bytes` once a microbatch to each segment that reads it."""

    value: int
    readers: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Workload:
    """An OP-DAG with the costs of one microbatch of `microbatch_size` samples.

    Arrays have one entry for each of n nodes; position p, 0 to n, stands before node p. Nodes that depend on
    no parameter and no random number cost nothing: whoever needs them recomputes them.

    Parameters
    ----------
    name
        For people.
    microbatches, microbatch_size
        Of a step: how many, of how many samples. All replicas together run `microbatches`.
    flops : float64 [n]
        Operations of the forward pass.
    legal : bool [n + 1]
        Whether the model may be cut at a position; the ends are legal.
    parameters : int64 [n]
        How many parameters a node is the first to read. Every segment must own one.
    parameter_bytes, trainable_bytes, state_bytes : float64 [n]
        Bytes of what a node is the first to read: parameters, those of them that are trained, and all state
        (buffers and constants too).
    tape_bytes : float64 [n]
        Bytes of what a node makes, kept from its forward pass to its backward pass.
    largest_bytes : float64 [n]
        Bytes of the largest value, other than state, that a node reads or makes.
    spans, feeds
        Values that may cross a cut, and model inputs.
    ties
        For each parameter that several nodes read: their positions. One worker must run them all.
    """

    name: str
    microbatches: int
    microbatch_size: int
    flops: Floats
    legal: NDArray[np.bool_]
    parameters: NDArray[np.int64]
    parameter_bytes: Floats
    trainable_bytes: Floats
    state_bytes: Floats
    tape_bytes: Floats
    largest_bytes: Floats
    spans: tuple[Span, ...]
    feeds: tuple[Feed, ...]
    ties: tuple[tuple[int, ...], ...] = field(default=())

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def work(self) -> Floats:
        """Operations before each position, forward and backward: [n + 1], starting with 0."""
        return _before(self.flops) * (1 + BACKWARD_FACTOR)

    @cached_property
    def crossing_forward(self) -> Floats:
        """Bytes of the values that a cut at each position parts from a reader: [n + 1]."""
        return self._crossing(gradients_only=False)

    @cached_property
    def crossing_backward(self) -> Floats:
        """Bytes of the gradients that travel back over a cut at each position: [n + 1]."""
        return self._crossing(gradients_only=True)

    @cached_property
    def owned(self) -> NDArray[np.int64]:
        """Parameters first read before each position: [n + 1]."""
        return np.concatenate([[0], np.cumsum(self.parameters)]).astype(np.int64)

    def memory_bytes(self, start: int, stop: int, window: int, recompute: bool = False) -> float:
        """What the nodes from `start` up to `stop` need as one segment, with `window` microbatches in flight.

        An estimate by the rule of `runtime.footprint` from sums over the range; with `recompute` only what
        came in is kept for each microbatch, and one tape.
        """
        state = self.sums["state"][stop] - self.sums["state"][start]
        trainable = self.sums["trainable"][stop] - self.sums["trainable"][start]
        tape = self.sums["tape"][stop] - self.sums["tape"][start]
        received = self.crossing_forward[start]
        fed = self.sums["fed"][stop] - self.sums["fed"][start]
        largest = float(self.largest_bytes[start:stop].max(initial=0.0))
        kept = (tape + window * received) if recompute else window * (tape + received)
        return float(state + (OPTIMIZER_COPIES - 1) * trainable + kept + 2 * window * fed + 2 * largest)

    @cached_property
    def sums(self) -> dict[str, Floats]:
        """Bytes before each position, [n + 1]: `parameter`, `trainable`, `state`, `tape`, `fed`."""
        fed = np.zeros(len(self))
        for feed in self.feeds:
            for reader in feed.readers:
                fed[reader] += feed.bytes
        return {
            "parameter": _before(self.parameter_bytes),
            "trainable": _before(self.trainable_bytes),
            "state": _before(self.state_bytes),
            "tape": _before(self.tape_bytes),
            "fed": _before(fed),
        }

    def _crossing(self, gradients_only: bool) -> Floats:
        change = np.zeros(len(self) + 2)
        for span in self.spans:
            if span.gradient or not gradients_only:
                change[span.made + 1] += span.bytes
                change[span.readers[-1] + 1] -= span.bytes
        return np.asarray(np.cumsum(change)[: len(self) + 1])


def _before(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
