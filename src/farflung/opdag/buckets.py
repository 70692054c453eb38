"""Length buckets: one graph that runs at several lengths of its microbatches.

A model is captured once at each length. The graphs must be node for node the same but for sizes and other
literals. Then the graph of the longest stands for all, with what is different at each shorter length
(`Bucket`). *Bucket* 0 is the graph's own, the longest; bucket k is `graph.buckets[k - 1]`.

No value is larger in a shorter bucket, so what memory and links need is bounded by the graph's own sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from farflung.errors import CaptureError, GraphError
from farflung.opdag.graph import Bucket, Dimension, Graph, Input, Node, ValueType
from farflung.opdag.segment import Segment

Document = TypeVar("Document", Graph, Segment)

BUCKETS_VERSION = 3
"""The wire format that has buckets; documents without any stay in the format before."""

BUCKETS = "length_buckets"
"""How a backend says that it runs no buckets (`runtime.backend.Offer.lacks`)."""

OF_ONE_LENGTH = "use fewer workers, or give Pad one length"

_LINT = "batch-size"


def in_bucket(document: Document, bucket: int) -> Document:
    """The graph or segment with the sizes of one bucket, and without any others."""
    if not document.buckets:
        return document
    alone = msgspec.structs.replace(document, buckets=[])
    if not bucket:
        return alone
    sizes = document.buckets[bucket - 1]
    nodes = [
        msgspec.structs.replace(node, arguments=sizes.arguments[node.number])
        if node.number in sizes.arguments
        else node
        for node in document.nodes
    ]
    values = _resized(document.values, sizes.values)
    constants = {**document.constants, **sizes.constants}
    return msgspec.structs.replace(alone, values=values, nodes=nodes, constants=constants)


def in_buckets(document: Document) -> list[Document]:
    """The graph or segment in each of its buckets, the longest first."""
    return [in_bucket(document, bucket) for bucket in range(1 + len(document.buckets))]


def lengths_of(document: Graph | Segment, longest: int) -> tuple[int, ...]:
    """All lengths of a document whose own is `longest`, ascending."""
    return (*(bucket.length for bucket in reversed(document.buckets)), longest)


def part_of(
    bucket: Bucket, values: Collection[int], nodes: Iterable[Node], inputs: Iterable[Input]
) -> Bucket:
    """What a graph's bucket says of these values, nodes and constants."""
    numbers = {node.number for node in nodes}
    names = {entry.name for entry in inputs if entry.kind == "constant"}
    return Bucket(
        bucket.length,
        {value: shape for value, shape in bucket.values.items() if value in values},
        {number: given for number, given in bucket.arguments.items() if number in numbers},
        {name: constant for name, constant in bucket.constants.items() if name in names},
    )


def _resized(
    values: Sequence[ValueType] | Mapping[int, ValueType], shapes: Mapping[int, list[Dimension]]
) -> list[ValueType] | dict[int, ValueType]:
    """The types of values, of which some have other shapes."""

    def one(number: int, kind: ValueType) -> ValueType:
        return ValueType(kind.dtype, shapes[number]) if number in shapes else kind

    if isinstance(values, Mapping):
        return {number: one(number, kind) for number, kind in values.items()}
    return [one(number, kind) for number, kind in enumerate(values)]


def with_buckets(longest: int, graph: Graph, shorter: Mapping[int, Graph]) -> Graph:
    """The graph of the longest length with a bucket for each shorter one.

    Raises
    ------
    CaptureError
        Two lengths give graphs that differ in more than sizes, or inputs of the same shapes.
    """
    if not shorter:
        return graph
    buckets = []
    for length in sorted(shorter, reverse=True):
        where = f"the model computes otherwise at length {length} than at {longest}"
        if why := next(_differences(graph, shorter[length]), ""):
            raise CaptureError(f"{where} ({why}): give Pad one length", _LINT)
        buckets.append(_bucket(length, graph, shorter[length]))
        if why := _larger(graph, buckets[-1]):
            raise CaptureError(f"{where} ({why}): give Pad one length", _LINT)
    made = msgspec.structs.replace(graph, version=BUCKETS_VERSION, buckets=buckets)
    _require_told_apart(made, longest)
    return made


