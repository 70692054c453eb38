"""Uses of one parameter come together: lookups of inputs, and several passes through one module."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.random_graphs import random_graph
from torch import Tensor, nn

import farflung
from farflung.opdag.analysis import differentiable_values
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.ordering import uses_together
from farflung.opdag.postponing import postpone_growth
from farflung.planner.cutting.ties import positions_within_ties
from farflung.workload import workload_of


def uses(graph: Graph, name: str) -> list[int]:
    """Positions of the nodes that read the parameter."""
    (value,) = [entry.value for entry in graph.inputs if entry.name == name]
    return [at for at, node in enumerate(graph.nodes) if value in node.reads()]


def readers(graph: Graph, value: int) -> list[int]:
    """Numbers of the nodes that read a value, in order."""
    return [node.number for node in graph.nodes if value in node.reads()]


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
    inputs = {entry.value for entry in graph.inputs}
    for value in differentiable_values(graph) - inputs:
        assert readers(ordered, value) == readers(graph, value)
    drawing = "aten.native_dropout.default"
    assert [n.number for n in ordered.nodes if n.op == drawing] == [
        n.number for n in graph.nodes if n.op == drawing
    ]


class Towers(nn.Module):
    """Two questions through one encoder; with `dropout` one after the other, as draws keep their order."""

    def __init__(self, layers: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def encoded(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.dropout(torch.tanh(layer(x)))
        return x

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return (self.encoded(one) * self.encoded(other)).sum(-1).square().mean()


def towers(dropout: float) -> Graph:
    batch = {name: torch.randn(2, 6) for name in ("one", "other")}
    return capture(Towers(dropout=dropout), batch).graph


def test_two_passes_through_one_module_run_side_by_side() -> None:
    graph = towers(0.0)
    ends = [(uses(graph, f"layers.{n}.weight")[0], uses(graph, f"layers.{n}.weight")[-1]) for n in range(4)]
    assert all(one[1] < other[0] for one, other in pairwise(ends))
    workload = workload_of(graph, 1, 2)
    state = 2 * 6 * 4
    legal = positions_within_ties(workload)
    assert all(
        (
            workload.crossing_forward[one[1] + 1 : other[0] + 1][legal[one[1] + 1 : other[0] + 1]]
            == 2 * state
        ).any()
        for one, other in pairwise(ends)
    )


def test_passes_with_random_numbers_keep_their_order() -> None:
    graph = towers(0.5)
    assert uses(graph, "layers.1.weight")[-1] > uses(graph, "layers.3.weight")[0]


@pytest.mark.parametrize("segments", [2, 4])
def test_a_pair_of_towers_is_cut_without_a_difference(segments: int) -> None:
    torch.manual_seed(0)
    items = [{"one": torch.randn(6), "other": torch.randn(6)} for _ in range(8)]
    job = farflung.Job(
        model=Towers(), data=items, optimizer=farflung.SGD(lr=0.1), batch=8, microbatches=2, steps=2
    )
    report = farflung.check(job, segments=segments)
    assert report.ok and report.worst_gradient_difference == report.worst_parameter_difference == 0.0


class Taught(nn.Module):
    """A frozen teacher and a student, each with a table that is also its head."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Embedding(50, 6), nn.Embedding(50, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.teacher.requires_grad_(False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = torch.tanh(self.layers[1](torch.tanh(self.layers[0](self.teacher(tokens))))).detach()
        taught = F.linear(x, self.teacher.weight).softmax(-1)
        y = torch.tanh(self.layers[3](torch.tanh(self.layers[2](self.student(tokens)))))
        scores = F.linear(y, self.student.weight).log_softmax(-1)
        return F.nll_loss(scores.flatten(0, 1), targets.flatten()) - (taught * scores).sum(-1).mean()


def test_a_head_without_gradients_waits_for_its_reader_and_tables_are_read_at_the_beginning() -> None:
    graph = capture(Taught(), {name: torch.randint(50, (2, 3)) for name in ("tokens", "targets")}).graph
    (first, head), (second, own_head) = uses(graph, "teacher.weight"), uses(graph, "student.weight")
    assert second < min(uses(graph, "layers.0.weight")) and first < own_head
    assert head > max(uses(graph, "layers.3.weight"))
    workload = workload_of(graph, 1, 2)
    legal = positions_within_ties(workload, second + 1)
    assert legal[uses(graph, "layers.0.weight")[0] + 1 : uses(graph, "layers.3.weight")[0]].any()


def test_growth_stays_where_no_gradient_would_be_passed() -> None:
    graph = captured(given_answers=True)
    assert [node.number for node in postpone_growth(graph).nodes] == [node.number for node in graph.nodes]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_postponed_nodes_stay_behind_what_they_read_and_before_their_readers(seed: int) -> None:
    graph = random_graph(seed, steps=random.Random(seed).randint(3, 30))
    ordered = postpone_growth(graph)
    assert sorted(node.number for node in ordered.nodes) == sorted(node.number for node in graph.nodes)
    made = {entry.value for entry in graph.inputs}
    for node in ordered.nodes:
        assert made.issuperset(node.reads())
        made.update(node.writes())
    for value in differentiable_values(graph):
        assert readers(ordered, value) == readers(graph, value)
