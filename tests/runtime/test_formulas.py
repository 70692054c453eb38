"""Gradients of weights by formula have the bits that one autograd run gives them, whatever the op reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
import torch
import torch.nn.functional as F
from benchmarks.zoo import CASES, Case
from benchmarks.zoo.side_by_side import captured, placed, planned
from torch import Tensor, nn

from farflung.opdag.analysis import sides_of
from farflung.opdag.graph import Graph, Node, Ref
from farflung.opdag.partition import legal_positions
from farflung.opdag.segment import Segment
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.passes import SplitPass
from farflung.runtime.torch_backend.recomputation import RecomputingPass
from farflung.runtime.torch_backend.tensors import constant_tensor
from farflung.runtime.training import Training

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
SAMPLES, SEED = 3, 17
Apply = Callable[["Probe", Tensor], Tensor]


@dataclass(frozen=True)
class Op:
    """One use of parameters `p`, `q` of these shapes by `apply`, on rows of `shape` for each sample.

    Three ways and more from one parameter may be summed in another order: not `exact`.
    """

    name: str
    shape: tuple[int, ...]
    p: tuple[int, ...]
    apply: Apply
    q: tuple[int, ...] = (1,)
    exact: bool = True


class Probe(nn.Module):
    """A first parameter, so that what comes after receives a value, and then the op."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(op.shape))
        self.p = nn.Parameter(torch.randn(op.p))
        self.q = nn.Parameter(torch.randn(op.q))
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        made = self.op.apply(self, torch.tanh(x * self.first))
        return (torch.sin(made) * self.q.sum()).mean()


def conv(kind: Callable[..., Tensor], **options: object) -> Apply:
    return lambda m, x: kind(x, m.p, m.q, **options)


