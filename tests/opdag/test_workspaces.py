"""Temporary memory of kernels, against the kernels that torch chooses and the peak that Linux has seen."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile_programs import segment_of

from farflung.opdag.graph import Argument, Ref, ValueType
from farflung.opdag.saved_tensors import saved_by
from farflung.opdag.segment import Segment
from farflung.opdag.storage import storage_of
from farflung.opdag.workspaces import runs_unfolded
from farflung.runtime.torch_backend.tensors import DTYPES

BESIDE = 2e6
"""Bytes that a process takes beside tensors: code of kernels, and pages that are not full."""

sizes = st.integers(1, 6)


@given(
    rank=st.integers(1, 3), transposed=st.booleans(), dtype=st.sampled_from(["float32", "float64"]),
    samples=st.sampled_from([1, 2, 16]), groups=st.sampled_from([1, 1, 2]), data=st.data(),
)  # fmt: skip
@settings(deadline=None, max_examples=200)
def test_where_torch_unfolds_it_is_counted(
    rank: int, transposed: bool, dtype: str, samples: int, groups: int, data: st.DataObject
) -> None:
    """Else a convolution of a few kilobytes could fill a worker's memory."""
    channels, filters = groups * data.draw(sizes), groups * data.draw(sizes)
    kernel = [data.draw(sizes) for _ in range(rank)]
    stride, dilation = [data.draw(st.integers(1, 2))] * rank, [data.draw(st.integers(1, 2))] * rank
    more = [data.draw(st.integers(0, max(1, stride[0]) - 1)) if transposed else 0] * rank
    shape = [samples, channels, *(data.draw(st.sampled_from([12, 40, 120])) for _ in range(rank))]
    weight = [channels, filters // groups, *kernel] if transposed else [filters, channels // groups, *kernel]
    kinds = [torch.empty(size, dtype=DTYPES[dtype]) for size in (shape, weight)]  # type: ignore[index]
    chosen = torch._C._select_conv_backend(
        *kinds, None, stride, [0] * rank, dilation, transposed, more, groups
    )
    op = (
        f"conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
        if transposed
        else f"conv{rank}d.default"
    )
    arguments: dict[str, Argument] = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        arguments["output_padding"] = more
    meta = [kind.to("meta") for kind in kinds]
    made = torch.convolution(*meta, None, stride, [0] * rank, dilation, transposed, more, groups)
    segment = convolution(op, dtype, shape, weight, list(made.shape), arguments)
    if "Slow" in str(chosen):
        assert runs_unfolded(segment.nodes[0], segment.values, 1)


def convolution(
    op: str, dtype: str, shape: list[int], weight: list[int], made: list[int], arguments: dict[str, Argument]
) -> Segment:
    kinds = [ValueType(dtype, size) for size in (shape, weight, made)]  # type: ignore[arg-type]
    node = (op, {"input": Ref(0), "weight": Ref(1), **arguments}, [2])
    return segment_of(kinds[:-1], [node], kinds[-1:])


MEASURE = """
import ctypes, sys, torch
ctypes.CDLL(None).mallopt(-3, 65536)  # pages of its own for each tensor
torch.set_num_threads(1)
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
def run(op, dtype, shapes, arguments):
    given = [torch.ones(shape, dtype=getattr(torch, dtype), requires_grad=True) for shape in shapes]
    found = []
    def peak(task, size):
        before = status("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")
        result = task()
        found.append(status("VmHWM") - before - size(result))
        return result
    many = lambda result: result if isinstance(result, tuple) else (result,)
    size = lambda tensors: sum(tensor.nbytes for tensor in tensors)
    made = many(peak(lambda: getattr(torch.ops.aten, op)(*given, **arguments), lambda r: size(many(r))))
    gradient = torch.ones_like(made[0])
    peak(lambda: made[0].backward(gradient), lambda _: size(given))
    return found, [list(tensor.shape) for tensor in made]
op, dtype, shapes, arguments = eval(sys.argv[1])
run(op, dtype, shapes, arguments)  # the process is warm
print(run(op, dtype, shapes, arguments))
"""


MEASURED: list[tuple[str, str, list[list[int]], dict[str, Argument]]] = [
    ("conv3d", "float32", [[1, 8, 8, 16, 256], [8, 8, 3, 3, 3]], {"padding": [1, 1, 1]}),
    ("conv3d", "float32", [[2, 8, 8, 16, 256], [8, 8, 3, 3, 3]], {"padding": [1, 1, 1]}),
    ("conv3d", "bfloat16", [[1, 8, 8, 16, 256], [8, 8, 3, 3, 3]], {"padding": [1, 1, 1]}),
    ("conv3d", "float32", [[1, 8, 8, 16, 256], [8, 8, 3, 3, 3]], {"padding": [2] * 3, "dilation": [2] * 3}),
    ("conv2d", "float32", [[1, 1, 100, 200], [32, 1, 3, 100]], {}),
    ("conv2d", "float32", [[4, 1, 256, 256], [8, 1, 11, 11]], {"padding": [5, 5]}),
    ("conv2d", "float32", [[4, 5, 128, 128], [5, 5, 3, 3]], {"padding": [1, 1]}),
    ("conv2d", "bfloat16", [[4, 16, 128, 128], [16, 4, 5, 5]], {"padding": [4, 4], "dilation": [2, 2],
     "groups": 4}),
    ("conv2d", "bfloat16", [[4, 64, 64, 64], [64, 64, 3, 3]], {"padding": [1, 1]}),
    ("conv2d", "float32", [[4, 12, 128, 128], [12, 6, 13, 13]], {"groups": 2}),
    ("conv1d", "float32", [[1, 4, 5000], [8, 4, 1000]], {}),
    ("conv1d", "float32", [[4, 16, 20000], [16, 16, 31]], {}),
    ("topk", "float32", [[2_000_000]], {"k": 8}),
    ("topk", "float32", [[2000, 1000]], {"k": 8}),
    ("cumsum", "float32", [[1000, 2000]], {"dim": 0}),
]  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
@pytest.mark.parametrize(("op", "dtype", "shapes", "arguments"), MEASURED, ids=str)
def test_a_kernel_takes_no_more_than_is_said_of_it(
    op: str, dtype: str, shapes: list[list[int]], arguments: dict[str, Argument]
) -> None:
    """Forward and backward, in a process of its own."""
    asked = [sys.executable, "-c", MEASURE, repr((op, dtype, shapes, arguments))]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    (forward, backward), made = ast.literal_eval(done.stdout)
    kinds = [ValueType(dtype, size) for size in (*shapes, *made)]  # type: ignore[arg-type]
    if op == "topk":
        kinds[-1] = ValueType("int64", made[-1])
    names = ("input", "weight") if "conv" in op else ("self",)
    reads: dict[str, Argument] = {name: Ref(at) for at, name in enumerate(names)}
    results = list(range(len(shapes), len(kinds)))
    segment = segment_of(
        kinds[: len(shapes)], [(f"{op}.default", {**reads, **arguments}, results)], kinds[len(shapes) :]
    )
    storage = storage_of(segment.nodes, segment.values, 1)
    said = saved_by(segment.nodes[0], segment.values, 1, storage, {*range(len(shapes)), results[0]})
    assert said.forward_bytes + BESIDE >= forward
    assert said.backward_bytes + BESIDE >= backward
