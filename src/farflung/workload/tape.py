"""The memory of a microbatch that runs through nodes: a tape that grows forward and shrinks backward.

It is a run over shapes instead of tensors. Forward, every result lives until its last use, and what the
backward pass needs (`opdag.saved_tensors`) lives until the end. Backward, every gradient lives from its first
reader to the node that made the value. Gradients of parameters come later (`SegmentRunner.accumulate`): until
then, inputs of products and similar nodes stay, with the gradients of their results. The planner computes
this for a whole graph, a worker for its segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.opdag.cost import Types
from farflung.opdag.graph import Node
from farflung.opdag.opset import lookup
from farflung.opdag.saved_tensors import SavedTensors, saved_by
from farflung.opdag.storage import Storage
from farflung.workload.arrays import Floats

_SAME_GRADIENT = frozenset(
    {"add", "reshape", "flatten", "transpose", "permute", "t", "unsqueeze", "squeeze", "cat", "stack"}
)
"""Ops whose operands' gradients are views of their result's gradient, if shapes allow."""


@dataclass(frozen=True)
class Tape:
    """Bytes of one microbatch, by node: float64 [n] each.

    Parameters
    ----------
    kept
        What a node adds to the tape.
    left
        What of a node's there still is when its gradients have been sent, until those of parameters are
        added up: what it made, if a node that reads a parameter read it, and the gradient that it got, if it
        is such a node.
    forward
        What lives beside the tape while the node runs forward.
    backward
        What lives beside the tape while it runs backward: its gradients, those that wait for other nodes,
        and the kernel's own memory.
    unkept
        Values with memory of their own that are not on the tape.
    shared_from
        For values whose gradient, while it waits, lies in the memory of another one: the first position at
        which it does. Before that position its memory is its own.
    """

    kept: Floats
    left: Floats
    forward: Floats
    backward: Floats
    unkept: frozenset[int]
    shared_from: Mapping[int, int]

    def forward_peak_bytes(self) -> float:
        """The peak memory of a microbatch while it runs forward."""
        return float((np.cumsum(self.kept) + self.forward).max(initial=0.0))

    def backward_peak_bytes(self, whole: bool) -> float:
        """The peak memory while it runs backward, without the gradients received over links.

        With `whole`, gradients of parameters are computed in the same pass.
        """
        left = 0.0 if whole else self.left.sum() - np.cumsum(self.left)
        return float((np.cumsum(self.kept) + left + self.backward).max(initial=0.0))


def tape_of(
    nodes: Sequence[Node],
    types: Types,
    batch: int,
    storage: Storage,
    gradients: set[int],
    trained: set[int],
    sent: Collection[int] = (),
) -> Tape:
    """Compute the tape of `nodes` for a microbatch of `batch` samples.

    Parameters
    ----------
    nodes, types, storage
        In the order in which they run; types and memory of all values that they read and make.
    gradients, trained
        Values whose gradient is needed, and those of them that are parameters.
    sent
        Values that others read, too: they stay until their gradients are back, which are held for as long as
        the microbatch runs backward and not counted here.
    """
    kept = [saved_by(node, types, batch, storage, gradients) for node in nodes]
    sizes = _Sizes(types, batch)
    made = {storage.root(value) for node in nodes for value in node.writes()}
    on_tape = {storage.root(value) for entry in kept for value in entry.values}
    on_tape |= {storage.root(value) for value in sent}
    forward = _forward(nodes, storage, kept, on_tape, sizes)
    back = _Backward(nodes, kept, gradients, sizes, gradients.intersection(sent))
    backward = back.run()
    grows: list[float] = [
        entry.extra_bytes + sum(sizes[v] for v in at.writes() if v in on_tape and storage.root(v) == v)
        for at, entry in zip(nodes, kept, strict=True)
    ]
    left = _left(nodes, storage, gradients, trained, sizes)
    unkept = frozenset(made - on_tape)
    return Tape(np.array(grows), left, forward, backward, unkept, back.shared_from)


def _left(
    nodes: Sequence[Node], storage: Storage, gradients: set[int], trained: set[int], sizes: _Sizes
) -> Floats:
    """`Tape.left`. Norms make the gradients of their weights on the way, additions need nothing they read."""
    weights = set(trained)
    read: set[int] = set()
    found = np.zeros(len(nodes))
    for at, node in enumerate(nodes):
        made = gradients.intersection(node.writes())
        joined = weights.intersection(node.reads())
        if not made or not joined:
            continue
        others = set(node.reads()) - joined
        if not others:
            weights |= made
        elif lookup(node.op).group != "normalisation":
            found[at] += sum(sizes[value] for value in made)
            if node.op.split(".")[1] not in _SAME_GRADIENT:
                read.update(storage.root(value) for value in others)
    for at, node in enumerate(nodes):
        found[at] += sum(sizes[value] for value in node.writes() if value in read)
    return found


class _Sizes(dict[int, int]):
    """Bytes by value, computed on demand."""

    def __init__(self, types: Types, batch: int) -> None:
        super().__init__()
        self._types, self._batch = types, batch

    def __missing__(self, value: int) -> int:
        self[value] = size = self._types[value].bytes(self._batch)
        return size


def _forward(
    nodes: Sequence[Node],
    storage: Storage,
    kept: Sequence[SavedTensors],
    on_tape: set[int],
    sizes: _Sizes,
) -> Floats:
    """Results that are not on the tape, each until its last use, and memory of kernels."""
    last = {
        storage.root(value): at for at, node in enumerate(nodes) for value in (*node.reads(), *node.writes())
    }
    change = np.zeros(len(nodes) + 1)
    for at, node in enumerate(nodes):
        for value in node.writes():
            if storage.root(value) == value and value not in on_tape:
                change[at] += sizes[value]
                change[last[value] + 1] -= sizes[value]
    return np.cumsum(change)[:-1] + [entry.forward_bytes for entry in kept]


@dataclass
class _Backward:
    """A simulated backward pass. A gradient is a number; `bytes` holds its memory, `uses` its number of
    users.

    Gradients of sent values are present from the beginning to the end and take no memory here.
    """

    nodes: Sequence[Node]
    kept: Sequence[SavedTensors]
    gradients: set[int]
    sizes: _Sizes
    sent: set[int]
    shared_from: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)
    waiting: dict[int, int] = field(default_factory=dict)
    live: int = 0

    def run(self) -> Floats:
        """`Tape.backward`; notes `Tape.shared_from`."""
        together = np.zeros(len(self.nodes))
        first: dict[int, int] = {}
        for at, node in enumerate(self.nodes):
            if self.gradients.intersection(node.writes()):
                for value in node.reads():
                    first.setdefault(value, at)
        made = {value for node in self.nodes for value in node.writes()}
        for value in self.sent:
            self.waiting[value] = self._new(0)
            self.uses[self.waiting[value]] += 2
        for at in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[at]
            if not self.gradients.intersection(node.writes()):
                continue
            incoming = self._incoming(node)
            self._note_shared(at)
            given = self._give(node, incoming)
            together[at] = self.live + self.kept[at].backward_bytes
            for value, gradient in given:
                self._wait(value, gradient)
            over = [value for value, _ in given if value not in made and first[value] == at]
            for value in dict.fromkeys([*node.writes(), *over]):
                self._release(value)
        return together

    def _note_shared(self, at: int) -> None:
        self.shared_from.update((v, at) for v, gradient in self.waiting.items() if self.uses[gradient] > 1)

    def _incoming(self, node: Node) -> list[int]:
        """Gradients of the node's results; a result without a reader is the loss."""
        found = []
        for value in node.writes():
            if value in self.gradients:
                if value not in self.waiting:
                    self._wait(value, self._new(self.sizes[value]))
                found.append(self.waiting[value])
        return found

    def _give(self, node: Node, incoming: Sequence[int]) -> list[tuple[int, int]]:
        """A gradient for each operand that needs one."""
        base = node.op.split(".")[1]
        given = []
        for value in node.reads():
            if value not in self.gradients:
                continue
            through = base in _SAME_GRADIENT and incoming
            if through and (base in ("cat", "stack") or self.sizes[value] == self.sizes[node.writes()[0]]):
                given.append((value, incoming[0]))
            else:
                given.append((value, self._new(self.sizes[value])))
        return given

    def _new(self, size: int) -> int:
        number = len(self.bytes)
        self.bytes[number] = size
        self.live += size
        return number

    def _wait(self, value: int, gradient: int) -> None:
        """Add a gradient to the one that waits for `value`, reusing the memory of one without other users."""
        other = self.waiting.get(value)
        if other is None:
            self.waiting[value] = gradient
            self.uses[gradient] += 1
            return
        if self.uses[other] == 1:
            if not self.uses[gradient]:
                self._free(gradient)
            return
        self.uses[other] -= 1
        self.waiting[value] = self._new(self.sizes[value]) if self.uses[gradient] else gradient
        self.uses[self.waiting[value]] = 1

    def _release(self, value: int) -> None:
        gradient = self.waiting.pop(value, None)
        if gradient is not None:
            self.uses[gradient] -= 1
            if not self.uses[gradient]:
                self._free(gradient)

    def _free(self, gradient: int) -> None:
        self.live -= self.bytes[gradient]
        self.bytes[gradient] = 0
