"""What the JAX backend refuses before anything runs: the same as PyTorch's, by the same error."""

from __future__ import annotations

import random
import time
import tracemalloc

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, workers
from tests.support.hostile_programs import segment_of

from farflung.errors import GraphError
from farflung.opdag import wire
from farflung.opdag.buckets import BUCKETS
from farflung.opdag.graph import Argument, BatchSize, Bucket, Node, Ref, ValueType
from farflung.planner import plan_graph
from farflung.runtime.jax_backend import lowering
from farflung.runtime.jax_backend.backend import JaxBackend
from farflung.runtime.jax_backend.verify import verify_segment
from farflung.runtime.torch_backend.verify import verify_segment as verify_on_torch

ROW = ValueType("float32", [BatchSize(1), 4])


@pytest.mark.full
@pytest.mark.slow
def test_captured_graphs_pass_at_any_microbatch_size() -> None:
    for name in ("gpt2-mask-dropout", "gpt-dropout", "masked-pair", "resnet"):
        _, graph = captured(case(name), 2)
        for segment in plan_graph(graph, 2, 2, workers(3)).segments:
            for samples in (2, 5):
                verify_segment(segment, samples)


@pytest.mark.parametrize(
    "stated",
    [
        ValueType("float64", [BatchSize(1), 4]),
        ValueType("float32", [BatchSize(1), 5]),
        ValueType("float32", [2, 4, 1]),
        ValueType("float32", [BatchSize(2), 4]),
    ],
)
def test_a_declared_type_must_be_the_one_that_the_op_makes(stated: ValueType) -> None:
    segment = segment_of([ROW], [("tanh.default", {"self": Ref(0)}, [1])], [stated])
    with pytest.raises(GraphError, match=r"node 0 .*makes value 1 as float32\[2, 4\], the graph declares"):
        verify_segment(segment, 2)


def test_an_op_that_refuses_its_arguments_is_named() -> None:
    wrong: dict[str, Argument] = {"self": Ref(0), "dim0": 0, "dim1": 7}
    segment = segment_of([ROW], [("transpose.int", wrong, [1])], [ROW])
    with pytest.raises(GraphError, match=r"node 0 \(aten.transpose.int\) refuses"):
        verify_segment(segment, 2)


def test_batches_of_several_lengths_are_refused_and_plans_know() -> None:
    segment = segment_of([ROW], [("tanh.default", {"self": Ref(0)}, [1])], [ROW])
    shorter = msgspec.structs.replace(segment, buckets=[Bucket(4)])
    JaxBackend().verify(segment, 2)
    with pytest.raises(
        GraphError, match="the JAX backend runs batches of one length: give Pad one, or join wi"
    ):
        JaxBackend().verify(shorter, 2)
    assert BUCKETS in JaxBackend().offer().lacks


def test_an_op_that_has_no_lowering_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(lowering.table(), "aten.tanh.default")  # type: ignore[arg-type]
    assert lowering.lacks() == ("aten.tanh.default",)
    segment = segment_of([ROW], [("tanh.default", {"self": Ref(0)}, [1])], [ROW])
    with pytest.raises(GraphError, match=r"the JAX backend does not run aten.tanh.default"):
        verify_segment(segment, 2)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("split.Tensor", {"split_size": 1}),
        ("split.Tensor", {"split_size": 0}),
        ("split.Tensor", {"split_size": -5}),
        ("split.Tensor", {"split_size": 1, "dim": 9}),
        ("split_with_sizes.default", {"split_sizes": [1] * 4000}),
        ("chunk.default", {"chunks": 2**40}),
        ("unbind.int", {}),
        ("unbind.int", {"dim": -3}),
    ],
)
@pytest.mark.parametrize("extent", [2**24, 0])
def test_a_list_is_refused_before_it_is_made(op: str, arguments: dict[str, Argument], extent: int) -> None:
    """Also one of empty pieces: PyTorch makes as many as it is asked for."""
    if not extent and op != "chunk.default":
        return
    long = ValueType("float32", [extent])
    segment = segment_of([long], [(op, {"self": Ref(0), **arguments}, [1])], [ValueType("float32", [1])])
    for verify in (verify_segment, verify_on_torch):
        tracemalloc.start()
        with pytest.raises(GraphError):
            verify(segment, 2)
        assert tracemalloc.get_traced_memory()[1] < 2**21
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("full.default", {"size": [2**20, 2**20], "fill_value": 0}),
        ("arange.default", {"end": 2**40}),
        ("arange.default", {"end": float("inf")}),
        ("arange.default", {"end": float("nan")}),
        ("arange.start_step", {"start": 0, "end": 9, "step": 0}),
        ("rand.default", {"size": [-1]}),
        ("zeros.default", {"size": [2**40] * 8}),
    ],
)
def test_a_huge_array_is_refused_before_it_is_made(op: str, arguments: dict[str, Argument]) -> None:
    segment = segment_of([], [(op, arguments, [0])], [ValueType("float32", [3])])
    tracemalloc.start()
    with pytest.raises(GraphError):
        verify_segment(segment, 2)
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()


