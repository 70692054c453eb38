"""Ops that draw: other numbers on each framework, all of one distribution, and the same ones again."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from benchmarks.op_samples.one_segment import Layout, run
from torch import Tensor

from farflung.opdag.graph import Argument, DType, Node, Ref
from farflung.runtime.backend import AnyBackend
from farflung.runtime.frameworks import COMPUTING, backend_called

COUNT = 20_000
FIRST, SECOND = 4, 9
"""Numbers of nodes, which seed what they draw."""


@cache
def backend(name: str) -> AnyBackend:
    return backend_called(name)


def drawn(
    name: str, op: str, arguments: dict[str, Argument], given: Tensor, like: list[Tensor], node: int = FIRST
) -> tuple[list[Tensor], Tensor | None]:
    """What a random node makes of value 0, and value 0's gradient for gradients of one."""
    layout = Layout()
    layout.given[layout.add(given, 0)] = given
    for tensor in like:
        layout.expected[layout.add(tensor, 0)] = tensor
    layout.nodes.append(Node(node, op, arguments, list(layout.expected)))
    ones = {n: torch.ones_like(t) for n, t in layout.expected.items() if t.requires_grad}
    made, sent = run(backend(name), layout, ones)
    return [made[number] for number in layout.expected], sent.get(0)


def vector(fill: float = 1.0) -> Tensor:
    return torch.full((COUNT,), fill, requires_grad=True)


DISTRIBUTIONS = {
    "aten.rand.default": ({"size": [COUNT]}, 0.5, 12**-0.5),
    "aten.randn.default": ({"size": [COUNT], "dtype": DType("float32")}, 0.0, 1.0),
    "aten.rand_like.default": ({"self": Ref(0)}, 0.5, 12**-0.5),
    "aten.randn_like.default": ({"self": Ref(0)}, 0.0, 1.0),
    "aten.bernoulli.p": ({"self": Ref(0), "p": 0.3}, 0.3, 0.21**0.5),
    "aten.exponential.default": ({"self": Ref(0), "lambd": 2.0}, 0.5, 0.5),
}
"""Arguments, mean and standard deviation."""


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("op", DISTRIBUTIONS)
def test_draws_are_of_their_distribution_and_come_again(op: str, name: str) -> None:
    arguments, mean, deviation = DISTRIBUTIONS[op]
    like = [torch.zeros(COUNT)]
    (first,), _ = drawn(name, op, arguments, vector(), like)
    (again,), _ = drawn(name, op, arguments, vector(), like)
    (other,), _ = drawn(name, op, arguments, vector(), like, SECOND)
    assert first.dtype == torch.float32 and torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.mean()) == pytest.approx(mean, abs=5 * deviation / COUNT**0.5)
    assert float(first.std()) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_dropout_drops_and_scales_and_its_gradient_does_the_same(name: str, rate: float) -> None:
    arguments = {"input": Ref(0), "p": rate, "train": True}
    like = [vector(), torch.ones(COUNT, dtype=torch.bool)]
    (made, mask), gradient = drawn(name, "aten.native_dropout.default", arguments, vector(2.0), like)
    assert gradient is not None
    scale = 0.0 if rate == 1.0 else 1 / (1 - rate)
    torch.testing.assert_close(made, 2.0 * scale * mask)
    torch.testing.assert_close(gradient, scale * mask)
    assert float(mask.float().mean()) == pytest.approx(1 - rate, abs=0.02)


@pytest.mark.parametrize("name", COMPUTING)
def test_dropout_that_is_not_training_is_the_identity(name: str) -> None:
    arguments = {"input": Ref(0), "p": 0.5, "train": False}
    like = [vector(), torch.ones(COUNT, dtype=torch.bool)]
    (made, mask), gradient = drawn(name, "aten.native_dropout.default", arguments, vector(2.0), like)
    assert gradient is not None and mask.all()
    assert torch.equal(made, torch.full((COUNT,), 2.0)) and torch.equal(gradient, torch.ones(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTING)
def test_attention_drops_some_of_what_it_looks_at(name: str) -> None:
    """Values of one are the sum of what was kept: one on average, and not the same at every place."""
    given = torch.ones(8, 4, 16, 8, requires_grad=True)
    arguments = {"query": Ref(0), "key": Ref(0), "value": Ref(0), "dropout_p": 0.5}
    op = "aten.scaled_dot_product_attention.default"
    (made,), gradient = drawn(name, op, arguments, given, [given])
    (again,), _ = drawn(name, op, arguments, given, [given])
    assert gradient is not None and torch.equal(made, again)
    assert float(made.mean()) == pytest.approx(1.0, abs=0.05)
    assert float(made.std()) > 0.1


@pytest.mark.parametrize("name", COMPUTING)
def test_each_element_may_be_a_probability_of_its_own(name: str) -> None:
    chances = torch.full((COUNT,), 0.25, requires_grad=True)
    (made,), _ = drawn(name, "aten.bernoulli.default", {"self": Ref(0)}, chances, [torch.zeros(COUNT)])
    (again,), _ = drawn(name, "aten.bernoulli.default", {"self": Ref(0)}, chances, [torch.zeros(COUNT)])
    assert torch.equal(made, again) and set(made.tolist()) == {0.0, 1.0}
    assert float(made.mean()) == pytest.approx(0.25, abs=0.02)