OPS = [
    Op("linear", (6,), (5, 6), lambda m, x: F.linear(x, m.p, m.q), (5,)),
    Op("linear-3d", (4, 6), (5, 6), lambda m, x: F.linear(x, m.p, m.q), (5,)),
    Op("linear-3d-no-bias", (4, 6), (5, 6), lambda m, x: F.linear(x, m.p)),
    Op("linear-4d", (2, 4, 6), (5, 6), lambda m, x: F.linear(x, m.p, m.q), (5,)),
    Op("linear-transposed", (6, 4), (5, 6), lambda m, x: F.linear(x.transpose(1, 2), m.p, m.q), (5,)),
    Op("linear-transposed-no-bias", (6, 4), (5, 6), lambda m, x: F.linear(x.transpose(1, 2), m.p)),
    Op("linear-one-output", (6,), (1, 6), lambda m, x: F.linear(x, m.p, m.q)),
    Op("linear-one-input", (1,), (5, 1), lambda m, x: F.linear(x, m.p, m.q), (5,)),
    Op("linear-one-bias-for-all", (6,), (5, 6), lambda m, x: F.linear(x, m.p, m.q)),
    Op("linear-of-a-made-weight", (6,), (6, 5), lambda m, x: F.linear(x, torch.tanh(m.p).t())),
    Op("linear-by-what-came", (6, 5), (7, 6), lambda m, x: F.linear(m.p, x[0].t())),
    Op("addmm", (6,), (6, 5), lambda m, x: torch.addmm(m.q, x, m.p), (5,)),
    Op("addmm-scaled", (6,), (6, 5), lambda m, x: torch.addmm(m.q, x, m.p, beta=0.5, alpha=2), (5,)),
    Op("mm", (6,), (6, 5), lambda m, x: x @ m.p),
    Op("mm-of-a-transposed-weight", (6,), (5, 6), lambda m, x: x @ m.p.t()),
    Op("mm-from-the-left", (4, 6), (5, 4), lambda m, x: torch.mm(m.p, x[0])),
    Op("matmul-3d", (4, 6), (6, 5), lambda m, x: torch.matmul(x, m.p)),
    Op("matmul-3d-transposed", (6, 4), (6, 5), lambda m, x: torch.matmul(x.transpose(1, 2), m.p)),
    Op("matmul-4d", (2, 4, 6), (6, 5), lambda m, x: torch.matmul(x, m.p)),
    Op("matmul-by-a-vector", (4, 6), (6,), lambda m, x: torch.matmul(x, m.p)),
    Op("matmul-of-batches", (4, 6), (6, 5), lambda m, x: torch.matmul(x, m.p.expand(x.shape[0], 6, 5))),
    Op("bmm", (3, 4, 6), (3, 6, 5), lambda m, x: torch.bmm(x[0], m.p)),
    Op("bmm-from-the-left", (3, 4, 6), (3, 5, 4), lambda m, x: torch.bmm(m.p, x[0])),
    Op("baddbmm", (3, 4, 6), (3, 6, 5), lambda m, x: torch.baddbmm(m.q, x[0], m.p), (3, 4, 5)),
    Op("conv1d", (4, 9), (6, 4, 3), conv(F.conv1d, stride=2, padding=1), (6,)),
    Op("conv2d", (4, 9, 8), (6, 4, 3, 3), conv(F.conv2d, padding=1), (6,)),
    Op("conv2d-strided", (4, 9, 8), (6, 4, 3, 2), conv(F.conv2d, stride=(2, 1), dilation=2), (6,)),
    Op("conv2d-grouped", (4, 9, 8), (8, 1, 3, 3), conv(F.conv2d, groups=4), (8,)),
    Op("conv2d-same", (4, 9, 8), (6, 4, 3, 3), conv(F.conv2d, padding="same"), (6,)),
    Op("conv2d-one-by-one", (4, 9, 8), (6, 4, 1, 1), lambda m, x: F.conv2d(x, m.p)),
    Op("conv3d", (2, 5, 6, 4), (3, 2, 3, 3, 3), conv(F.conv3d, padding=1), (3,)),
    Op("add", (4, 6), (6,), lambda m, x: x + m.p),
    Op("add-from-the-left", (4, 6), (4, 6), lambda m, x: m.p + x),
    Op("add-scaled", (4, 6), (6,), lambda m, x: torch.add(x, m.p, alpha=0.3)),
    Op("add-a-scalar", (4, 6), (), lambda m, x: x + m.p),
    Op("add-as-it-is", (4, 6), (4, 6), lambda m, x: x[0] + m.p),
    Op("mul-by-as-many", (4, 6), (6,), lambda m, x: x * m.p.expand_as(x)),
    Op("add-as-many-made", (4, 6), (6,), lambda m, x: x + m.p.exp().expand_as(x)),
    Op("sub", (4, 6), (6,), lambda m, x: x - m.p),
    Op("mul", (4, 6), (6,), lambda m, x: x * m.p),
    Op("mul-from-the-left", (4, 6), (4, 1), lambda m, x: m.p * x),
    Op("mul-by-a-made-weight", (4, 6), (6,), lambda m, x: x * (m.p.exp() / m.p.exp().sum())),
    Op("div", (4, 6), (6,), lambda m, x: x / (2 + m.p * m.p)),
    Op("maximum", (4, 6), (6,), lambda m, x: torch.maximum(x, m.p)),
    Op("where", (4, 6), (6,), lambda m, x: torch.where(x > 0, x, m.p)),
    Op("cat", (4, 6), (2, 6), lambda m, x: torch.cat([x, m.p.expand(x.shape[0], 2, 6)], 1)),
    Op("stack", (4, 6), (4, 6), lambda m, x: torch.stack([m.p, x[0]])),
    Op("layer-norm", (4, 6), (6,), lambda m, x: F.layer_norm(x, (6,), m.p, m.q), (6,)),
    Op("group-norm", (4, 6), (4,), lambda m, x: F.group_norm(x, 2, m.p, m.q), (4,)),
    Op("rms-norm", (4, 6), (6,), lambda m, x: F.rms_norm(x, (6,), m.p)),
    Op("mask", (2, 4, 6), (4, 4), lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.p)),
    Op("read-three-times", (6,), (6, 6), lambda m, x: F.linear(F.linear(F.linear(x, m.p), m.p).sin(), m.p)),
    Op("read-by-two-kinds", (6,), (6,), lambda m, x: F.layer_norm(x * m.p, (6,), m.p)),
    Op("read-made", (6,), (6, 6), lambda m, x: F.linear(x, m.p) @ m.p.t() @ m.p.tanh(), (1,), False),
    Op("mul-by-a-draw-like-it", (4, 6), (6,), lambda m, x: x * torch.bernoulli(m.p, 0.5)),
    Op("add-to-a-draw-like-it", (4, 6), (6,), lambda m, x: torch.bernoulli(x, 0.5) + m.p),
    Op("of-a-norm", (6,), (5, 6), lambda m, x: F.linear(x, m.q * m.p / m.p.square().sum().sqrt()), (5, 1)),
]  # fmt: skip


