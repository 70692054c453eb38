from __future__ import annotations

import math

import msgspec
import pytest
import torch
from benchmarks.zoo import CASES, Case, case
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from torch import Tensor, nn

from farflung.opdag.capture.capture import LossModule
from farflung.opdag.graph import Graph, Node, Ref
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import (
    CheckReport,
    Comparison,
    compare,
    gradient_difference,
    parameter_difference,
    received,
)
from farflung.runtime.training import Training

torch.set_num_threads(1)
TRAINING = Training(3, 2, 2, SGD(lr=0.01), seed=3, validation_microbatches=1)


def report(entry: Case, graph: Graph, module: nn.Module, segments: int = 2) -> CheckReport:
    job = planned(graph, TRAINING, segments)

    def loss_of(eager: nn.Module):  # type: ignore[no-untyped-def]
        wrapper = LossModule(eager, None)
        return lambda batch: wrapper(dict(batch))

    programs = received(job.programs, 2)
    comparison = Comparison(module, loss_of, graph, job.plan, programs, TRAINING)
    steps = [microbatches(entry, 2, 2, step) for step in range(2)]
    return compare(comparison, steps, job.cut_bytes, segments)


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_right_models_pass(entry: Case) -> None:
    module, graph = captured(entry, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    found = report(entry, graph, module)
    assert found.ok, found
    assert (found.segments, found.steps) == (2, 2)
    assert found.cut_bytes > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def changed(graph: Graph, op: str, **arguments: object) -> Graph:
    nodes = [
        msgspec.structs.replace(node, arguments=node.arguments | arguments) if node.op == op else node
        for node in graph.nodes
    ]
    return msgspec.structs.replace(graph, nodes=nodes)


def test_a_wrong_graph_is_reported_with_its_worst_tensor() -> None:
    module, graph = captured(case("gpt"), 2)
    found = report(case("gpt"), changed(graph, "aten.layer_norm.default", eps=1e-2), module)
    assert not found.ok
    assert found.loss_difference > 1e-5
    assert found.worst_gradient in dict(module.named_parameters())


def test_a_lost_gradient_is_reported() -> None:
    """The loss is right, the gradient is not: what export does to a custom function."""
    module, graph = captured(case("chain"), 2)
    nodes = list(graph.nodes)
    at = next(number for number, node in enumerate(nodes) if node.op == "aten.tanh.default")
    (made,) = nodes[at].outputs
    fresh = len(graph.values)
    nodes[at] = msgspec.structs.replace(nodes[at], outputs=[fresh])
    nodes.insert(at + 1, Node(1000, "aten.detach.default", {"self": Ref(fresh)}, [made]))
    values = [*graph.values, graph.values[made]]
    found = report(case("chain"), msgspec.structs.replace(graph, nodes=nodes, values=values), module, 1)
    assert not found.ok
    assert math.isinf(found.worst_gradient_difference)


def test_a_nan_on_any_step_is_not_ok() -> None:
    module, graph = captured(case("chain"), 2)
    job = planned(graph, TRAINING, 1)
    comparison = Comparison(module, lambda m: lambda b: m(**b), graph, job.plan, job.segments, TRAINING)
    steps = [microbatches(case("chain"), 2, 2, step) for step in range(2)]
    steps[1][0]["y"] = torch.full_like(steps[1][0]["y"], math.nan)
    found = compare(comparison, steps, 0, 1)
    assert not found.ok
    assert math.isinf(found.loss_difference)


def test_differences_by_their_measure() -> None:
    """DESIGN, "Differences": relative to the tensor, but never to less than the floor."""
    theirs = {"large": torch.tensor([4.0, -8.0]), "tiny": torch.tensor([1e-9])}
    ours = {"large": torch.tensor([4.0, -8.4]), "tiny": torch.tensor([2e-9])}
    assert gradient_difference(ours, theirs) == (pytest.approx(0.05, rel=1e-5), "large")
    assert parameter_difference({"p": torch.tensor([1e-4])}, {"p": torch.zeros(1)})[0] == pytest.approx(0.1)
    assert gradient_difference({}, theirs) == (math.inf, "large")
    assert gradient_difference(theirs, {}) == (math.inf, "large")
    assert gradient_difference(theirs, theirs) == (0.0, "")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_nan_is_the_worst_whatever_comes_after_it(order: tuple[str, str]) -> None:
    theirs = {name: torch.ones(1) for name in order}
    ours: dict[str, Tensor] = {"a": torch.tensor([math.nan]), "b": torch.tensor([2.0])}
    assert gradient_difference(ours, theirs) == (math.inf, "a")


def test_masks_and_infinities_compare() -> None:
    mask, least = torch.tensor([True, False]), torch.tensor([-math.inf, 0.0])
    state = {"mask": mask, "least": least}
    assert parameter_difference({name: t.clone() for name, t in state.items()}, state) == (0.0, "")
    assert parameter_difference({"mask": ~mask, "least": least}, state) == (1.0, "mask")
