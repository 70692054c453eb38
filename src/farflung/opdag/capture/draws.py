"""Which random numbers eager draws that the graph does not: functionalising drops what nothing depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx


def live_draws(graph: fx.Graph) -> list[bool]:
    """For each random node of an exported graph, in order: whether anything depends on it."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live or _changes_something(node):
            live.update((node, *node.all_input_nodes))
    return [node in live for node in graph.nodes if draws(node)]


def all_draws(numbers: Sequence[int], is_live: Sequence[bool], unused: int) -> tuple[int, ...]:
    """`numbers`, those of the graph's random nodes, with numbers from `unused` on where it has none."""
    if sum(is_live) != len(numbers):
        return tuple(numbers)
    left = iter(numbers)
    return tuple(next(left) if live else unused + at for at, live in enumerate(is_live))


def _changes_something(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def draws(node: fx.Node) -> bool:
    """Whether a call of an exported program draws random numbers: dropout that drops nothing does not."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if "dropout" in target.name():
        return bool(_argument(node, "p")) and bool(_argument(node, "train"))
    return "attention" not in target.name() or bool(_argument(node, "dropout_p"))


def _argument(node: fx.Node, name: str) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    for at, entry in enumerate(node.target._schema.arguments):
        if entry.name == name:
            given = node.args[at] if at < len(node.args) else entry.default_value
            return node.kwargs.get(name, given)
    return None
