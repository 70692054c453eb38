"""Where a graph may be cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.opdag.graph import Graph


def legal_positions(graph: Graph) -> NDArray[np.bool_]:
    """Whether the graph may be cut at each position, [nodes + 1].

    A cut may not part the uses of a mutated buffer: its new value belongs to one segment.
    """
    legal = np.ones(len(graph.nodes) + 1, dtype=bool)
    producers = graph.producers()
    buffers = {entry.name: entry.value for entry in graph.inputs_of("buffer")}
    for name, value in graph.mutations.items():
        uses = [at for at, node in enumerate(graph.nodes) if buffers[name] in node.reads()]
        uses.append(producers.get(value, uses[0] if uses else 0))
        legal[min(uses) + 1 : max(uses) + 1] = False
    return legal
