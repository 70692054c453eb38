"""Check indices in a model's data, and the number of results of ops that return lists.

A token outside the vocabulary is a common mistake. Frameworks raise errors that name neither op nor index or,
in compiled code, no error at all, so both backends check indices here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farflung.errors import DataError, GraphError
from farflung.opdag import opset
from farflung.opdag.graph import Argument, Graph, Node, Ref
from farflung.opdag.segment import Segment

CLASS_LOSSES = frozenset({"aten.nll_loss_nd.default", "aten.cross_entropy_loss.default"})
IGNORED = -100
"""The class that a loss ignores by default (PyTorch's `ignore_index`)."""


class IndexRange(NamedTuple):
    """An op's indices: value `value` must hold numbers from `least` to below `limit`, or `ignored`.

    `key` is the model input they come from, `parameter` the tensor they index, if the segment knows them.
    """

    node: int
    op: str
    value: int
    least: int
    limit: int
    ignored: int | None = None
    key: str | None = None
    parameter: str | None = None

    @property
    def taker(self) -> str:
        """The op that takes the indices, for messages."""
        if self.parameter is not None:
            module = self.parameter.rpartition(".")[0]
            return f"module {module[:60]!r}" if module else f"parameter {self.parameter[:60]!r}"
        if self.op in CLASS_LOSSES:
            return f"the loss ({self.op.split('.')[1]})"
        return f"{self.op} (node {self.node})"


def index_ranges(segment: Segment | Graph, batch: int) -> list[IndexRange]:
    """The indices that the nodes of a segment or graph take, in their order, with `batch` samples a time."""
    names = {entry.value: entry.name for entry in segment.inputs if entry.kind == "parameter"}
    keys = _keys(segment)
    return [
        found._replace(key=keys.get(found.value), parameter=_chosen_from(node, names))
        for node in segment.nodes
        for found in _of_node(node, segment, batch)
    ]


def require_in_range(expected: IndexRange, least: int, greatest: int, microbatch: int) -> None:
    """Check the smallest and largest index of a microbatch.

    Raises
    ------
    DataError
        One of them is out of range.
    """
    if words := out_of_range(expected, least, greatest):
        raise DataError(f"microbatch {microbatch + 1} contains {words}")


def out_of_range(expected: IndexRange, least: int, greatest: int) -> str:
    """Which of the smallest and largest index is out of range, and what is taken there; empty if none is."""
    if least >= expected.least and greatest < expected.limit:
        return ""
    found = least if least < expected.least else greatest
    holder = "" if expected.key is None else f" in {expected.key[:60]!r}"
    return (
        f"index {found}{holder} where {expected.taker} takes {expected.least} to {expected.limit - 1}:"
        " the data has a token or class that the model lacks"
    )


def _keys(segment: Segment | Graph) -> dict[int, str]:
    """For integer values that derive from a single model input in the segment, that input's name."""
    found = {entry.value: entry.name for entry in segment.inputs if entry.kind == "input"}
    for node in segment.nodes:
        names = {found.get(value) for value in node.reads()}
        name = names.pop() if len(names) == 1 else None
        if name is not None:
            found.update(dict.fromkeys(node.writes(), name))
    return found


def _chosen_from(node: Node, names: Mapping[int, str]) -> str | None:
    """The parameter that the node indexes."""
    for name in ("weight", "self"):
        argument = node.arguments.get(name)
        if isinstance(argument, Ref) and argument.id in names and node.op not in CLASS_LOSSES:
            return names[argument.id]
    return None


def _of_node(node: Node, segment: Segment | Graph, batch: int) -> list[IndexRange]:
    def shape(name: str) -> tuple[int, ...]:
        argument = node.arguments[name]
        assert isinstance(argument, Ref)
        return segment.values[argument.id].shape_at(batch)

    def one(name: str, limit: int, ignored: int | None = None) -> list[IndexRange]:
        return _range(node, node.arguments[name], 0, limit, segment, batch, ignored)

    match node.op:
        case "aten.embedding.default" | "farflung.quantized_embedding.default":
            return one("indices", shape("weight")[0])
        case (
            "aten.index_select.default"
            | "aten.gather.default"
            | "aten.scatter.src"
            | "aten.scatter.value"
            | "aten.scatter_add.default"
            | "aten.scatter_reduce.two"
        ):
            sizes, dim = shape("self") or (1,), node.arguments["dim"]
            assert isinstance(dim, int)
            return one("index", sizes[dim])
        case "aten.index.Tensor" | "aten.index_put.default":
            indices = node.arguments["indices"]
            assert isinstance(indices, list)
            pairs = zip(indices, shape("self"), strict=False)
            return [r for i, size in pairs for r in _range(node, i, -size, size, segment, batch, None)]
        case op if op in CLASS_LOSSES:
            scores, ignored = shape("self"), node.arguments.get("ignore_index", IGNORED)
            assert isinstance(ignored, int)
            return one("target", scores[0 if len(scores) == 1 else 1], ignored)
    return []


def _range(
    node: Node,
    argument: Argument,
    least: int,
    limit: int,
    segment: Segment | Graph,
    batch: int,
    ignored: int | None,
) -> list[IndexRange]:
    """The range of an op's indices; None if they are not integers, as targets may be probabilities."""
    if not isinstance(argument, Ref):
        return []
    kind = segment.values[argument.id]
    if kind.dtype not in ("int32", "int64") or not kind.numel(batch):
        return []
    return [IndexRange(node.number, node.op, argument.id, least, limit, ignored)]


def check_result_count(node: Node, shape: Sequence[int], arguments: Mapping[str, Any]) -> None:
    """Check that a list op would return as many results as the node declares.

    `shape` is that of the tensor it splits; `arguments` contain sizes as integers.

    Raises
    ------
    GraphError
        It would return more; this is checked first, because a huge list must never be created.
    """
    where = f"node {node.number} ({node.op})"
    assert opset.lookup(node.op).results == opset.MANY
    dimension = arguments.get("dim", 0)
    if not -len(shape) <= dimension < len(shape):
        raise GraphError(f"{where} splits dimension {dimension} of {len(shape)}")
    extent = shape[dimension]
    if "split_size" in arguments:
        count = -(-extent // max(1, arguments["split_size"]))
    elif "split_sizes" in arguments:
        count = len(arguments["split_sizes"])
    elif "chunks" in arguments:
        count = min(arguments["chunks"], extent) if extent else arguments["chunks"]
    else:
        count = extent
    if count > len(node.outputs):
        raise GraphError(f"{where} would make {count} results, the graph states {len(node.outputs)}")