def whole(
    segment: Segment, state: dict[int, Tensor], values: dict[int, Tensor], gradients: dict[int, Tensor]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """What one autograd run gives: gradients of what was received and of parameters."""
    program = Program(segment, SAMPLES, train=True)
    given = {value: tensor.detach().clone() for value, tensor in values.items()}
    received = {v: given[v].requires_grad_() for v in segment.receives if v in segment.differentiable}
    trained = {entry.value for entry in segment.inputs if entry.trainable}
    leaves = {v: t.detach().clone().requires_grad_(v in trained) for v, t in state.items()}
    made = program.results_of([leaves[v] for v in program.state], given, SEED)
    ends = [(made[v], g) for v, g in gradients.items() if made[v].requires_grad]
    torch.autograd.backward([t for t, _ in ends], [g for _, g in ends])
    return _found(received), _found(leaves)


def split(
    segment: Segment, state: dict[int, Tensor], values: dict[int, Tensor], gradients: dict[int, Tensor]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    sides = sides_of(segment)
    assert sides is not None
    trained = {entry.value for entry in segment.inputs if entry.trainable}
    leaves = {v: t.detach().clone().requires_grad_(v in trained) for v, t in state.items()}
    way = SplitPass(segment, SAMPLES, sides, leaves)
    _, tape = way.forward([leaves[v] for v in way.program.state], values, SEED)
    sent: dict[int, Tensor] = {}
    before = {value: gradient.clone() for value, gradient in gradients.items()}
    tape.backward(gradients, sent.__setitem__)
    assert not _found(leaves), "no gradient of a parameter is there before what was sent"
    tape.accumulate()
    assert all(torch.equal(gradients[value], gradient) for value, gradient in before.items())
    return sent, _found(leaves)


def _found(tensors: dict[int, Tensor]) -> dict[int, Tensor]:
    return {value: tensor.grad for value, tensor in tensors.items() if tensor.grad is not None}


def require_same_bits(
    segment: Segment, values: dict[int, Tensor], named: dict[str, Tensor], exact: bool = True
) -> None:
    state = state_of(segment, named)
    made = Program(segment, SAMPLES, train=True)
    results = made.results_of([state[v] for v in made.state], values, SEED)
    ends = [v for v in segment.sends if v in segment.differentiable]
    ends += [segment.loss] if segment.loss is not None else []
    generator = torch.Generator().manual_seed(3)
    gradients = {v: torch.randn(results[v].shape, generator=generator) for v in ends}
    for ours, theirs in zip(
        split(segment, state, values, gradients), whole(segment, state, values, gradients), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for value, expected in theirs.items():
            assert torch.equal(ours[value], expected) or (not exact and torch.allclose(ours[value], expected))


def state_of(segment: Segment, named: dict[str, Tensor]) -> dict[int, Tensor]:
    """What a segment holds, by value."""
    state = {e.value: named[e.name].detach() for e in segment.inputs if e.kind in ("parameter", "buffer")}
    constants = segment.constants
    return state | {
        e.value: constant_tensor(constants[e.name]) for e in segment.inputs if e.kind == "constant"
    }


@pytest.mark.cases(20)
@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_weights_of_an_op_have_the_gradients_of_one_run(op: Op) -> None:
    segment, named = segment_of(op)
    require_same_bits(segment, made_up(segment), named, op.exact)


def graph_of(op: Op) -> tuple[Graph, dict[str, Tensor]]:
    torch.manual_seed(5)
    case = Case(op.name, lambda: Probe(op), lambda samples, seed: {"x": torch.randn(samples, *op.shape)})
    module, graph = captured(case, SAMPLES)
    return graph, named_state(module, graph)


def segment_of(op: Op) -> tuple[Segment, dict[str, Tensor]]:
    """The segment that the op is in, which receives one value; and the state by name."""
    graph, named = graph_of(op)
    return cut_before_the_op(graph), named


def cut_before_the_op(graph: Graph) -> Segment:
    cut = next(at for at, legal in enumerate(legal_positions(graph)) if legal and at > 0)
    return placed(graph, [cut], ["a", "b"], 1, SAMPLES).segments[1]


def made_up(segment: Segment) -> dict[int, Tensor]:
    """Numbers for what a segment receives."""
    return {v: torch.randn(segment.values[v].shape_at(SAMPLES)) for v in segment.receives}


def test_a_weight_made_as_large_as_what_was_received_joins_nothing() -> None:
    """Of the second argument of `expand_as` only the shape counts; capture writes it as `expand`."""
    graph, named = graph_of(next(op for op in OPS if op.name == "mul"))
    at, node = next((n, node) for n, node in enumerate(graph.nodes) if n and node.op == "aten.mul.Tensor")
    came, weight = node.arguments["self"], node.arguments["other"]
    assert isinstance(came, Ref)
    wide = len(graph.values)
    nodes = list(graph.nodes)
    nodes[at] = msgspec.structs.replace(node, arguments={"self": came, "other": Ref(wide)})
    nodes.insert(at, Node(1000, "aten.expand_as.default", {"self": weight, "other": came}, [wide]))
    values = [*graph.values, graph.values[came.id]]
    segment = cut_before_the_op(msgspec.structs.replace(graph, nodes=nodes, values=values))
    require_same_bits(segment, made_up(segment), named)


attention = F.scaled_dot_product_attention
LARGE = [
    Op("linear-transposed", (64, 48), (56, 64), lambda m, x: F.linear(x.transpose(1, 2), m.p, m.q), (56,)),
    Op("matmul-by-a-made-weight", (64, 48), (64, 56), lambda m, x: x.transpose(1, 2) @ m.p.tanh()),
    Op("linear-of-slices", (48, 64), (56, 32), lambda m, x: F.linear(x[:, ::3, ::2], m.p)),
    Op("mask-of-weights", (2, 24, 16), (24, 24), lambda m, x: attention(x, x, x, m.p.tanh())),
]  # fmt: skip


@pytest.mark.cases(20)
@pytest.mark.parametrize("op", [*OPS, *LARGE], ids=lambda op: op.name)
def test_a_forward_pass_that_keeps_nothing_makes_the_same_bits(op: Op) -> None:
    """Whatever the strides of what is read: kernels are chosen as where gradients are wanted."""
    segment, named = segment_of(op)
    trained = {entry.value for entry in segment.inputs if entry.trainable}
    state = {v: t.requires_grad_(v in trained) for v, t in state_of(segment, named).items()}
    sides = sides_of(segment)
    assert sides is not None
    kept = SplitPass(segment, SAMPLES, sides, state)
    again = RecomputingPass(kept)
    values = made_up(segment)
    given = [state[value] for value in kept.program.state]
    expected, found = (way.forward(given, values, SEED)[0] for way in (kept, again))
    assert all(torch.equal(found[value], expected[value]) for value in expected)
    assert not any(tensor.requires_grad for tensor in found.values())


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", [entry.name for entry in CASES])
def test_segments_of_models_have_the_gradients_of_one_run(name: str) -> None:
    """Every segment but the first of each model, on what the ones before it send."""
    case = next(entry for entry in CASES if entry.name == name)
    module, graph = captured(case, SAMPLES)
    named = named_state(module, graph)
    batch = case.batch(SAMPLES, 7)
    known = {entry.value: batch[entry.name] for entry in graph.inputs_of("input")}
    for segment in planned(graph, Training(1, 1, SAMPLES, SGD(lr=0.1)), 4).segments:
        values = {e.value: known[e.value] for e in segment.inputs if e.kind == "input"}
        values |= {value: known[value] for value in segment.receives}
        program = Program(segment, SAMPLES, train=True)
        state = state_of(segment, named)
        with torch.no_grad():
            known |= program.results_of([state[v] for v in program.state], values, SEED)
        if sides_of(segment) is not None:
            require_same_bits(segment, values, named)
