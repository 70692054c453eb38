from __future__ import annotations

import random

import pytest
import torch
from benchmarks.zoo import CASES, Case, case
from benchmarks.zoo.batches import WIDTH
from benchmarks.zoo.side_by_side import captured
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.random_graphs import random_graph
from torch import Tensor, nn

from farflung.opdag import opset, wire
from farflung.opdag.analysis import differentiable_values, static_values
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition, legal_positions
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.verify import verify_segment

BATCH = 2


def random_cuts(graph: Graph, draw: random.Random) -> list[int]:
    legal = [at for at, ok in enumerate(legal_positions(graph)) if ok and 0 < at < len(graph.nodes)]
    return sorted(draw.sample(legal, min(len(legal), draw.randint(0, 6))))


def require_sound(graph: Graph, cuts: list[int]) -> None:
    partition = Partition(graph, cuts, BATCH)
    segments = [wire.load_segment(wire.dump(s), BATCH) for s in partition.segments()]
    assert [segment.number for segment in segments] == list(range(len(cuts) + 1))
    for segment in segments:
        verify_segment(segment, BATCH)
    require_one_sender(segments, partition.sources())
    require_every_node_once(graph, segments)
    require_every_result(graph, segments)


def require_one_sender(segments: list[Segment], sources: dict[int, int]) -> None:
    """Values come from one earlier segment that makes them; so segments are convex and run in order."""
    for segment in segments:
        for value in segment.receives:
            senders = [s.number for s in segments if value in s.sends]
            assert senders == [sources[value]]
            assert senders[0] < segment.number
        for value in segment.sends:
            assert any(value in other.receives for other in segments)


def require_every_node_once(graph: Graph, segments: list[Segment]) -> None:
    """Only static nodes run twice: what depends on parameters or random numbers is computed once."""
    static = static_values(graph)
    runs = [node.number for segment in segments for node in segment.nodes]
    for node in graph.nodes:
        if not all(value in static for value in node.writes()):
            assert runs.count(node.number) == 1
        elif runs.count(node.number) > 1:
            assert not opset.lookup(node.op).draws(node)


def require_every_result(graph: Graph, segments: list[Segment]) -> None:
    owned = [name for segment in segments for name in segment.owned]
    parameters = {entry.name for entry in graph.inputs_of("parameter")}
    read = {value for node in graph.nodes for value in node.reads()}
    used = {entry.name for entry in graph.inputs_of("parameter") if entry.value in read}
    assert [segment.loss for segment in segments if segment.loss is not None] == [graph.loss]
    assert sorted(name for name in owned if name in parameters) == sorted(used)
    mutated = [name for segment in segments for name in segment.mutations]
    assert sorted(mutated) == sorted(graph.mutations)
    gradients = differentiable_values(graph)
    for segment in segments:
        crossing = {*segment.receives, *segment.sends}
        assert set(segment.differentiable) == crossing & gradients


@settings(max_examples=80)
@given(seed=st.integers(0, 10**6))
def test_random_graphs_at_random_cuts(seed: int) -> None:
    draw = random.Random(seed)
    graph = random_graph(seed, steps=draw.randint(3, 30))
    require_sound(graph, random_cuts(graph, draw))


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_models_at_random_cuts(entry: Case) -> None:
    draw = random.Random(4)
    _, graph = captured(entry, BATCH)
    for _ in range(3):
        require_sound(graph, random_cuts(graph, draw))


class Weighted(nn.Module):
    """A weight made from a mask, and the mask's count, are both used at both ends."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use = use
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weight = mask.to(x.dtype) if self.use == "weight" else mask.to(x.dtype).sum()
        return (self.second(torch.tanh(self.first(x) * weight)) * weight).square().mean()


def cut_between_layers(use: str) -> tuple[Graph, list[Segment]]:
    batch = {"x": torch.randn(2, WIDTH), "mask": torch.rand(2, WIDTH) < 0.5}
    graph = capture(Weighted(use), batch).graph
    at = next(number for number, node in enumerate(graph.nodes) if node.op == "aten.tanh.default")
    return graph, Partition(graph, [at], BATCH).segments()


def test_static_values_are_recomputed() -> None:
    """The mask has one byte an element, the weight made from it four."""
    graph, (first, second) = cut_between_layers("weight")
    assert not set(second.receives) & static_values(graph)
    assert {entry.name for entry in second.inputs if entry.kind == "input"} == {"mask"}
    assert {"aten._to_copy.default"} <= {n.op for n in first.nodes} & {n.op for n in second.nodes}


def test_a_static_value_smaller_than_its_inputs_is_shipped() -> None:
    graph, (_, second) = cut_between_layers("count")
    (count,) = set(second.receives) & static_values(graph)
    assert graph.values[count].shape == []
    assert not [entry.name for entry in second.inputs if entry.kind == "input"]


def test_no_segment_sends_gpt2s_masks_and_positions() -> None:
    _, graph = captured(case("gpt2-mask"), BATCH)
    thirds = [len(graph.nodes) // 3, 2 * len(graph.nodes) // 3]
    for segment in Partition(graph, thirds, BATCH).segments():
        assert not set(segment.receives) & static_values(graph)
