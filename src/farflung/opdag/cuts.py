"""Where to cut a graph: exact dynamic programming over every position between two nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.cost import flops
from farflung.opdag.graph import Graph

NOTHING_TO_TRAIN = (
    "the loss depends on no trainable parameter: set requires_grad on those that are to be trained"
)


@dataclass(frozen=True)
class CutCosts:
    """Costs along a graph's topological order, for one microbatch.

    `flops[n]` of each node's forward pass; `crossing[n + 1]` bytes that cross a cut before position p, both
    directions; `legal[n + 1]` where a cut may be; `parameters[n]` parameters first read by a node.
    """

    flops: NDArray[np.float64]
    crossing: NDArray[np.float64]
    legal: NDArray[np.bool_]
    parameters: NDArray[np.int64]

    def keeping_together(self, spans: Iterable[tuple[int, int]]) -> CutCosts:
        """The same costs with no cut after the first and up to the last position of any span."""
        legal = self.legal.copy()
        for first, last in spans:
            legal[first + 1 : last + 1] = False
        return replace(self, legal=legal)

    def rotated(self, start: int) -> CutCosts:
        """The same costs read from `start` round to `start`, with no cut in the part that moved to the end.

        A worker that holds both ends of the graph (tied embedding and head) is then one contiguous range.
        """
        order = np.roll(np.arange(len(self.flops)), -start)
        kept = len(self.flops) - start
        legal = np.zeros(len(self.flops) + 1, dtype=bool)
        legal[:kept] = self.legal[start:-1]
        legal[[0, -1]] = True
        crossing = np.concatenate([self.crossing[start:-1], self.crossing[: start + 1]])
        return CutCosts(self.flops[order], crossing, legal, self.parameters[order])


def cut_costs(graph: Graph, batch: int) -> CutCosts:
    """Costs of `graph` on microbatches of `batch` samples.

    Values that depend on no parameter and no random number cross nothing: each segment recomputes them.
    """
    if not any(entry.trainable for entry in graph.inputs):
        raise PlanError(NOTHING_TO_TRAIN)
    count = len(graph.nodes)
    static = static_values(graph)
    work = np.array([flops(node, graph.values, batch) for node in graph.nodes], dtype=np.float64)
    work[[all(v in static for v in node.writes()) for node in graph.nodes]] = 0.0
    unread = {entry.value for entry in graph.inputs if entry.kind == "parameter"}
    parameters = np.zeros(count, dtype=np.int64)
    for at, node in enumerate(graph.nodes):
        first_reads = unread & set(node.reads())
        parameters[at] = len(first_reads)
        unread -= first_reads
    return CutCosts(work, _crossing(graph, batch, static), legal_positions(graph), parameters)


def _crossing(graph: Graph, batch: int, static: set[int]) -> NDArray[np.float64]:
    change = np.zeros(len(graph.nodes) + 2)
    gradients = differentiable_values(graph)
    last_read = {v: at for at, node in enumerate(graph.nodes) for v in node.reads()}
    for value, made in graph.producers().items():
        last = last_read.get(value, made)
        if value in static or last <= made:
            continue
        size = graph.values[value].bytes(batch) * (2 if value in gradients else 1)
        change[made + 1] += size
        change[last + 1] -= size
    return np.cumsum(change)[: len(graph.nodes) + 1]


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


def balanced_cuts(costs: CutCosts, segments: int, slack: float = 0.1) -> list[int]:
    """Positions of the `segments` - 1 cuts: least bytes among the cuts that balance the work.

    First the smallest possible maximum of FLOPs per segment, then, with every segment allowed `slack` above
    it, the fewest crossing bytes in all. Every segment reads at least one parameter of its own.

    Raises
    ------
    PlanError
        The graph has no such cuts, with the largest number of segments that it has.
    """
    total = np.concatenate([[0.0], np.cumsum(costs.flops)])
    owned = np.concatenate([[0], np.cumsum(costs.parameters)])
    _require_possible(costs, segments, owned)
    bottleneck = _best(costs, segments, total, owned, None)[0]
    return _best(costs, segments, total, owned, bottleneck * (1 + slack) + 1)[1]


def _require_possible(costs: CutCosts, segments: int, owned: NDArray[np.int64]) -> None:
    if not owned[-1]:
        raise PlanError(NOTHING_TO_TRAIN)
    most, start = 1, 0
    for position in np.flatnonzero(costs.legal[:-1])[1:]:  # cutting as early as possible leaves most to cut
        if owned[start] < owned[position] < owned[-1]:
            most, start = most + 1, position
    if segments > most:
        raise PlanError(
            f"the model can be cut into at most {most} segments, {segments} were asked for: "
            "use fewer workers (--workers, --local or --segments)"
        )


def _best(
    costs: CutCosts,
    segments: int,
    total: NDArray[np.float64],
    owned: NDArray[np.int64],
    limit: float | None,
) -> tuple[float, list[int]]:
    """Without `limit` the least maximum of work; with it the least sum of crossing bytes under it."""
    count = len(costs.flops)
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    choices: list[NDArray[np.int64]] = []
    for index in range(segments):
        following = np.full(count + 1, np.inf)
        choice = np.zeros(count + 1, dtype=np.int64)
        stops = [count] if index == segments - 1 else np.flatnonzero(costs.legal[:-1])[1:]
        for stop in stops:
            work = total[stop] - total[:stop]
            if limit is None:
                score = np.maximum(best[:stop], work)
            else:
                score = np.where(work <= limit, best[:stop] + costs.crossing[:stop], np.inf)
            score = np.where(owned[stop] > owned[:stop], score, np.inf)
            at = int(np.argmin(score))
            following[stop], choice[stop] = score[at], at
        best = following
        choices.append(choice)
    positions = [count]
    for choice in reversed(choices):
        positions.append(int(choice[positions[-1]]))
    return float(best[count]), positions[-2:0:-1]
