"""Which values take memory of their own: most of a graph's nodes only look at another value differently.

What is said here holds for PyTorch's kernels on contiguous inputs. Where an op may or may not copy, it is
taken to copy: an estimate that is too high refuses a plan, one that is too low ends a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from farflung.opdag.graph import Node
from farflung.opdag.opset import lookup

_MAY_COPY = frozenset({"aten.reshape.default", "aten.flatten.using_ints"})
_KEEP_ORDER = frozenset(
    {
        "aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims",
        "aten.detach.default",
    }
)  # fmt: skip
_IN_ORDER = frozenset({"product", "creation"})  # groups whose results are contiguous whatever they read


@dataclass
class Storage:
    """Memory of what nodes make.

    Parameters
    ----------
    shared
        Values that share the memory of what they are made from.
    copied
        Values that are copies because elements lie in another order than they are read, with the position of
        the last node that changed the order. If that ran elsewhere and its result came over a link, there is
        no copy.
    """

    shared: set[int] = field(default_factory=set)
    copied: dict[int, int] = field(default_factory=dict)


def storage_of(nodes: Iterable[Node]) -> Storage:
    """Of all values that `nodes` make, in their order; what they do not make is taken to be contiguous."""
    found = Storage()
    permuted: dict[int, int] = {}  # value -> position of the last node that changed the order
    for at, node in enumerate(nodes):
        group = lookup(node.op).group
        by = max((permuted[value] for value in node.reads() if value in permuted), default=None)
        if group == "view" and (node.op not in _MAY_COPY or by is None):
            found.shared.update(node.writes())
        elif node.op in _MAY_COPY and by is not None:
            found.copied.update(dict.fromkeys(node.writes(), by))
            continue
        if group == "attention" or (group == "view" and node.op not in _MAY_COPY | _KEEP_ORDER):
            permuted.update(dict.fromkeys(node.writes(), at))
        elif by is not None and group not in _IN_ORDER:
            permuted.update(dict.fromkeys(node.writes(), by))
    return found
