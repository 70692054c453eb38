"""The linear layer over a quantized matrix is `F.linear` over the dequantized one, which it does not keep."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farflung.errors import GraphError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph, ValueType
from farflung.opdag.quantized import QUANTIZED_LINEAR, quantized
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.quantization import FORMATS, QuantizedFormat, quantize, quantized_bytes
from farflung.runtime.footprint import segment_tape
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.quantized import dequantized, quantized_embedding, quantized_linear
from farflung.runtime.torch_backend.verify import verify_segment

torch.set_num_threads(1)
WIDTH, SAMPLES = 128, 3


def packed(matrix: Tensor, form: str) -> Tensor:
    made = np.empty(quantized_bytes(matrix.numel(), form), np.uint8)
    quantize(matrix.detach().float().numpy().reshape(-1), form, made)
    return torch.from_numpy(made).view(len(matrix), -1)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("transposed", "shape"), [(False, (2, 5)), (True, (4,)), (False, (1, 2, 3))])
def test_it_is_a_linear_layer_over_the_dequantized_matrix_bit_for_bit(
    form: str, dtype: torch.dtype, transposed: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    weight = packed(torch.randn(96, WIDTH), form)
    matrix = dequantized(weight, form, dtype)
    matrix = matrix.t() if transposed else matrix
    given = torch.randn(*shape, matrix.shape[1]).to(dtype).requires_grad_()
    bias = torch.randn(matrix.shape[0]).to(dtype).requires_grad_()
    ours = quantized_linear(given, weight, form, bias, transposed)
    theirs = F.linear(given, matrix, bias)
    gradient = torch.randn_like(ours)
    assert torch.equal(ours, theirs)
    wanted = torch.autograd.grad(theirs, (given, bias), gradient)
    found = torch.autograd.grad(ours, (given, bias), gradient)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("form", FORMATS)
def test_matrices_are_dequantized_in_pieces_as_in_one(form: str) -> None:
    """The pieces are of 2^18 values, this matrix has more, and the last piece is shorter."""
    weight = packed(torch.randn(700, 512), form)
    whole = dequantized(weight, form, torch.float32)
    assert all(
        torch.equal(dequantized(row[None], form, torch.float32)[0], own)
        for row, own in zip(weight, whole, strict=True)
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_matrix_may_begin_at_any_byte(form: str, rows: int) -> None:
    weight = packed(torch.randn(rows, WIDTH), form)
    shifted = torch.empty(weight.numel() + 1, dtype=torch.uint8)[1:].view(weight.shape).copy_(weight)
    assert torch.equal(dequantized(shifted, form, torch.float32), dequantized(weight, form, torch.float32))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 5), (0,), ()])
def test_an_embedding_looks_up_rows_of_the_dequantized_matrix_bit_for_bit(
    form: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    weight = packed(torch.randn(96, WIDTH), form)
    indices = torch.randint(96, shape)
    ours = quantized_embedding(weight, indices, form, dtype)
    assert ours.dtype == dtype and ours.shape == (*shape, WIDTH)
    assert torch.equal(ours, F.embedding(indices, dequantized(weight, form, dtype)))


class Tower(nn.Module):
    """Frozen layers with a trained bias at the end of each, as a stand-in for an adapter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.shifts = nn.ParameterList(torch.zeros(WIDTH) for _ in range(3))
        self.table.requires_grad_(False)
        self.layers.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            x = layer(x) + shift
        return x.square().mean()


def tower() -> tuple[Tower, Graph]:
    module = Tower()
    return module, capture(module, {"tokens": torch.arange(2 * SAMPLES).view(-1, 2)}).graph


def held(module: nn.Module, segment: Segment, forms: Mapping[str, str]) -> list[Tensor]:
    state = named_state(module, capture(module, {"tokens": torch.arange(4).view(-1, 2)}).graph)
    types = {entry.name: segment.values[entry.value] for entry in segment.inputs}
    return [
        packed(state[entry.name], forms[entry.name])
        if types[entry.name].dtype == "uint8"
        else state[entry.name].detach().requires_grad_(entry.trainable)
        for entry in segment.inputs
        if entry.kind != "input"
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_the_backward_pass_keeps_codes_and_scales_and_no_matrix(form: QuantizedFormat) -> None:
    module, graph = tower()
    graph, found = quantized(graph, form)
    assert found.forms == {"table.weight": "int8"} | {f"layers.{n}.weight": form for n in range(3)}
    (segment,) = plan_graph(graph, 1, SAMPLES, ["here"]).segments
    verify_segment(segment, SAMPLES)
    state = held(module, segment, found.forms)
    kept: list[Tensor] = []
    program = Program(segment, SAMPLES, train=True)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        (loss,) = program.run(state, [torch.arange(2 * SAMPLES).view(-1, 2)], 0)
    matrices = [tensor for tensor in kept if tensor.dtype == torch.uint8]
    # The first layer's input needs no gradient, so nothing is kept of it at all, nor of the table.
    assert [m.data_ptr() for m in matrices] == [s.data_ptr() for s in state if s.dtype == torch.uint8][2:]
    assert sum(m.nbytes for m in matrices) == 2 * quantized_bytes(WIDTH * WIDTH, form)
    floats = [tensor for tensor in kept if tensor.is_floating_point()]
    assert max(tensor.numel() for tensor in floats) == 2 * SAMPLES * WIDTH < WIDTH * WIDTH
    loss.backward()
    assert all(tensor.grad is not None for tensor in state if tensor.requires_grad)
    assert segment_tape(segment, SAMPLES).kept.sum() == sum({t.data_ptr(): t.nbytes for t in floats}.values())


@pytest.mark.parametrize("form", FORMATS)
def test_the_memory_of_one_dequantized_matrix_is_counted(form: QuantizedFormat) -> None:
    graph, _ = quantized(tower()[1], form)
    (segment,) = plan_graph(graph, 1, SAMPLES, ["here"]).segments
    places = [at for at, node in enumerate(segment.nodes) if node.op == QUANTIZED_LINEAR]
    tape = segment_tape(segment, SAMPLES)
    assert len(places) == 3
    assert all(tape.forward[at] >= WIDTH * WIDTH * 4 for at in places)
    assert all(tape.backward[at] >= WIDTH * WIDTH * 4 for at in places[1:])


def test_a_worker_refuses_a_matrix_without_whole_blocks() -> None:
    graph, _ = quantized(tower()[1], "nf4")
    (segment,) = plan_graph(graph, 1, SAMPLES, ["here"]).segments
    matrix = next(entry.value for entry in segment.inputs if entry.name == "layers.0.weight")
    for wrong in (
        ValueType("uint8", [WIDTH, 70]),
        ValueType("float32", [WIDTH, 72]),
        ValueType("uint8", [9]),
    ):
        segment.values[matrix] = wrong
        with pytest.raises(GraphError, match="refuses its arguments: a nf4 matrix is uint8 of rows of 18"):
            verify_segment(segment, SAMPLES)
    segment.values[matrix] = ValueType("uint8", [WIDTH, 36])
    with pytest.raises(GraphError, match="refuses its arguments"):
        verify_segment(segment, SAMPLES)
