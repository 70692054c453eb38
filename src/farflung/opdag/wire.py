"""OP-DAG and segments to bytes and back. What comes in is hostile until every check here has passed.

The checks are structural: known ops and arguments, every value defined once and before its use, bounded
sizes. Shapes and element types are recomputed by a backend on a device without memory (`meta`) before
anything runs (`runtime.torch_backend.verify`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from farflung.errors import GraphError
from farflung.opdag import formats
from farflung.opdag.graph import FLOATING, ITEM_BYTES, BatchSize, Constant, Graph, Input, Node, ValueType
from farflung.opdag.opset import check_arguments, version
from farflung.opdag.segment import Segment
from farflung.text import printable

FORMAT_VERSION = formats.NEWEST
MAXIMUM_BYTES = 64 * 2**20
MAXIMUM_CONSTANT_BYTES = 16 * 2**20
MAXIMUM_ELEMENTS = 2**31
MAXIMUM_BATCH = 2**20

Document = TypeVar("Document", Graph, Segment)


def dump(document: Graph | Segment) -> bytes:
    """The graph or segment as msgpack."""
    return msgspec.msgpack.encode(document)


def load_graph(data: bytes, batch: int = 1) -> Graph:
    """Read and validate a graph that will run on microbatches of `batch` samples.

    Raises
    ------
    GraphError
        Naming the first rule of the format, the opset or the limits that it breaks.
    """
    graph = _decode(data, Graph)
    types = dict(enumerate(graph.values))
    defined = _check_values(types, graph.inputs, (), graph.nodes, batch, graph.opset)
    _check_defined([graph.loss, *graph.mutations.values()], defined, "the loss or a mutation")
    _check_names(graph.inputs, graph.constants, graph.mutations, types)
    _check_loss(types[graph.loss])
    parameters = {entry.name for entry in graph.inputs if entry.kind == "parameter"}
    if any(name not in parameters or alias in parameters for alias, name in graph.ties.items()):
        raise GraphError("a tie must map another name to a parameter of the graph")
    return graph


def load_segment(data: bytes, batch: int = 1) -> Segment:
    """Read and validate one segment; see `load_graph`."""
    segment = _decode(data, Segment)
    defined = _check_values(
        segment.values, segment.inputs, segment.receives, segment.nodes, batch, segment.opset
    )
    outputs = [*segment.sends, *segment.mutations.values()]
    _check_defined(outputs if segment.loss is None else [*outputs, segment.loss], defined, "an output")
    _check_names(segment.inputs, segment.constants, segment.mutations, segment.values)
    held = {entry.name for entry in segment.inputs if entry.kind in ("parameter", "buffer")}
    if not set(segment.owned) <= held or not set(segment.mutations) <= set(segment.owned):
        raise GraphError("a segment owns or mutates a tensor that it does not hold")
    if segment.loss is not None:
        _check_loss(segment.values[segment.loss])
    if not set(segment.differentiable) <= set(segment.receives) | set(segment.sends):
        raise GraphError("a gradient crosses the segment's border where no value does")
    if any(segment.values[value].dtype not in FLOATING for value in segment.differentiable):
        raise GraphError("a value that is not floating point has no gradient")
    return segment


def _decode(data: bytes, kind: type[Document]) -> Document:
    if len(data) > MAXIMUM_BYTES:
        raise GraphError(f"an OP-DAG of {len(data)} bytes is over the limit of {MAXIMUM_BYTES}")
    try:
        document = msgspec.msgpack.decode(formats.upgraded(data), type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        quoted = printable(str(error)[:200])  # parts of the document, which another machine wrote
        raise GraphError(f"the OP-DAG cannot be read: {quoted}") from None
    if document.opset > version():
        raise GraphError(
            f"the OP-DAG needs opset version {document.opset}, this farflung has {version()}: "
            "install a newer farflung"
        )
    return document


def _check_values(
    types: Mapping[int, ValueType],
    inputs: Sequence[Input],
    receives: Iterable[int],
    nodes: Sequence[Node],
    batch: int,
    opset: int,
) -> set[int]:
    """Check sizes, and that every value has a type and is defined exactly once, before its first use."""
    if not 1 <= batch <= MAXIMUM_BATCH:
        raise GraphError(f"a microbatch must hold 1 to {MAXIMUM_BATCH} samples, found {batch}")
    for number, value_type in types.items():
        _check_size(number, value_type, batch)
    defined: set[int] = set()
    for value in [entry.value for entry in inputs] + list(receives):
        _define(value, types, defined)
    numbers: set[int] = set()
    for node in nodes:
        op = check_arguments(node)
        if op.since > opset:
            raise GraphError(
                f"node {node.number} ({node.op}): the op came with opset version {op.since}, "
                f"the OP-DAG states {opset}"
            )
        if node.number in numbers:
            raise GraphError(f"two nodes have the number {node.number}")
        numbers.add(node.number)
        _check_defined(node.reads(), defined, f"node {node.number} ({node.op})")
        if not node.writes():
            raise GraphError(f"node {node.number} ({node.op}) makes nothing")
        for value in node.writes():
            _define(value, types, defined)
    return defined


def _define(value: int, types: Mapping[int, ValueType], defined: set[int]) -> None:
    if value not in types:
        raise GraphError(f"value {value} has no type")
    if value in defined:
        raise GraphError(f"value {value} is defined twice")
    defined.add(value)


def _check_defined(values: Iterable[int], defined: set[int], where: str) -> None:
    for value in values:
        if value not in defined:
            raise GraphError(f"{where} uses value {value} before it is made")


def _check_loss(loss: ValueType) -> None:
    if loss.shape or loss.dtype != "float32":
        raise GraphError(
            f"the loss must be a float32 scalar, found {loss.dtype} with {len(loss.shape)} dimensions"
        )


def _check_size(number: int, value_type: ValueType, batch: int) -> None:
    if any(isinstance(d, BatchSize) and d.factor < 0 for d in value_type.shape):
        raise GraphError(f"value {number} would shrink with the batch")
    elements = 1
    for size in value_type.shape_at(batch):
        elements *= max(size, 1)  # of no elements at all, strides are still counted
        if size < 0 or elements > MAXIMUM_ELEMENTS:
            raise GraphError(f"value {number} has a size outside 0 to {MAXIMUM_ELEMENTS} elements")


def _check_names(
    inputs: Sequence[Input],
    constants: Mapping[str, Constant],
    mutations: Mapping[str, int],
    types: Mapping[int, ValueType],
) -> None:
    names = [(entry.kind, entry.name) for entry in inputs]
    if len(set(names)) != len(names):
        raise GraphError("two inputs of one kind have the same name")
    trainable = [entry for entry in inputs if entry.trainable]
    if any(e.kind != "parameter" or types[e.value].dtype not in FLOATING for e in trainable):
        raise GraphError("only a floating point parameter can be trainable")
    buffers = {entry.name: types[entry.value] for entry in inputs if entry.kind == "buffer"}
    if any(buffers.get(name) != types[value] for name, value in mutations.items()):
        raise GraphError("a mutation must replace a buffer of the graph by a value of its type")
    wanted = {entry.name: types[entry.value] for entry in inputs if entry.kind == "constant"}
    if set(wanted) != set(constants):
        raise GraphError("the constants are not those that the inputs name")
    for name, constant in constants.items():
        _check_constant(name, constant, wanted[name])
    if sum(len(constant.data) for constant in constants.values()) > MAXIMUM_CONSTANT_BYTES:
        raise GraphError(
            f"the constants take more than {MAXIMUM_CONSTANT_BYTES} bytes: "
            "register large tensors of the model as buffers"
        )


def _check_constant(name: str, constant: Constant, wanted: ValueType) -> None:
    elements = 1
    for size in constant.shape:
        elements *= size
    if wanted.dtype != constant.dtype or list(wanted.shape) != constant.shape:
        raise GraphError(f"constant {name[:60]!r} is not of the type that its input states")
    if len(constant.data) != elements * ITEM_BYTES[constant.dtype]:
        raise GraphError(f"constant {name[:60]!r} does not have the bytes that its shape asks for")
