"""What is said to be kept for the backward pass, against what autograd keeps of the same program."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from benchmarks.zoo import CASES, Case, case
from benchmarks.zoo.side_by_side import captured, workers
from tests.support.hostile_programs import segment_of
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from farflung.opdag.graph import Argument, Ref, ValueType
from farflung.opdag.saved_tensors import saved_by
from farflung.opdag.segment import Segment
from farflung.opdag.storage import storage_of, uses_fused_attention
from farflung.planner import plan_graph
from farflung.runtime.footprint import required_bytes, segment_tape
from farflung.runtime.parity.steps import named_state
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.tensors import DTYPES, constant_tensor

SAMPLES = 4


def saved_bytes(segment: Segment, state: dict[str, Tensor], batch: dict[str, Tensor]) -> int:
    """Bytes of all memory that autograd keeps for the backward pass, but of what the program was given."""
    program = Program(segment, SAMPLES, train=True)
    entries = [entry for entry in segment.inputs if entry.kind != "input"]
    held = [
        constant_tensor(segment.constants[entry.name])
        if entry.kind == "constant"
        else state[entry.name].detach().clone().requires_grad_(entry.trainable)
        for entry in entries
    ]
    fed = {entry.value: batch[entry.name] for entry in segment.inputs if entry.kind == "input"}
    given = [fed[value] for value in program.values]
    others = {tensor.untyped_storage().data_ptr() for tensor in (*held, *given)}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = program.run(held, given, 0)
    assert results
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in others)


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_a_tape_is_as_large_as_what_autograd_keeps(entry: Case) -> None:
    """Up to numbers of a few bytes: the weight of a loss, the scale of a mean."""
    module, graph = captured(entry, SAMPLES)
    (segment,) = plan_graph(graph, 2, SAMPLES, workers(1)).segments
    real = saved_bytes(segment, named_state(module, graph), entry.batch(SAMPLES, 1))
    tape = segment_tape(segment, SAMPLES).kept.sum()
    assert real - 64 <= tape <= 1.02 * real + 64


def test_nodes_without_a_gradient_save_nothing() -> None:
    _, graph = captured(case("frozen"), SAMPLES)
    kept = segment_tape(plan_graph(graph, 2, SAMPLES, workers(1)).segments[0], SAMPLES).kept
    assert not kept[0] and kept[1]  # the first layer is frozen; the second keeps what it reads


ATTENTIONS: list[tuple[list[list[int]], dict[str, Argument]]] = [
    ([[2, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8]], {}),
    ([[2, 6, 4, 8], [2, 3, 5, 8], [2, 3, 5, 8]], {"enable_gqa": True}),
    ([[2, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 9]], {}),
    ([[2, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8], [4, 5]], {}),
    ([[2, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8], [2, 1, 4, 5]], {}),
    ([[2, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8], [6, 4, 5]], {}),
    ([[1, 6, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8]], {}),
    ([[2, 1, 4, 8], [2, 6, 5, 8], [2, 6, 5, 8]], {}),
    ([[6, 4, 8], [6, 5, 8], [6, 5, 8]], {}),
]


@pytest.mark.parametrize(("shapes", "arguments"), ATTENTIONS)
def test_attention_has_a_table_of_all_pairs_where_torch_makes_one(
    shapes: list[list[int]], arguments: dict[str, Argument]
) -> None:
    """Also where nothing has a gradient: a short program must not take more memory than was asked of it."""
    tensors = [torch.randn(shape) for shape in shapes]
    result = torch.nn.functional.scaled_dot_product_attention(*tensors, **arguments)  # type: ignore[arg-type]
    names = ("query", "key", "value", "attn_mask")[: len(shapes)]
    reads: dict[str, Argument] = {name: Ref(at) for at, name in enumerate(names)}
    types = [ValueType("float32", list(shape)) for shape in (*shapes, list(result.shape))]
    node = ("scaled_dot_product_attention.default", {**reads, **arguments}, [len(shapes)])
    segment = segment_of(types[:-1], [node], types[-1:])
    storage = storage_of(segment.nodes, segment.values, 1)
    fused = bool(torch._fused_sdp_choice(*tensors, **arguments))
    assert uses_fused_attention(segment.nodes[0], storage) == fused
    table = 0 if fused else result[..., 0].numel() * shapes[1][-2] * 4
    assert (
        saved_by(segment.nodes[0], segment.values, 1, storage, set()).forward_bytes == 2 * table + table // 4
    )


def tensors(dtype: str, *shapes: tuple[int, ...]) -> list[ValueType]:
    return [ValueType(dtype, list(shape)) for shape in shapes]  # type: ignore[arg-type]


HUNGRY: list[tuple[str, dict[str, Argument], list[ValueType]]] = [
    ("matmul.default", {"self": Ref(0), "other": Ref(1)},
     tensors("float32", (256, 1, 1, 64), (1, 256, 64, 1), (256, 256, 1, 1))),
    ("mse_loss.default", {"self": Ref(0), "target": Ref(1)},
     tensors("float32", (2000, 1), (1, 2000), ())),
    ("smooth_l1_loss.default", {"self": Ref(0), "target": Ref(1)},
     tensors("float32", (2000, 1), (1, 2000), ())),
    ("conv2d.default", {"input": Ref(0), "weight": Ref(1), "padding": [8, 8]},
     tensors("float64", (1, 16, 32, 32), (1, 16, 17, 17), (1, 1, 32, 32))),
    ("conv3d.default", {"input": Ref(0), "weight": Ref(1), "padding": [3, 3, 3]},
     tensors("float64", (1, 4, 8, 16, 16), (1, 4, 7, 7, 7), (1, 1, 8, 16, 16))),
    ("conv_transpose3d.input", {"input": Ref(0), "weight": Ref(1), "padding": [4, 4, 4]},
     tensors("float64", (1, 1, 8, 8, 8), (1, 1, 9, 9, 9), (1, 1, 8, 8, 8))),
    ("conv3d.default", {"input": Ref(0), "weight": Ref(1), "padding": [1, 1, 1]},
     tensors("float32", (1, 8, 8, 16, 256), (8, 8, 3, 3, 3), (1, 8, 8, 16, 256))),
    ("conv2d.default", {"input": Ref(0), "weight": Ref(1)},
     tensors("float32", (1, 1, 100, 200), (32, 1, 3, 100), (1, 32, 98, 101))),
    ("conv1d.default", {"input": Ref(0), "weight": Ref(1)},
     tensors("float32", (1, 4, 5000), (8, 4, 1000), (1, 8, 4001))),
    ("conv_transpose2d.input", {"input": Ref(0), "weight": Ref(1), "stride": [1, 1]},
     tensors("float32", (1, 8, 32, 32), (8, 8, 3, 31), (1, 8, 34, 62))),
    ("scaled_dot_product_attention.default", {"query": Ref(0), "key": Ref(1), "value": Ref(1)},
     tensors("float32", (1024, 8), (1024, 8), (1024, 8))),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments", "types"), HUNGRY, ids=lambda entry: str(entry)[:12])
def test_temporary_memory_of_kernels_is_counted(
    op: str, arguments: dict[str, Argument], types: list[ValueType]
) -> None:
    """Else a program of a few bytes could fill a worker's memory."""
    segment = segment_of(types[:-1], [(op, arguments, [2])], types[-1:])
    given = [torch.zeros(kind.shape_at(1), dtype=DTYPES[kind.dtype]) for kind in types[:-1]]
    program = Program(segment, 1, train=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        program.run([], given, 0)
    changes = [
        event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    peak = max(accumulate(changes))
    assert peak > 2**20
    assert required_bytes(segment, 1, 1) >= 0.97 * peak
