from __future__ import annotations

from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured

from farflung.opdag.partition import legal_positions


def test_a_mutated_buffer_stays_in_one_piece() -> None:
    _, graph = captured(case("batch-norm"), 2)
    legal = legal_positions(graph)
    buffers = {e.name: e.value for e in graph.inputs_of("buffer")}
    producers = graph.producers()
    for name, value in graph.mutations.items():
        uses = [at for at, node in enumerate(graph.nodes) if buffers[name] in node.reads()]
        for at in range(min(uses) + 1, producers[value] + 1):
            assert not legal[at]