def _differences(one: Graph, other: Graph) -> Iterator[str]:
    """In what two graphs differ that no bucket can say."""
    theirs = {node.number: node for node in other.nodes}
    for node in one.nodes:
        found = theirs.pop(node.number, None)
        if found is None or found.op != node.op:
            yield f"node {node.number} is {node.op}, there {'missing' if found is None else found.op}"
        elif found.reads() != node.reads() or found.outputs != node.outputs:
            yield f"node {node.number}, {node.op}, reads or makes other values"
    for node in theirs.values():
        yield f"node {node.number}, {node.op}, is only there"
    if one.inputs != other.inputs or one.ties != other.ties:
        yield "it reads other parameters, buffers or inputs"
    if (one.loss, one.mutations, one.metrics) != (other.loss, other.mutations, other.metrics):
        yield "it has other results"
    if [kind.dtype for kind in one.values] != [kind.dtype for kind in other.values]:
        yield "some values have other types"
    for entry in one.inputs:
        if entry.kind in ("parameter", "buffer") and one.values[entry.value] != other.values[entry.value]:
            yield f"{entry.kind} {entry.name} has another shape"


def _bucket(length: int, longest: Graph, shorter: Graph) -> Bucket:
    there = {node.number: node for node in shorter.nodes}
    pairs = enumerate(zip(longest.values, shorter.values, strict=True))
    return Bucket(
        length,
        {number: other.shape for number, (own, other) in pairs if own.shape != other.shape},
        {
            node.number: there[node.number].arguments
            for node in longest.nodes
            if there[node.number].arguments != node.arguments
        },
        {
            name: constant
            for name, constant in shorter.constants.items()
            if longest.constants.get(name) != constant
        },
    )


def _larger(graph: Graph | Segment, bucket: Bucket, batch: int = 2) -> str:
    """Which value is larger in the bucket than in the graph; empty if none is."""
    for number, shape in bucket.values.items():
        kind = graph.values[number]
        if ValueType(kind.dtype, shape).bytes(batch) > kind.bytes(batch):
            return f"value {number} is larger there"
    return ""


def _require_told_apart(graph: Graph, longest: int) -> None:
    """Check that the shapes of a microbatch say its length."""
    seen: dict[str, int] = {}
    for length, one in zip((longest, *(b.length for b in graph.buckets)), in_buckets(graph), strict=True):
        shapes = repr([one.values[entry.value] for entry in one.inputs_of("input")])
        if shapes in seen:
            raise CaptureError(
                f"no input of the model has another shape at length {length} than at {seen[shapes]}: give Pad"
                " one length",
                _LINT,
            )
        seen[shapes] = length


def require_buckets(document: Graph | Segment, batch: int) -> None:
    """Check that a received document's buckets change nothing but sizes, and make no value larger.

    What a bucket makes of the document is still to be checked like any other.

    Raises
    ------
    GraphError
        They do.
    """
    if not document.buckets:
        return
    lengths = [bucket.length for bucket in document.buckets]
    if document.version < BUCKETS_VERSION or lengths != sorted({*lengths}, reverse=True):
        raise GraphError("the buckets of an OP-DAG are not in order, or its format has none")
    reads = {node.number: node.reads() for node in document.nodes}
    known = set(document.values if isinstance(document, Segment) else range(len(document.values)))
    state = {e.value for e in document.inputs if e.kind in ("parameter", "buffer")}
    for bucket in document.buckets:
        if not bucket.values.keys() <= known - state or not bucket.arguments.keys() <= reads.keys():
            raise GraphError(f"the bucket of length {bucket.length} resizes what it may not")
        for number, arguments in bucket.arguments.items():
            if Node(number, "", arguments, []).reads() != reads[number]:
                raise GraphError(f"the bucket of length {bucket.length} lets node {number} read other values")
        if not bucket.constants.keys() <= document.constants.keys():
            raise GraphError(f"the bucket of length {bucket.length} has constants that the OP-DAG lacks")
        if why := _larger(document, bucket, batch):
            raise GraphError(f"the bucket of length {bucket.length} is no shorter: {why}")


def input_shapes(graph: Graph, batch: int) -> list[dict[str, tuple[int, ...]]]:
    """For each bucket, the shapes of the model's inputs by name, for microbatches of `batch` samples."""
    return [
        {entry.name: one.values[entry.value].shape_at(batch) for entry in one.inputs_of("input")}
        for one in in_buckets(graph)
    ]


def bucket_of(
    known: Sequence[Mapping[str, tuple[int, ...]]], found: Mapping[str, tuple[int, ...]]
) -> int | None:
    """The bucket whose input shapes (`input_shapes`) a microbatch has; None if there is none."""
    for bucket, shapes in enumerate(known):
        if all(found.get(name) == shape for name, shape in shapes.items()):
            return bucket
    return None
