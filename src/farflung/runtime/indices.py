"""Indices that a model's data holds: which ops take what, and what is said of one that is out of range.

A token that a vocabulary lacks is a common mistake in data. Frameworks raise errors that name neither op nor
index, or (what is compiled) none at all, so both backends ask here.
"""

from __future__ import annotations

from typing import NamedTuple

from farflung.errors import JobError
from farflung.opdag.graph import Argument, Node, Ref
from farflung.opdag.segment import Segment

IGNORED = -100
"""The class that a loss passes over where nothing else is said (PyTorch's `ignore_index`)."""


class IndexRange(NamedTuple):
    """An op's indices: value `value` must hold numbers from `least` to below `limit`, or `ignored`."""

    node: int
    op: str
    value: int
    least: int
    limit: int
    ignored: int | None = None


def index_ranges(segment: Segment, batch: int) -> list[IndexRange]:
    """What the nodes of a segment, in their order, take as indices, in microbatches of `batch` samples."""
    return [found for node in segment.nodes for found in _of_node(node, segment, batch)]


def require_in_range(expected: IndexRange, least: int, greatest: int, microbatch: int) -> None:
    """Hold the least and the greatest index that were found against what was expected.

    Raises
    ------
    JobError
        One of them is out of range.
    """
    if least >= expected.least and greatest < expected.limit:
        return
    found = least if least < expected.least else greatest
    raise JobError(
        f"microbatch {microbatch + 1} holds index {found} where {expected.op} (node {expected.node}) takes "
        f"{expected.least} to {expected.limit - 1}: the data has a token or class that the model has not"
    )


def _of_node(node: Node, segment: Segment, batch: int) -> list[IndexRange]:
    def shape(name: str) -> tuple[int, ...]:
        argument = node.arguments[name]
        assert isinstance(argument, Ref)
        return segment.values[argument.id].shape_at(batch)

    def one(name: str, limit: int, ignored: int | None = None) -> list[IndexRange]:
        return _range(node, node.arguments[name], 0, limit, segment, batch, ignored)

    match node.op:
        case "aten.embedding.default":
            return one("indices", shape("weight")[0])
        case "aten.index_select.default" | "aten.gather.default":
            sizes, dim = shape("self") or (1,), node.arguments["dim"]
            assert isinstance(dim, int)
            return one("index", sizes[dim])
        case "aten.index.Tensor":
            indices = node.arguments["indices"]
            assert isinstance(indices, list)
            pairs = zip(indices, shape("self"), strict=False)
            return [r for i, size in pairs for r in _range(node, i, -size, size, segment, batch, None)]
        case "aten.nll_loss_nd.default" | "aten.cross_entropy_loss.default":
            scores, ignored = shape("self"), node.arguments.get("ignore_index", IGNORED)
            assert isinstance(ignored, int)
            return one("target", scores[0 if len(scores) == 1 else 1], ignored)
    return []


def _range(
    node: Node,
    argument: Argument,
    least: int,
    limit: int,
    segment: Segment,
    batch: int,
    ignored: int | None,
) -> list[IndexRange]:
    """None where there are no integers: targets may be probabilities."""
    if not isinstance(argument, Ref):
        return []
    kind = segment.values[argument.id]
    if kind.dtype not in ("int32", "int64") or not kind.numel(batch):
        return []
    return [IndexRange(node.number, node.op, argument.id, least, limit, ignored)]