WIDE = ValueType("float32", [1, 1, 2**15, 2**16])


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("max_pool2d.default", {"kernel_size": [2**14, 2**14], "dilation": [2, 2]}),
        ("avg_pool2d.default", {"kernel_size": [1, 1]}),
        ("adaptive_avg_pool2d.default", {"output_size": [2**20, 2**20]}),
        ("repeat.default", {"repeats": [2**39, 2**39, 2**39, 2**39]}),
        ("roll.default", {"shifts": [1] * 16, "dims": [2] * 16}),
        ("pow.Tensor_Scalar", {"exponent": 2.0**39}),
        ("index_select.default", {"dim": 0, "index": Ref(0)}),
    ],
)
def test_large_values_cost_nothing_to_look_at(op: str, arguments: dict[str, Argument]) -> None:
    segment = segment_of([WIDE], [(op, {"self": Ref(0), **arguments}, [1])], [ValueType("float32", [3])])
    tracemalloc.start()
    before = time.process_time()
    with pytest.raises(GraphError):
        verify_segment(segment, 2)
    assert time.process_time() - before < 30
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


SMALL = ValueType("float32", [BatchSize(1), 1, 4, 4])
PADDED = {"kernel_size": [2**16, 2**16], "stride": [2**16, 2**16], "padding": [2**15, 2**15]}


@pytest.mark.parametrize(
    ("op", "arguments", "sizes"),
    [
        ("max_pool2d.default", PADDED, [1, 1]),
        ("avg_pool2d.default", PADDED, [1, 1]),
        ("pad.default", {"pad": [2**30, -(2**30), 0, 0], "mode": "replicate"}, [4, 4]),
        ("adaptive_avg_pool2d.default", {"output_size": [2**19, 1]}, [2**19, 1]),
        ("upsample_bilinear2d.vec", {"output_size": [1, 2**20], "align_corners": False}, [1, 2**20]),
    ],
)
def test_large_temporary_arrays_for_small_operands_are_refused(
    op: str, arguments: dict[str, Argument], sizes: list[int]
) -> None:
    """The gradient of a pool with such a padding would take 200 GB, of 32 elements."""
    extra: dict[str, Argument] = (
        {"scale_factors": None, "input": Ref(0)} if "upsample" in op else {"self": Ref(0)}
    )
    made = ValueType("float32", [BatchSize(1), 1, *sizes])
    segment = segment_of([SMALL], [(op, {**arguments, **extra}, [1])], [made])
    with pytest.raises(GraphError, match="temporary elements"):
        verify_segment(segment, 2)


def test_the_same_call_on_the_same_shapes_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 3000
    nodes = [("tanh.default", {"self": Ref(at)}, [at + 1]) for at in range(length)]
    segment = segment_of([ROW], nodes, [ROW] * length)  # type: ignore[arg-type]
    traced: list[Node] = []
    run = lowering.run

    def counting(node: Node, *rest: object) -> object:
        traced.append(node)
        return run(node, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lowering, "run", counting)
    verify_segment(segment, 2)
    assert len(traced) == 1


def test_equal_numbers_of_different_types_are_distinguished() -> None:
    """full(1) makes int64, full(1.0) float32, full(True) bool."""
    for value, other in ((1, 1.0), (1.0, True), (1, True)):
        nodes: list[tuple[str, dict[str, Argument], list[int]]] = [
            ("full.default", {"size": [2], "fill_value": number}, [at])
            for at, number in enumerate((value, other))
        ]
        types = {int: "int64", float: "float32", bool: "bool"}
        right = [ValueType(types[type(number)], [2]) for number in (value, other)]  # type: ignore[arg-type]
        verify_segment(segment_of([], nodes, right), 2)
        with pytest.raises(GraphError):
            verify_segment(segment_of([], nodes, [right[0], right[0]]), 2)


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_per_channel_tensors_must_match_the_channels(name: str) -> None:
    _, graph = captured(case("batch-norm"), 2)
    (segment,) = plan_graph(graph, 2, 2, workers(1)).segments
    node = next(
        n for n in segment.nodes if n.op.startswith("aten._native_batch_norm_legit") and name in n.arguments
    )
    short = dict(segment.values)
    value = node.arguments[name].id  # type: ignore[union-attr]
    short[value] = msgspec.structs.replace(short[value], shape=[1])
    with pytest.raises(GraphError, match="tensors for channels"):
        verify_segment(msgspec.structs.replace(segment, values=short), 2)


def test_changed_programs_are_judged_as_torch_judges_them() -> None:
    """What passes on one backend passes on the other: a plan may give a segment to either."""
    draw = random.Random(8)
    passed = 0
    for name in ("masked-pair", "gpt2-mask"):
        _, graph = captured(case(name), 2)
        program = wire.dump(plan_graph(graph, 2, 2, workers(2)).segments[0])
        for _ in range(400):
            data = bytearray(program)
            data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                segment = wire.load_segment(bytes(data), 2)
            except GraphError:
                continue
            verdicts = []
            for verify in (verify_segment, verify_on_torch):
                try:
                    verify(segment, 2)
                except GraphError as error:
                    assert str(error).isprintable()
                    verdicts.append(False)
                else:
                    verdicts.append(True)
            assert verdicts[0] == verdicts[1], segment
            passed += verdicts[0]
    assert passed > 0
