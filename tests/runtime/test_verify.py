from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, workers
from tests.support.hostile_programs import segment_of

from farflung.errors import GraphError
from farflung.opdag import wire
from farflung.opdag.graph import BatchSize, Ref, ValueType
from farflung.planner import plan_graph
from farflung.runtime.footprint import required_bytes
from farflung.runtime.torch_backend.codegen import Program
from farflung.runtime.torch_backend.verify import verify_segment

ROW = ValueType("float32", [BatchSize(1), 4])


def test_captured_graphs_pass_at_any_microbatch_size() -> None:
    for name in ("gpt2-mask-dropout", "gpt-dropout", "masked-pair"):
        _, graph = captured(case(name), 2)
        for segment in plan_graph(graph, 2, 2, workers(3)).segments:
            for samples in (1, 2, 5):
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
    wrong = {"self": Ref(0), "dim0": 0, "dim1": 7}
    segment = segment_of([ROW], [("transpose.int", wrong, [1])], [ROW])
    with pytest.raises(GraphError, match=r"node 0 \(aten.transpose.int\) refuses"):
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
def test_a_list_is_refused_before_it_is_made(op: str, arguments: dict[str, int]) -> None:
    long = ValueType("float32", [2**24])
    segment = segment_of([long], [(op, {"self": Ref(0), **arguments}, [1])], [ValueType("float32", [1])])
    tracemalloc.start()
    with pytest.raises(GraphError):
        verify_segment(segment, 2)
    assert tracemalloc.get_traced_memory()[1] < 2**20
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
def test_a_huge_tensor_is_refused_before_it_is_made(op: str, arguments: dict[str, object]) -> None:
    segment = segment_of([], [(op, arguments, [0])], [ValueType("float32", [3])])  # type: ignore[dict-item, list-item]
    with pytest.raises(GraphError):
        verify_segment(segment, 2)


def test_changed_programs_are_refused_or_compile() -> None:
    """What passes both checks can be generated: no change of a program ends in another error."""
    draw = random.Random(8)
    _, graph = captured(case("masked-pair"), 2)
    program = wire.dump(plan_graph(graph, 2, 2, workers(2)).segments[0])
    compiled = 0
    for _ in range(1500):
        data = bytearray(program)
        data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            segment = wire.load_segment(bytes(data), 2)
            verify_segment(segment, 2)
        except GraphError as error:
            assert str(error).isprintable()
            continue
        Program(segment, 2, train=True)
        Program(segment, 2, train=False)
        compiled += 1
    assert compiled > 0


def test_required_memory_counts_state_optimizer_and_tapes() -> None:
    _, graph = captured(case("chain"), 2)
    (segment,) = plan_graph(graph, 2, 2, workers(1)).segments
    one, two = (required_bytes(segment, 2, window) for window in (50, 51))
    parameters = 5 * (16 * 16 + 16) * 4
    assert one > 4 * parameters
    tape = two - one
    assert 45 * tape < required_bytes(segment, 4, 50) - one < 55 * tape
    frozen = msgspec.structs.replace(
        segment, inputs=[msgspec.structs.replace(entry, trainable=False) for entry in segment.inputs]
    )
    assert one - required_bytes(frozen, 2, 50) >= 3 * parameters  # and it keeps nothing


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_per_channel_tensors_must_match_the_channels(name: str) -> None:
    """BatchNorm's CPU kernels read it unchecked, past its end, where the meta kernels broadcast it."""
    _, graph = captured(case("batch-norm"), 2)
    (segment,) = plan_graph(graph, 2, 2, workers(1)).segments
    node = next(
        n for n in segment.nodes if n.op.startswith("aten._native_batch_norm_legit") and name in n.arguments
    )
    short = dict(segment.values)
    value = node.arguments[name].id  # type: ignore[union-attr]
    short[value] = msgspec.structs.replace(short[value], shape=[1])
    with pytest.raises(GraphError, match=f"{name} has shape"):
        verify_segment(msgspec.structs.replace(segment, values=short), 2)
