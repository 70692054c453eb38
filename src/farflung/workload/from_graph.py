"""Compute the workload of an OP-DAG from shapes and formulas, without running it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.cost import flops
from farflung.opdag.form import Form
from farflung.opdag.frozen import frozen_activations
from farflung.opdag.graph import ITEM_BYTES, Graph, Input
from farflung.opdag.partition import legal_positions
from farflung.opdag.saved_tensors import saved_by
from farflung.opdag.storage import storage_of
from farflung.workload.arrays import Floats, Gap
from farflung.workload.tape import tape_of
from farflung.workload.update_memory import UpdateMemory, UpdateMemoryOf, two_moments
from farflung.workload.workload import Feed, Live, Repeat, Span, Workload


def workload_of(
    graph: Graph,
    microbatches: int,
    microbatch_size: int,
    name: str = "",
    updates: UpdateMemoryOf = two_moments,
) -> Workload:
    """The costs of `graph` in microbatches of `microbatch_size` samples.

    `updates` says what the optimizer keeps of each trained parameter, by default as AdamW.
    """
    return _Costs(graph, microbatch_size).workload(name, microbatches, updates)


class _Costs:
    """The sizes and readers of a graph's values at one microbatch size."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self._graph = graph
        self._batch = batch
        self._sizes = [value_type.bytes(batch) for value_type in graph.values]
        self._static = static_values(graph)
        self._is_static = [all(v in self._static for v in node.writes()) for node in graph.nodes]
        self._results = {graph.loss, *graph.metric_values(), *graph.mutations.values()}
        self._readers = self._find_readers()
        self._storage = storage_of(graph.nodes, graph.values, batch)
        self._gradients = differentiable_values(graph)
        trained = {entry.value for entry in graph.inputs if entry.trainable}
        self._tape = tape_of(graph.nodes, graph.values, batch, self._storage, self._gradients, trained)

    def workload(self, name: str, microbatches: int, updates: UpdateMemoryOf) -> Workload:
        graph, sizes = self._graph, self._sizes
        held = [entry for entry in graph.inputs if entry.kind != "input" and self._readers.get(entry.value)]
        parameters = [entry for entry in held if entry.kind == "parameter"]
        updated = [(e.value, self._update(e, updates)) for e in held if e.trainable]
        work = [
            0 if still else flops(node, graph.values, self._batch)
            for node, still in zip(graph.nodes, self._is_static, strict=True)
        ]
        spans = self._spans()
        return Workload(
            name=name,
            microbatches=microbatches,
            microbatch_size=self._batch,
            flops=np.array(work, dtype=np.float64),
            legal=legal_positions(graph),
            parameters=self._at_first_reader((e.value, 1) for e in parameters).astype(np.int64),
            parameter_bytes=self._at_first_reader((e.value, sizes[e.value]) for e in parameters),
            trainable_bytes=self._at_first_reader((e.value, sizes[e.value]) for e in held if e.trainable),
            state_bytes=self._at_first_reader((e.value, sizes[e.value]) for e in held),
            tape_bytes=self._tape_bytes(),
            live=self._live(),
            spans=spans,
            feeds=tuple(
                Feed(entry.value, tuple(self._readers[entry.value]), sizes[entry.value])
                for entry in graph.inputs_of("input")
                if self._readers.get(entry.value)
            ),
            ties=tuple(tuple(self._readers[e.value]) for e in parameters if len(self._readers[e.value]) > 1),
            repeats=tuple(self._repeats(held)),
            unkept=(*self._unkept(spans), *self._kept_if_shipped()),
            shipped=tuple(self._shipped()),
            kept_bytes=self._at_first_reader((value, update.kept) for value, update in updated),
            update_bytes=self._most_at_first_reader((value, update.working) for value, update in updated),
        )

    def _find_readers(self) -> dict[int, list[int]]:
        """Value -> positions of the nodes that need it, ascending.

        A static node runs where its results are needed, so its inputs are needed there. If it makes a result
        of the graph, it also runs at its own position. A buffer's new value is made where the buffer is
        stored.
        """
        graph = self._graph
        found: dict[int, set[int]] = {}
        for at in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[at]
            through = {at}
            if self._is_static[at]:
                through = {reader for value in node.writes() for reader in found.get(value, ())}
                if self._results & set(node.writes()):
                    through.add(at)
            for value in node.reads():
                found.setdefault(value, set()).update(through)
        producers = graph.producers()
        for entry in graph.inputs_of("buffer"):
            if (made := graph.mutations.get(entry.name)) in producers:
                found.setdefault(entry.value, set()).add(producers[made])
        return {value: sorted(positions) for value, positions in found.items()}

    def _needed_at(self, node: int) -> list[int]:
        """Positions at which a static node's results are needed."""
        needed = {at for value in self._graph.nodes[node].writes() for at in self._readers.get(value, ())}
        if self._results & set(self._graph.nodes[node].writes()):
            needed.add(node)
        return sorted(needed)

    def _at_first_reader(self, weights: Iterable[tuple[int, int]]) -> Floats:
        found = np.zeros(len(self._graph.nodes))
        for value, weight in weights:
            found[self._readers[value][0]] += weight
        return found

    def _most_at_first_reader(self, weights: Iterable[tuple[int, int]]) -> Floats:
        found = np.zeros(len(self._graph.nodes))
        for value, weight in weights:
            at = self._readers[value][0]
            found[at] = max(found[at], weight)
        return found

    def _update(self, entry: Input, updates: UpdateMemoryOf) -> UpdateMemory:
        kind = self._graph.values[entry.value]
        return updates(entry.name, kind.shape_at(self._batch), ITEM_BYTES[kind.dtype])

    def _tape_bytes(self) -> Floats:
        return self._recomputed() + np.where(self._is_static, 0.0, self._tape.kept)

    def _live(self) -> Live:
        tape = self._tape
        backward = tuple(self._backward_gaps())
        gaps = tuple(self._forward_gaps())
        moving = np.maximum.accumulate(np.logical_not(self._is_static))  # else all there is is static
        return Live(
            tape.forward * moving,
            tape.backward,
            np.where(self._is_static, 0.0, tape.left),
            self._recomputing(),
            self._recomputed(),
            gaps,
            backward,
        )

    def _recomputed(self) -> Floats:
        found = np.zeros(len(self._graph.nodes))
        for at, still in enumerate(self._is_static):
            if still and (needed := self._needed_at(at)):
                found[needed[0]] += self._tape.kept[at]
        return found

    def _recomputing(self) -> Floats:
        """For each node that is not static, the peak memory while its static inputs are made."""
        nodes, tape = self._graph.nodes, self._tape
        count = len(nodes)
        change, last = np.zeros(count + 1), self._last_uses()
        for value, made in self._graph.producers().items():
            if value in self._static and self._storage.root(value) == value:
                change[made] += self._sizes[value]
                if value in tape.unkept:
                    change[last[value] + 1] -= self._sizes[value]
        kernels = [saved_by(node, self._graph.values, self._batch, self._storage, set()) for node in nodes]
        found = np.zeros(count)
        for at, most in enumerate(np.cumsum(change)[:-1] + [kernel.forward_bytes for kernel in kernels]):
            if self._is_static[at]:
                for reader in self._needed_at(at):
                    found[reader] = max(found[reader], most)
        return found

    def _last_uses(self) -> dict[int, int]:
        """Root of memory -> the last node that reads or makes something there."""
        found: dict[int, int] = {}
        for at, node in enumerate(self._graph.nodes):
            found.update((self._storage.root(value), at) for value in (*node.reads(), *node.writes()))
        return found

    def _forward_gaps(self) -> Iterable[Gap]:
        """Gaps of results that are not on the tape; recomputed ones may be needed anywhere."""
        last = self._last_uses()
        for value, made in self._graph.producers().items():
            if value in self._tape.unkept and value not in self._static and last[value] > made:
                yield Gap(made, last[value], self._sizes[value])

    def _backward_gaps(self) -> Iterable[Gap]:
        """Gaps where gradients wait in memory of their own, possibly only below some node."""
        nodes, shared = self._graph.nodes, self._tape.shared_from
        made = self._graph.producers()
        passes = [not self._gradients.isdisjoint(node.writes()) for node in nodes]
        for value in self._gradients:
            readers = [at for at in self._readers.get(value, ()) if passes[at]]
            points = [made[value], *readers] if value in made else readers
            if (end := shared.get(value)) is not None:
                points = [at for at in points if at < end] + [end]
            for last, at in pairwise(points):
                yield Gap(last, at, self._sizes[value])

    def _unkept(self, spans: Iterable[Span]) -> Iterable[tuple[int, int, int]]:
        """Of what several values look at, once; an input counts where the first of them is made."""
        first: dict[int, int] = self._graph.producers()
        last: dict[int, int] = {}
        for span in spans:
            root = self._storage.root(span.value)
            if root in self._tape.unkept:
                first.setdefault(root, span.made)
                last[root] = max(last.get(root, 0), span.readers[-1])
        for root, reader in last.items():
            yield first[root], reader, self._sizes[root]

    def _kept_if_shipped(self) -> Iterable[tuple[int, int, int]]:
        """Sent values stay on the tape, like values that cross a cut."""
        for value in self._may_be_shipped():
            if self._storage.root(value) in self._tape.unkept:
                readers = self._readers[value]
                yield readers[0], readers[-1], self._sizes[self._storage.root(value)]

    def _shipped(self) -> Iterable[tuple[int, int, int]]:
        for value in self._may_be_shipped():
            yield from ((last, at, self._sizes[value]) for last, at in pairwise(self._readers[value]))

    def _may_be_shipped(self) -> Iterable[int]:
        """Static values that are sent, because the model inputs that make them are larger."""
        inputs = {entry.value: {entry.value} for entry in self._graph.inputs_of("input")}
        for at, still in enumerate(self._is_static):
            if not still:
                continue
            node = self._graph.nodes[at]
            reads = set[int]().union(*(inputs.get(value, set()) for value in node.reads()))
            for value in node.writes():
                inputs[value] = reads
                is_small = self._sizes[value] < sum(self._sizes[v] for v in reads)
                if is_small and len(self._readers.get(value, ())) > 1:
                    yield value

    def _repeats(self, held: list[Input]) -> Iterable[Repeat]:
        for entry in held:
            readers = tuple(self._readers[entry.value])
            again = self._sizes[entry.value] if entry.kind != "parameter" or entry.trainable else 0
            if len(readers) > 1:
                yield Repeat(readers, state=again)
        for at, still in enumerate(self._is_static):
            if still and len(needed := tuple(self._needed_at(at))) > 1:
                yield Repeat(needed, tape=float(self._tape.kept[at]))
        producers = self._graph.producers()
        for value, permuted_at in self._storage.copied.items():
            made = producers[value]
            moved = self._is_static[permuted_at] or self._is_static[made]
            if not moved and value not in self._tape.unkept:
                yield Repeat((permuted_at, made), tape=-self._sizes[value])
        for value, ordered_at in self._storage.spared.items():
            if self._storage.root(value) not in self._tape.unkept:
                yield Repeat((ordered_at, producers[value]), tape=self._sizes[value])

    def _spans(self) -> tuple[Span, ...]:
        graph, frozen = self._graph, frozen_activations(self._graph)
        return tuple(
            Span(
                value,
                made,
                tuple(self._readers[value]),
                self._sizes[value],
                value in self._gradients,
                Form(graph.values[value].dtype, graph.values[value].shape_at(self._batch)),
                value in frozen,
            )
            for value, made in graph.producers().items()
            if value not in self._static and self._readers.get(value)
        )
