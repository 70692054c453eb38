"""OP-DAGs and segments as bytes. Received bytes are untrusted until every check here has passed.

The checks are structural: known ops and arguments, every value defined once and before its use, bounded
sizes. Shapes and element types are recomputed by a backend on a device without memory (`meta`) before
anything runs (`runtime.torch_backend.verify`).

Older wire formats are converted to the current one here, and nowhere else, so readers know only one format.

Format 1 named the opset by a hash of its table, and there was one table. Format 2 gives the lowest version of
the opset that has all ops of the document. Format 3 is that of documents with buckets (`opdag.buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from farflung.errors import GraphError
from farflung.opdag.buckets import in_buckets, require_buckets
from farflung.opdag.graph import FLOATING, ITEM_BYTES, BatchSize, Constant, Graph, Input, Node, ValueType
from farflung.opdag.opset import check_arguments, schema_hash, version
from farflung.opdag.segment import Segment
from farflung.text import printable

NEWEST = 3

Fields = Annotated[dict[Annotated[str, Meta(max_length=64)], Raw], Meta(max_length=32)]


class _Header(msgspec.Struct):
    version: Annotated[int, Meta(ge=1)]


def upgraded(data: bytes) -> bytes:
    """Convert a document of any supported format to the current one.

    Raises
    ------
    GraphError
        Its format is newer than this version, or its opset is unknown.
    msgspec.DecodeError
        It is not a document.
    """
    version = msgspec.msgpack.decode(data, type=_Header).version
    if version > NEWEST:
        raise GraphError(
            f"the OP-DAG has format version {version}, this farflung reads up to {NEWEST}: "
            "install a newer farflung"
        )
    if version >= FORMAT_VERSION:
        return data
    fields = msgspec.msgpack.decode(data, type=Fields)
    for older in range(version, FORMAT_VERSION):
        _UPGRADES[older](fields)
    fields["version"] = Raw(msgspec.msgpack.encode(FORMAT_VERSION))
    return msgspec.msgpack.encode(fields)


def _from_format_1(fields: Fields) -> None:
    stated = msgspec.msgpack.decode(fields.get("opset", Raw()), type=str)
    if stated != schema_hash(1):
        raise GraphError(
            f"the OP-DAG has format version 1 and opset {stated[:32]!r}, known is {schema_hash(1)!r}: "
            "capture the model again"
        )
    fields["opset"] = Raw(msgspec.msgpack.encode(1))


_UPGRADES: dict[int, Callable[[Fields], None]] = {1: _from_format_1}


FORMAT_VERSION = 2
"""The format of a document without buckets, which older versions can read, too."""
MAXIMUM_BYTES = 64 * 2**20
MAXIMUM_CONSTANT_BYTES = 16 * 2**20
MAXIMUM_ELEMENTS = 2**31
MAXIMUM_BATCH = 2**20

Document = TypeVar("Document", Graph, Segment)


def dump(document: Graph | Segment) -> bytes:
    """The graph or segment as msgpack."""
    if document.buckets:
        return msgspec.msgpack.encode(document)
    fields = msgspec.structs.asdict(document)
    del fields["buckets"]
    return msgspec.msgpack.encode(fields)


def load_graph(data: bytes, batch: int = 1) -> Graph:
    """Read and validate a graph that will run on microbatches of `batch` samples.

    Raises
    ------
    GraphError
        The graph breaks a rule of the format, the opset or the limits; the message names the first one.
    """
    graph = _decode(data, Graph)
    _check_buckets(graph, batch)
    for one in in_buckets(graph):
        _check_graph(one, batch)
    return graph


def _check_buckets(document: Graph | Segment, batch: int) -> None:
    require_buckets(document, batch)
    constants = [one for bucket in document.buckets for one in bucket.constants.values()]
    if sum(len(constant.data) for constant in constants) > MAXIMUM_CONSTANT_BYTES:
        raise GraphError(
            f"constants that depend on the length take more than {MAXIMUM_CONSTANT_BYTES} bytes: give Pad"
            " fewer lengths"
        )


def _check_graph(graph: Graph, batch: int) -> None:
    types = dict(enumerate(graph.values))
    defined = _check_values(types, graph.inputs, (), graph.nodes, batch, graph.opset)
    _check_defined([graph.loss, *graph.mutations.values()], defined, "the loss or a mutation")
    _check_names(graph.inputs, graph.constants, graph.mutations, types)
    _check_loss(types[graph.loss])
    _check_defined(graph.metric_values(), defined, "a metric")
    _check_metrics(types, graph.metric_values())
    state = {entry.name for entry in graph.inputs if entry.kind in ("parameter", "buffer")}
    if any(name not in state or alias in state for alias, name in graph.ties.items()):
        raise GraphError("a tie must map another name to a parameter or buffer of the graph")


def load_segment(data: bytes, batch: int = 1) -> Segment:
    """Read and validate one segment; see `load_graph`."""
    segment = _decode(data, Segment)
    _check_buckets(segment, batch)
    for one in in_buckets(segment):
        _check_segment(one, batch)
    return segment


def _check_segment(segment: Segment, batch: int) -> None:
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
    _check_defined(segment.metrics, defined, "a metric")
    _check_metrics(segment.values, segment.metrics)
    if not set(segment.differentiable) <= set(segment.receives) | set(segment.sends):
        raise GraphError("a gradient crosses the segment's border where no value does")
    if any(segment.values[value].dtype not in FLOATING for value in segment.differentiable):
        raise GraphError("a value that is not floating point has no gradient")


def _decode(data: bytes, kind: type[Document]) -> Document:
    if len(data) > MAXIMUM_BYTES:
        raise GraphError(f"an OP-DAG of {len(data)} bytes is over the limit of {MAXIMUM_BYTES}")
    try:
        document = msgspec.msgpack.decode(upgraded(data), type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        quoted = printable(str(error)[:200])  # parts of the document are untrusted
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


def _check_metrics(types: Mapping[int, ValueType], values: Iterable[int]) -> None:
    for found in (types[value] for value in values):
        if found.shape or found.dtype != "float32":
            raise GraphError(
                f"a metric must be a float32 scalar, found {found.dtype} with {len(found.shape)} dimensions"
            )


def _check_size(number: int, value_type: ValueType, batch: int) -> None:
    if any(isinstance(d, BatchSize) and d.factor < 0 for d in value_type.shape):
        raise GraphError(f"value {number} would shrink with the batch")
    elements = 1
    for size in value_type.shape_at(batch):
        elements *= max(size, 1)  # strides are limited even for empty tensors
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
