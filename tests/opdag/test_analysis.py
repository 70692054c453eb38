"""A later use of a parameter moves behind the first where only static values go in; nothing else changes."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.random_graphs import random_graph
from torch import Tensor, nn

from farflung.opdag.analysis import uses_together
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph


def uses(graph: Graph, name: str) -> list[int]:
    """Positions of the nodes that read the parameter."""
    (value,) = [entry.value for entry in graph.inputs if entry.name == name]
    return [at for at, node in enumerate(graph.nodes) if value in node.reads()]


class Twice(nn.Module):
    """A table that is read for questions, then for answers made from them or given, and for scores."""

    def __init__(self, given_answers: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 4))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.given_answers = given_answers

    def forward(self, questions: Tensor, answers: Tensor) -> Tensor:
        x = torch.tanh(self.first(F.embedding(questions, self.table)))
        shifted = F.pad(answers[:, :-1], (1, 0)) if self.given_answers else x.argmax(-1).clamp(max=6)
        y = self.second(F.embedding(shifted, self.table)) + x
        return F.cross_entropy(F.linear(y, self.table).flatten(0, 1), answers.flatten())


def captured(given_answers: bool) -> Graph:
    batch = {name: torch.randint(0, 7, (2, 5)) for name in ("questions", "answers")}
    return capture(Twice(given_answers), batch).graph


def test_a_lookup_of_inputs_moves_to_the_first_with_what_it_needs() -> None:
    graph = captured(given_answers=True)
    first, second, last = uses(graph, "table")
    between = {node.op for node in graph.nodes[first + 1 : second]}
    assert first == 0 and last > second + 4
    assert between <= {"aten.slice.Tensor", "aten.pad.default", "aten.constant_pad_nd.default"}


def test_a_lookup_of_what_the_model_makes_stays() -> None:
    graph = captured(given_answers=False)
    _, second, _ = uses(graph, "table")
    assert "aten.tanh.default" in {node.op for node in graph.nodes[:second]}


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_every_node_stays_behind_what_it_reads(seed: int) -> None:
    graph = random_graph(seed, steps=random.Random(seed).randint(3, 30))
    ordered = uses_together(graph)
    assert sorted(node.number for node in ordered.nodes) == sorted(node.number for node in graph.nodes)
    made = {entry.value for entry in graph.inputs}
    for node in ordered.nodes:
        assert made.issuperset(node.reads())
        made.update(node.writes())
    drawing = "aten.native_dropout.default"
    assert [n.number for n in ordered.nodes if n.op == drawing] == [
        n.number for n in graph.nodes if n.op == drawing
    ]
