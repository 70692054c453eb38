"""How many results an op that returns a list would make, known before any of them exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.graph import Node


def check_result_count(node: Node, shape: Sequence[int], arguments: Mapping[str, Any]) -> None:
    """Hold the results that a list op would make against those that the node states.

    `shape` is that of the tensor it takes apart, `arguments` have sizes as integers.

    Raises
    ------
    GraphError
        It would make more: a huge list must not come about before its length can be compared.
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
