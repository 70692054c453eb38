"""No op of the opset takes more temporary memory than is said of it: each against the peak of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from tests.support.hostile_programs import segment_of
from tests.support.kernel_peaks import DTYPES, Call, Given, Peak, is_tensor, measured

from farflung.opdag import opset
from farflung.opdag.graph import Argument, DType, Ref, ValueType
from farflung.opdag.saved_tensors import SavedTensors, saved_by
from farflung.opdag.storage import storage_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(1800),  # the first test waits for all processes: a second each on a busy machine
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc"),
]

BESIDE = 2.2e6
"""Bytes that a process takes beside tensors: code of kernels, and pages that are not full."""
ELSEWHERE = {"creation", "convolution", "view"}
"""Groups of ops that make no large temporaries, or that `test_workspaces` measures."""
NOT_HERE = {
    "aten._native_batch_norm_legit_functional.default",  # as the one without statistics
    "farflung.quantized_embedding.default",  # tests/runtime/test_quantized.py
    "farflung.quantized_linear.default",
}


def f(*shape: int) -> Given:
    return ("f", shape)


def p(*shape: int) -> Given:
    return ("p", shape)


def h(*shape: int) -> Given:
    return ("h", shape)


def b(*shape: int) -> Given:
    return ("b", shape)


def i(most: int, *shape: int) -> Given:
    return ("i", shape, most)


X, ROW, COLUMN, ONE_ROW = f(1000, 1000), f(1000), f(1000, 1), f(1, 1000)
IMAGES, VOLUMES, SERIES = f(4, 16, 128, 128), f(2, 8, 8, 64, 128), f(16, 64, 1000)
INDICES = i(1000, 1000, 1000)
HEADS, LONG = f(4, 8, 256, 64), f(1, 2, 1000, 64)


def elementwise() -> Iterator[tuple[str, dict[str, Any]]]:
    ones = (
        "abs atan ceil cos elu erf exp expm1 floor gelu hardsigmoid hardswish hardtanh leaky_relu log log1p"
        " log2 log_sigmoid mish neg reciprocal relu round rsqrt sigmoid sign silu sin softplus sqrt square"
        " tanh tril triu logical_not"
    )
    for name in ones.split():
        yield f"{name}.default", {"self": X}
    yield "bitwise_not.default", {"self": b(1000, 1000)}
    yield "gelu.default", {"self": X, "approximate": "tanh"}
    yield "clamp.default", {"self": X, "min": 0.2, "max": 0.5}
    yield "clamp_min.default", {"self": X, "min": 0.5}
    yield "clamp_max.default", {"self": X, "max": 0.5}
    pairs = ((X, X), (X, ROW), (ROW, X), (COLUMN, ONE_ROW))
    twos = "add.Tensor sub.Tensor mul.Tensor div.Tensor remainder.Tensor maximum.default minimum.default"
    for name, (one, other) in product(twos.split(), pairs):
        yield name, {"self": one, "other": other}
    for one, other in pairs:
        yield "pow.Tensor_Tensor", {"self": one, "exponent": other}
    for name in ["eq", "ge", "gt", "le", "lt", "ne"]:
        yield f"{name}.Tensor", {"self": X, "other": ROW}
        yield f"{name}.Scalar", {"self": X, "other": 0.5}
    for name in ["add", "sub", "mul", "div", "remainder", "rsub"]:
        yield f"{name}.Scalar", {"self": X, "other": 1.5}
    for exponent in (2, 3, 2.5):
        yield "pow.Tensor_Scalar", {"self": X, "exponent": exponent}
    yield "pow.Scalar", {"self": 2.0, "exponent": X}
    for name in ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"]:
        yield name, {"self": b(1000, 1000), "other": b(1000)}
    for name, other in product(("logical_and.default", "logical_or.default"), (X, ROW)):
        yield name, {"self": X, "other": other}
    yield from masked()


def masked() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in (X, ROW):
        yield "masked_fill.Scalar", {"self": one, "mask": b(1000, 1000), "value": 1.0}
    yield "masked_fill.Tensor", {"self": X, "mask": b(1000), "value": f()}
    yield "where.self", {"condition": b(1000, 1000), "self": X, "other": X}
    yield "where.self", {"condition": b(1000, 1), "self": ROW, "other": COLUMN}
    yield "where.ScalarSelf", {"condition": b(1000, 1000), "self": 0.0, "other": X}
    yield "where.ScalarOther", {"condition": b(1000, 1000), "self": X, "other": 0.0}
    yield "prelu.default", {"self": IMAGES, "weight": f(16)}
    yield "prelu.default", {"self": X, "weight": f(1)}
    for order in (1, 3):
        yield "diff.default", {"self": X, "n": order, "dim": 1}
    yield "native_dropout.default", {"input": X, "p": 0.1, "train": True}


def reductions() -> Iterator[tuple[str, dict[str, Any]]]:
    many = (
        "amax.default amin.default mean.dim sum.dim_IntList logsumexp.default var.correction std.correction"
    )
    for name, dims in product(many.split(), ([0], [1], [0, 1])):
        yield name, {"self": X, "dim": dims}
    for order, dims in product((1.0, 2.0, 3.0), ([0], [1])):
        yield "linalg_vector_norm.default", {"self": X, "ord": order, "dim": dims}
    one = "argmax.default max.dim min.dim cumsum.default prod.dim_int softmax.int log_softmax.int"
    for name, dim in product(one.split(), (0, 1)):
        yield name, {"self": X, "dim": dim}
    for name in ["max", "mean", "min", "prod", "sum"]:
        yield f"{name}.default", {"self": X}
    for name in ["softmax.int", "log_softmax.int", "cumsum.default", "prod.dim_int"]:
        yield name, {"self": X, "dim": 1, "dtype": "float64"}
    for name in ["sum.default", "mean.default"]:
        yield name, {"self": X, "dtype": "float64"}
    for dim, count in product((0, 1), (8, 500)):
        yield "topk.default", {"self": X, "k": count, "dim": dim}
    yield from losses()


def losses() -> Iterator[tuple[str, dict[str, Any]]]:
    name = "binary_cross_entropy_with_logits.default"
    yield name, {"self": X, "target": p(1000, 1000)}
    yield name, {"self": X, "target": p(1000, 1000), "reduction": 0}
    yield name, {"self": X, "target": p(1000, 1000), "weight": p(1000), "pos_weight": p(1000)}
    for target, smoothing in product((i(1000, 1000), p(1000, 1000)), (0.0, 0.1)):
        given = {"self": X, "target": target, "label_smoothing": smoothing}
        yield "cross_entropy_loss.default", given
        yield "cross_entropy_loss.default", {**given, "weight": p(1000)}
    for name in ["cross_entropy_loss.default", "nll_loss_nd.default"]:
        yield name, {"self": f(16, 20, 60, 60), "target": i(20, 16, 60, 60)}
    yield "nll_loss_nd.default", {"self": X, "target": i(1000, 1000)}
    for name, mean in product(("mse_loss.default", "smooth_l1_loss.default"), (0, 1)):
        yield name, {"self": X, "target": X, "reduction": mean}
        yield name, {"self": X, "target": ROW, "reduction": mean}


def products() -> Iterator[tuple[str, dict[str, Any]]]:
    for bias, scaled in product((ROW, X), ({}, {"beta": 0.5, "alpha": 2.0})):
        yield "addmm.default", {"self": bias, "mat1": X, "mat2": X, **scaled}
    batches = {"batch1": f(16, 200, 250), "batch2": f(16, 250, 300)}
    for bias, scaled in product((f(16, 200, 300), f(300), f(1, 1, 1)), ({}, {"beta": 0.5, "alpha": 2.0})):
        yield "baddbmm.default", {"self": bias, **batches, **scaled}
    yield "bmm.default", {"self": f(16, 200, 250), "mat2": f(16, 250, 300)}
    yield "mm.default", {"self": X, "mat2": X}
    yield "linear.default", {"input": f(16, 100, 1000), "weight": X, "bias": ROW}
    yield "linear.default", {"input": f(16, 100, 1000), "weight": X}
    for one, other in (
        (f(16, 100, 1000), X),
        (f(16, 100, 200), f(4, 1, 200, 300)),
        (f(4, 4, 100, 200), f(4, 4, 200, 300)),
        (X, ROW),
        (ROW, X),
    ):
        yield "matmul.default", {"self": one, "other": other}
    for one, more in product((HEADS, LONG), ({}, {"is_causal": True}, {"dropout_p": 0.1})):
        heads = {"query": one, "key": one, "value": one}
        yield "scaled_dot_product_attention.default", {**heads, **more}
    mask = b(256, 256)
    yield (
        "scaled_dot_product_attention.default",
        {"query": HEADS, "key": HEADS, "value": HEADS, "attn_mask": mask},
    )


def layers() -> Iterator[tuple[str, dict[str, Any]]]:
    for more in ({"weight": ROW, "bias": ROW}, {}):
        yield "layer_norm.default", {"input": X, "normalized_shape": [1000], **more}
    yield "rms_norm.default", {"input": X, "normalized_shape": [1000], "weight": ROW}
    scale = {"weight": f(16), "bias": f(16)}
    yield "group_norm.default", {"input": IMAGES, "num_groups": 4, **scale}
    batch = {"input": IMAGES, **scale, "training": True, "momentum": 0.1, "eps": 1e-5}
    yield "_native_batch_norm_legit.no_stats", batch
    for size in ([7, 7], [1, 1]):
        yield "adaptive_avg_pool2d.default", {"self": IMAGES, "output_size": size}
    yield "adaptive_avg_pool3d.default", {"self": VOLUMES, "output_size": [3, 7, 7]}
    for kernel, stride in ((3, 1), (2, 2)):
        for name, given, rank in (("pool2d", IMAGES, 2), ("pool3d", VOLUMES, 3)):
            window = {"kernel_size": [kernel] * rank, "stride": [stride] * rank}
            yield f"avg_{name}.default", {"self": given, **window}
            yield f"max_{name}.default", {"self": given, **window}
    flat, solid = {"output_size": [256, 256]}, {"output_size": [16, 128, 128]}
    straight, by_size = {"align_corners": False}, {"scale_factors": None}
    for name in ["upsample_bicubic2d.vec", "upsample_bilinear2d.vec"]:
        yield name, {"input": IMAGES, **flat, **straight, **by_size}
    yield "upsample_linear1d.vec", {"input": SERIES, "output_size": [2000], **straight, **by_size}
    yield "upsample_trilinear3d.vec", {"input": VOLUMES, **solid, **straight, **by_size}
    yield "upsample_nearest1d.vec", {"input": SERIES, "output_size": [2000], **by_size}
    yield "upsample_nearest2d.vec", {"input": IMAGES, **flat, **by_size}
    yield "upsample_nearest3d.vec", {"input": VOLUMES, **solid, **by_size}


def halves() -> Iterator[tuple[str, dict[str, Any]]]:
    given = h(1000, 1000)
    yield "mean.default", {"self": given}
    yield "mean.dim", {"self": given, "dim": [0]}
    yield "sum.default", {"self": given}
    for name, mean in product(("mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"), (0, 1)):
        yield f"{name}.default", {"self": given, "target": given, "reduction": mean}
    for name in ("rms_norm.default", "layer_norm.default"):
        yield name, {"input": given, "normalized_shape": [1000], "weight": h(1000)}


def movements() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "_to_copy.default", {"self": X, "dtype": "float64"}
    yield "cat.default", {"tensors": [X, X], "dim": 0}
    yield "stack.default", {"tensors": [X, X], "dim": 1}
    yield "constant_pad_nd.default", {"self": IMAGES, "pad": [1, 1, 1, 1]}
    for mode in ("reflect", "replicate", "circular", "constant"):
        yield "pad.default", {"self": IMAGES, "pad": [3, 3, 3, 3], "mode": mode}
    yield "embedding.default", {"weight": f(20000, 100), "indices": i(20000, 10, 1000)}
    yield "gather.default", {"self": X, "dim": 1, "index": INDICES}
    for places in ([i(1000, 1000)], [None, i(1000, 1000)], [i(1000, 1000, 1), i(1000, 1, 1000)]):
        yield "index.Tensor", {"self": X, "indices": places}
    for dim in (0, 1):
        yield "index_select.default", {"self": X, "dim": dim, "index": i(1000, 1000)}
    for values, adds in product((f(500, 1000), f(1)), (False, True)):
        yield (
            "index_put.default",
            {"self": X, "indices": [i(1000, 500)], "values": values, "accumulate": adds},
        )
    yield "scatter.src", {"self": X, "dim": 1, "index": INDICES, "src": X}
    yield "scatter.value", {"self": X, "dim": 1, "index": INDICES, "value": 1.0}
    yield "scatter_add.default", {"self": X, "dim": 0, "index": INDICES, "src": X}
    for reduce, own in product(["sum", "mean", "amax", "amin"], (False, True)):
        given = {"self": X, "dim": 0, "index": INDICES, "src": X}
        yield "scatter_reduce.two", {**given, "reduce": reduce, "include_self": own}
    for dim in (0, 1):
        yield "flip.default", {"self": X, "dims": [dim]}
        yield "roll.default", {"self": X, "shifts": [3], "dims": [dim]}
    yield "roll.default", {"self": X, "shifts": [3]}
    yield "roll.default", {"self": X, "shifts": [3, 5], "dims": [0, 1]}
    yield "pixel_shuffle.default", {"self": IMAGES, "upscale_factor": 2}
    yield "pixel_unshuffle.default", {"self": IMAGES, "downscale_factor": 2}
    yield "repeat.default", {"self": X, "repeats": [2, 2]}
    for dim in (1, None):
        yield "repeat_interleave.self_int", {"self": X, "repeats": 3, "dim": dim}
    yield "select_scatter.default", {"self": X, "src": ROW, "dim": 0, "index": 3}
    yield "slice_scatter.default", {"self": X, "src": f(500, 1000), "dim": 0, "start": 0, "end": 500}


CALLS = [
    Call(f"aten.{name}", arguments)
    for part in (elementwise, reductions, products, layers, halves, movements)
    for name, arguments in part()
]


@pytest.fixture(scope="module")
def peaks() -> list[Peak]:
    return measured(CALLS)


def said_of(call: Call, peak: Peak) -> SavedTensors:
    """What is said of a call whose float operands want gradients."""
    given: list[Given] = []

    def wire(argument: Any) -> Argument:
        if isinstance(argument, list) and any(one is None or is_tensor(one) for one in argument):
            return [wire(one) for one in argument]  # type: ignore[return-value]
        if not is_tensor(argument):
            return DType("float64") if argument == "float64" else argument  # type: ignore[no-any-return]
        given.append(argument)
        return Ref(len(given) - 1)

    arguments = {name: wire(argument) for name, argument in call.arguments.items()}
    names = [str(DTYPES[kind]).removeprefix("torch.") for kind, *_ in given]
    types = [ValueType(name, list(shape)) for name, (_, shape, *_) in zip(names, given, strict=True)]  # type: ignore[arg-type]
    made = [ValueType(name, shape) for name, shape in peak.results]  # type: ignore[arg-type]
    results = list(range(len(types), len(types) + len(made)))
    segment = segment_of(types, [(call.op, arguments, results)], made)
    wanted = {number for number, (kind, *_) in enumerate(given) if kind in "fh"}
    if wanted:
        wanted |= {number for number, kind in zip(results, made, strict=True) if "float" in kind.dtype}
    storage = storage_of(segment.nodes, segment.values, 1)
    return saved_by(segment.nodes[0], segment.values, 1, storage, wanted)


@pytest.mark.parametrize("at", range(len(CALLS)), ids=lambda at: f"{CALLS[at].op}-{at}")
def test_a_kernel_takes_no_more_than_is_said_of_it(at: int, peaks: list[Peak]) -> None:
    said, peak = said_of(CALLS[at], peaks[at]), peaks[at]
    assert said.extra_bytes + BESIDE >= peak.kept, CALLS[at]
    assert said.forward_bytes + said.extra_bytes + BESIDE >= peak.forward, CALLS[at]
    assert said.backward_bytes + BESIDE >= peak.backward, CALLS[at]


def test_each_op_that_may_need_temporary_memory_is_measured() -> None:
    computing = {name for name, op in opset.table().items() if op.group not in ELSEWHERE}
    assert computing <= {call.op for call in CALLS} | NOT_HERE
