"""One segment of a cut graph, with the graph's value and node numbers, and its form for evaluation.

In evaluation, dropout is the identity, batch norms use their running statistics, and attention has no
dropout.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.opdag.graph import (
    MOST_METRICS,
    Argument,
    Buckets,
    Constant,
    Input,
    Name,
    Node,
    OpsetVersion,
    ValueId,
    ValueType,
)


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A convex set of nodes that runs as one unit.

    `inputs` are the model inputs, parameters, buffers and constants it reads; `owned` the parameters and
    buffers it updates (a parameter's first user owns it; other users share the owner's tensor on the same
    worker and add their gradients there). `receives` and `sends` are value ids that cross the cut,
    `differentiable` those of them whose gradient is sent back. `metrics` are scalars that evaluations report.
    `buckets` are those of the graph, as far as they are about the segment.
    """

    version: int
    opset: OpsetVersion
    number: Annotated[int, Meta(ge=0, le=100_000)]
    values: Annotated[dict[ValueId, ValueType], Meta(max_length=1_000_000)]
    inputs: Annotated[list[Input], Meta(max_length=100_000)]
    owned: Annotated[list[Name], Meta(max_length=100_000)]
    receives: Annotated[list[ValueId], Meta(max_length=100_000)]
    nodes: Annotated[list[Node], Meta(max_length=100_000)]
    sends: Annotated[list[ValueId], Meta(max_length=100_000)]
    differentiable: Annotated[list[ValueId], Meta(max_length=200_000)]
    loss: ValueId | None
    mutations: Annotated[dict[Name, ValueId], Meta(max_length=100_000)]
    constants: Annotated[dict[Name, Constant], Meta(max_length=100_000)]
    metrics: Annotated[list[ValueId], Meta(max_length=2 * MOST_METRICS)] = []
    buckets: Buckets = []

    def without_metrics(self) -> Segment:
        """The segment as training runs it: without metrics, and without nodes that only they need."""
        if not self.metrics:
            return self
        needed = {*self.sends, *self.mutations.values()} | ({self.loss} - {None})
        nodes: list[Node] = []
        for node in reversed(self.nodes):
            if needed.intersection(node.writes()):
                needed.update(node.reads())
                nodes.append(node)
        return msgspec.structs.replace(self, nodes=nodes[::-1], metrics=[])


EVALUATION: dict[str, dict[str, Argument]] = {
    "aten.native_dropout.default": {"train": False},
    "aten._native_batch_norm_legit_functional.default": {"training": False},
    "aten.scaled_dot_product_attention.default": {"dropout_p": 0.0},
}
