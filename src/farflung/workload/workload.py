"""A model with its costs: arrays over the nodes of an OP-DAG, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from farflung.opdag.form import Form
from farflung.plans import FP32_BYTES
from farflung.workload.arrays import Floats, Gap, before
from farflung.workload.coding import CodedRanges, CodingMemory, Crossing
from farflung.workload.footprint import Footprint, Memory

BACKWARD_FACTOR = 2.0
"""Backward operations for each operation of a forward pass."""

WEIGHT_FACTOR = 1.0
"""Those of them that make gradients of parameters; the rest make gradients of what a segment received."""


@dataclass(frozen=True)
class Live:
    """Bytes of one microbatch besides the tape, by node: float64 [n] each.

    Parameters
    ----------
    forward, returning, left
        As `tape.Tape` says (`returning` is its `backward`).
    recomputing
        The peak while the values that the node needs and that depend on no parameter are made.
    recomputed
        The part of `Workload.tape_bytes` for those values, which exist before any other node runs.
    forward_gaps, backward_gaps
        Memory that `forward` and `returning` count at nodes that do not need it; excluded from ranges without
        its ends.
    """

    forward: Floats
    returning: Floats
    left: Floats
    recomputing: Floats
    recomputed: Floats
    forward_gaps: tuple[Gap, ...] = ()
    backward_gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class Span:
    """A value that may cross a cut: made at one node, read at later ones (`readers`, ascending).

    `bytes` is its size for one microbatch; a `gradient` of the same size travels back, or none. Without a
    `form` it counts as one row of fp32 numbers. `frozen` is that of `plans.Edge`.
    """

    value: int
    made: int
    readers: tuple[int, ...]
    bytes: int
    gradient: bool
    form: Form | None = None
    frozen: bool = False

    @property
    def tensor(self) -> Form:
        """Its form."""
        return self.form or Form("float32", (self.bytes // FP32_BYTES,))

    @property
    def is_codable(self) -> bool:
        """Whether codecs may write it."""
        return (self.gradient or self.frozen) and self.tensor.is_codable


@dataclass(frozen=True)
class Feed:
    """A model input: the feeder sends its `bytes` once a microbatch to each segment that reads it."""

    value: int
    readers: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Repeat:
    """An item that several nodes need (`readers`, ascending), with its bytes in ranges without the first
    reader.

    `state` of a parameter is its gradient, because one worker has all uses; of a buffer it is a copy. `tape`
    is what is recomputed; a negative value is a copy that the second node only makes together with the first.
    The workload's arrays count what the first reader needs.
    """

    readers: tuple[int, ...]
    state: float = 0.0
    tape: float = 0.0


@dataclass(frozen=True)
class Workload:
    """An OP-DAG with the costs of one microbatch of `microbatch_size` samples.

    Arrays have one entry for each of n nodes; position p, 0 to n, stands before node p. Nodes that depend on
    no parameter and no random number cost nothing: every worker that needs them recomputes them.

    Parameters
    ----------
    name
        The model's name in reports.
    microbatches, microbatch_size
        The microbatches of a step, over all replicas, and the samples of each.
    flops : float64 [n]
        Operations of the forward pass.
    legal : bool [n + 1]
        Whether the model may be cut at a position; the ends are legal.
    parameters : int64 [n]
        How many parameters a node is the first to read. Every segment must own one.
    parameter_bytes, trainable_bytes, state_bytes : float64 [n]
        Bytes of what a node is the first to read: parameters, those of them that are trained, and all state
        (buffers and constants too).
    kept_bytes, update_bytes : float64 [n]
        Bytes that the optimizer keeps of the trained ones, and the most that the update of one needs.
    tape_bytes : float64 [n]
        Bytes of what a node makes, kept from its forward pass to its backward pass; and of what it is the
        first to need of values that are recomputed.
    live
        What lives beside the tape while nodes run.
    spans, feeds
        Values that may cross a cut, and model inputs.
    ties
        For each parameter that several nodes read: their positions. One worker must run them all.
    repeats
        State and recomputed values that several nodes need.
    unkept
        Values that are on the tape only where they cross a cut: position of the node that makes one, of its
        last reader, and bytes.
    shipped
        Values that are recomputed, unless they are sent because the model inputs that make them are larger:
        for each need but the first the position of the one before, its own, and bytes.
    codecs, most_receivers
        What writes the values that cross between workers, if anything does; no value goes to more of them.
    """

    name: str
    microbatches: int
    microbatch_size: int
    flops: Floats
    legal: NDArray[np.bool_]
    parameters: NDArray[np.int64]
    parameter_bytes: Floats
    trainable_bytes: Floats
    kept_bytes: Floats
    update_bytes: Floats
    state_bytes: Floats
    tape_bytes: Floats
    live: Live
    spans: tuple[Span, ...]
    feeds: tuple[Feed, ...]
    ties: tuple[tuple[int, ...], ...] = field(default=())
    repeats: tuple[Repeat, ...] = field(default=())
    unkept: tuple[tuple[int, int, int], ...] = field(default=())
    shipped: tuple[tuple[int, int, int], ...] = field(default=())
    codecs: CodingMemory | None = None
    most_receivers: int = 1

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def work(self) -> Floats:
        """Operations before each position, forward and backward: [n + 1], starting with 0."""
        return before(self.flops) * (1 + BACKWARD_FACTOR)

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

    @cached_property
    def span_ends(self) -> NDArray[np.int64]:
        """Where each span is made and where it is read last: [2, spans]."""
        ends = [(span.made, span.readers[-1]) for span in self.spans]
        return np.array(ends, dtype=np.int64).reshape(-1, 2).T

    def footprint(self, start: int, stop: int, window: int, recompute: bool = False) -> Footprint[float]:
        """The memory of the nodes from `start` up to `stop` as one segment, with `window` microbatches in
        flight.

        It is never less than what `runtime.footprint` counts. They differ only for values that are recomputed
        here but sent by the plan, because they are smaller than the model inputs they come from. With
        `recompute`, only received values and gradients are stored for each microbatch, and one tape.
        """
        footprint = self._memory.up_to(stop).at(start).footprint(window, recompute)
        if self._coded is None:
            return footprint
        held, learned, working = (float(each[start]) for each in self._coded.up_to(stop))
        return footprint.with_codecs(window * held + learned, working)

    def footprints_up_to(self, stop: int, window: int, recompute: bool = False) -> Footprint[Floats]:
        """`footprint` of the ranges from every start below `stop` up to it: [stop] each."""
        footprint = self._memory.up_to(stop).footprint(window, recompute)
        if self._coded is None:
            return footprint
        held, learned, working = self._coded.up_to(stop)
        return footprint.with_codecs(window * held + learned, working)

    def memory_bytes(self, start: int, stop: int, window: int, recompute: bool = False) -> float:
        """Bytes that a worker needs if these nodes are its only segment."""
        return float(self.footprint(start, stop, window, recompute).bytes)

    def memory_up_to(self, stop: int, window: int, recompute: bool = False) -> Floats:
        """`memory_bytes` of the ranges from every start below `stop` up to it: [stop]."""
        return self.footprints_up_to(stop, window, recompute).bytes

    def weighing(self, flops: Floats) -> Workload:
        """The same workload with other operations, `[n]`; tables of its memory are shared."""
        return self._sharing_memory(replace(self, flops=flops))

    def coded(self, codecs: CodingMemory | None, workers: int) -> Workload:
        """The same workload with codecs on all values that cross between at most `workers` workers."""
        return self._sharing_memory(replace(self, codecs=codecs, most_receivers=max(1, workers)))

    @cached_property
    def sums(self) -> dict[str, Floats]:
        """Bytes before each position, [n + 1]: `parameter`, `trainable`."""
        return {"parameter": before(self.parameter_bytes), "trainable": before(self.trainable_bytes)}

    @cached_property
    def fixed_bytes(self) -> Floats:
        """Bytes of each node's state for the whole run, with gradients and what the optimizer keeps: [n]."""
        return self.state_bytes + self.trainable_bytes + self.kept_bytes

    @cached_property
    def _memory(self) -> Memory:
        return Memory(self)

    @cached_property
    def _coded(self) -> CodedRanges | None:
        if self.codecs is None:
            return None
        values = [Crossing(span.made, span.readers, span.tensor) for span in self.spans if span.is_codable]
        return CodedRanges(len(self), values, self.codecs, self.most_receivers)

    def _sharing_memory(self, other: Workload) -> Workload:
        """`other`, which needs the same memory, with this workload's tables."""
        other.__dict__["_memory"] = self._memory  # where `cached_property` keeps it
        return other

    def _crossing(self, gradients_only: bool) -> Floats:
        change = np.zeros(len(self) + 2)
        for span in self.spans:
            if span.gradient or not gradients_only:
                change[span.made + 1] += span.bytes
                change[span.readers[-1] + 1] -= span.bytes
        return np.asarray(np.cumsum(change)[: len(self) + 1])
