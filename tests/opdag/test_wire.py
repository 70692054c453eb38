"""What comes over the wire is hostile: it loads as a valid document or it is a GraphError, nothing else."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import workers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.opset_tables import NEW_OP, NEWER, newer_table

from farflung.errors import GraphError
from farflung.opdag import opset, wire
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph

Document = dict[str, Any]
Change = Callable[[Document], None]


@cache
def graph_of(name: str) -> Graph:
    return capture(case(name).build(), case(name).batch(2, 1)).graph


@cache
def segments_of(name: str) -> tuple[Segment, ...]:
    return tuple(plan_graph(graph_of(name), 2, 2, workers(2)).segments)


def as_document(document: Graph | Segment) -> Document:
    return msgspec.msgpack.decode(wire.dump(document), strict=False)


def load(document: Document) -> Graph:
    return wire.load_graph(msgspec.msgpack.encode(document), 2)


def refuse(name: str, change: Change, message: str = ".") -> None:
    document = as_document(graph_of(name))
    load(document)
    change(document)
    with pytest.raises(GraphError, match=message):
        load(document)


def refuse_segment(name: str, number: int, change: Change, message: str) -> None:
    document = as_document(segments_of(name)[number])
    wire.load_segment(msgspec.msgpack.encode(document), 2)
    change(document)
    with pytest.raises(GraphError, match=message):
        wire.load_segment(msgspec.msgpack.encode(document), 2)


def node_of(document: Document, op: str) -> list[Any]:
    return next(node for node in document["nodes"] if node[1] == op)


@pytest.mark.parametrize("name", ["gpt", "masked-pair", "batch-norm"])
def test_round_trip(name: str) -> None:
    graph = graph_of(name)
    assert wire.load_graph(wire.dump(graph), 2) == graph
    for segment in segments_of(name):
        assert wire.load_segment(wire.dump(segment), 2) == segment


def test_a_graph_has_kilobytes() -> None:
    assert len(wire.dump(graph_of("gpt"))) < 20_000


@pytest.mark.parametrize(
    "dtype",
    [
        "float32 if print(1) else float32",
        "__import__('os').system('id')",
        "complex64",
        "",
        "float32\n",
        7,
        None,
        ["float32"],
    ],
)
def test_hostile_dtypes(dtype: object) -> None:
    def in_a_value(document: Document) -> None:
        document["values"][0][0] = dtype

    def in_an_argument(document: Document) -> None:
        node_of(document, "aten._to_copy.default")[2]["dtype"] = {"k": "t", "name": dtype}

    refuse("masked-pair", in_a_value)
    refuse("masked-pair", in_an_argument)


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",
        "aten.set_.source_Storage",
        "transformers.grouped_mm.default",
        "aten.add.Tensor); import os; (",
        "prims.device_put.default",
        "aten.__class__.__init__",
        "os.system.default",
        "aten.add",
        "add.Tensor",
        "",
        "a" * 200,
    ],
)
def test_ops_outside_the_opset(op: str) -> None:
    refuse("chain", lambda document: document["nodes"][0].__setitem__(1, op))


@pytest.mark.parametrize("identifier", [-1, -(2**63), 2**31, 2**64 - 1, 999_999, 1.0, "0", None, True])
def test_hostile_ids(identifier: object) -> None:
    def read(document: Document) -> None:
        node_of(document, "aten.tanh.default")[2]["self"]["id"] = identifier

    def written(document: Document) -> None:
        document["nodes"][0][3] = [identifier]

    def loss(document: Document) -> None:
        document["loss"] = identifier

    def of_an_input(document: Document) -> None:
        document["inputs"][0][0] = identifier

    for change in (read, written, loss, of_an_input):
        refuse("chain", change)


def test_every_value_is_defined_once_and_before_its_use() -> None:
    def twice(document: Document) -> None:
        document["nodes"][1][3] = document["nodes"][0][3]

    def backwards(document: Document) -> None:
        document["nodes"].reverse()

    def same_number(document: Document) -> None:
        document["nodes"][1][0] = document["nodes"][0][0]

    refuse("chain", twice, "defined twice")
    refuse("chain", backwards, "before it is made")
    refuse("chain", same_number, "two nodes")


@pytest.mark.parametrize(
    "shape",
    [
        [-1],
        [2**40],
        [2**20, 2**20],
        [0, 2**31, 2],
        [1] * 9,
        [{"k": "b", "factor": -1, "offset": 9}],
        [2.5],
        ["2"],
    ],
)
def test_hostile_sizes(shape: list[object]) -> None:
    refuse("chain", lambda document: document["values"][0].__setitem__(1, shape))


def test_arguments_are_checked_against_the_schema() -> None:
    def argument(name: str, value: object) -> Change:
        return lambda document: node_of(document, "aten.linear.default")[2].__setitem__(name, value)

    refuse("chain", argument("out", None), "no argument 'out'")
    refuse("chain", argument("bias); import os", None), "no argument")
    refuse("chain", argument("weight", 3), "must be Tensor")
    refuse("chain", argument("weight", None), "must be Tensor")
    refuse("chain", argument("bias", [{"k": "v", "id": 0}]), r"must be Tensor\?")
    refuse("chain", lambda d: node_of(d, "aten.linear.default")[2].pop("weight"), "is missing")
    refuse("chain", lambda d: d["nodes"][0][3].append(-1), "results")
    refuse("chain", lambda d: d["nodes"][0].__setitem__(3, [-1]), "makes nothing")
    refuse("masked-pair", lambda d: node_of(d, "aten.relu.default")[2].__setitem__("self", "v0"))


def test_strings_are_among_the_schemas_words() -> None:
    for word in ("sigmoid", "none'", "none|tanh", ""):
        refuse("gpt", lambda d, w=word: node_of(d, "aten.gelu.default")[2].update(approximate=w), "str")


def test_lists_and_counts_are_bounded() -> None:
    def long_list(document: Document) -> None:
        node_of(document, "aten.unsqueeze.default")[2]["dim"] = list(range(5000))

    def many_nodes(document: Document) -> None:
        document["nodes"] = [document["nodes"][0]] * 100_001

    refuse("masked-pair", long_list)
    refuse("chain", many_nodes, "100000")


def test_constants_have_the_bytes_they_state() -> None:
    def constant(dtype: str, shape: list[int], data: bytes, stated: list[object]) -> Change:
        def change(document: Document) -> None:
            document["values"].append(stated)
            document["inputs"].append([len(document["values"]) - 1, "constant", "k", False])
            document["constants"]["k"] = {"dtype": dtype, "shape": shape, "data": data}

        return change

    document = as_document(graph_of("chain"))
    constant("float32", [2], bytes(8), ["float32", [2]])(document)
    load(document)
    refuse("chain", constant("float32", [2], bytes(7), ["float32", [2]]), "bytes")
    refuse("chain", constant("float32", [2**31], b"", ["float32", [2]]), "type")
    refuse("chain", constant("int64", [2], bytes(16), ["float32", [2]]), "type")
    refuse("chain", constant("uint8", [2**24 + 1], bytes(2**24 + 1), ["uint8", [2**24 + 1]]), "more than")
    refuse("chain", lambda d: d["constants"].update(k={"dtype": "bool", "shape": [], "data": b"1"}))


def test_state_is_consistent() -> None:
    refuse("batch-norm", lambda d: d["mutations"].update(nobody=d["loss"]), "mutation")
    refuse("batch-norm", lambda d: d["mutations"].update(seen=d["loss"]), "mutation")
    refuse("chain", lambda d: d["inputs"][1].__setitem__(2, d["inputs"][0][2]), "same name")
    refuse("chain", lambda d: d["inputs"][-1].__setitem__(3, True), "trainable")
    refuse("chain", lambda d: d["ties"].update(other="nobody"), "tie")
    refuse("chain", lambda d: d.update(loss=d["nodes"][0][3][0]), "scalar")


def test_segments_are_consistent() -> None:
    refuse_segment("chain", 0, lambda d: d["owned"].append("nobody"), "owns")
    refuse_segment("chain", 0, lambda d: d["mutations"].update(nobody=d["sends"][0]), "mutat")
    refuse_segment("chain", 0, lambda d: d["differentiable"].append(d["nodes"][0][3][0] + 1), "border")
    refuse_segment("chain", 0, lambda d: d.update(loss=d["sends"][0]), "scalar")
    refuse_segment("chain", 0, lambda d: d["sends"].append(999_999), "before it is made")
    refuse_segment("chain", 1, lambda d: d.update(receives=[]), "before it is made")
    refuse_segment("gpt", 1, lambda d: d["values"][d["receives"][0]].__setitem__(0, "int64"), "floating")


def test_versions() -> None:
    newer = "install a newer farflung"
    refuse("chain", lambda d: d.update(version=4), f"format version 4.*{newer}")
    refuse("chain", lambda d: d.update(version=4, opset={"anything": [1]}, more=1), newer)
    refuse("chain", lambda d: d.update(opset=opset.version() + 1), f"needs opset version.*{newer}")
    refuse("chain", lambda d: d.update(opset=0), "cannot be read")
    refuse("chain", lambda d: d.update(version=0), "cannot be read")
    refuse("chain", lambda d: d.update(version=1), "cannot be read")  # its opset would be a hash
    refuse("chain", lambda d: d.update(version=1, opset="0" * 16), "capture the model again")
    refuse("chain", lambda d: d.update(surprise=1))
    refuse("chain", lambda d: d.pop("ties"))


def test_a_document_states_the_opset_version_that_it_needs() -> None:
    graph = graph_of("chain")
    assert graph.opset == 1 and [segment.opset for segment in segments_of("chain")] == [1, 1]
    document = as_document(graph)
    node_of(document, "aten.tanh.default")[1] = NEW_OP
    with newer_table():
        with pytest.raises(GraphError, match=f"came with opset version {NEWER}, the OP-DAG states 1"):
            load(document)
        assert load({**document, "opset": NEWER}).opset == NEWER
    refuse("chain", lambda d: d.update(document, opset=1), "not in the opset")


def test_format_1_is_read_as_todays() -> None:
    for name in ("gpt", "batch-norm"):
        document = {**as_document(graph_of(name)), "version": 1, "opset": opset.schema_hash(1)}
        assert load(document) == graph_of(name)
        segment = segments_of(name)[0]
        document = {**as_document(segment), "version": 1, "opset": opset.schema_hash(1)}
        assert wire.load_segment(msgspec.msgpack.encode(document), 2) == segment


@pytest.mark.parametrize("batch", [0, -1, 2**21])
def test_microbatches_are_bounded(batch: int) -> None:
    with pytest.raises(GraphError, match="microbatch"):
        wire.load_graph(wire.dump(graph_of("chain")), batch)


def test_truncated_and_garbage_bytes() -> None:
    data = wire.dump(graph_of("chain"))
    for end in range(0, len(data), 7):
        with pytest.raises(GraphError):
            wire.load_graph(data[:end], 2)
    for garbage in (b"", b"\xc1", b"\x00", data + b"\x00", b"\x91" * 10_000, bytes(range(256)), b"null"):
        with pytest.raises(GraphError):
            wire.load_graph(garbage, 2)


def test_lengths_that_are_only_claimed_take_no_memory() -> None:
    claims = [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ]
    tracemalloc.start()
    for field in Graph.__struct_fields__:
        for claim in claims:
            key = msgspec.msgpack.encode(field)
            with pytest.raises(GraphError):
                wire.load_graph(b"\x81" + key + claim, 2)
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()


def test_2000_changed_bytes_are_refused_or_harmless() -> None:
    draw = random.Random(3)
    graph, segment = wire.dump(graph_of("masked-pair")), wire.dump(segments_of("masked-pair")[0])
    refused = 0
    for number in range(2000):
        data = bytearray(segment if number % 2 else graph)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            (wire.load_segment if number % 2 else wire.load_graph)(bytes(data), 2)
        except GraphError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            refused += 1
    assert refused > 1000


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.lists(st.integers(-3, 3), max_size=3),
    st.just({"k": "v", "id": 0}),
    st.just({"k": "b", "factor": 1, "offset": 0}),
    st.just({"k": "t", "name": "float32"}),
    st.just({}),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a document of lists and dicts."""
    if not isinstance(document, dict | list):
        return []
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    return [found for key, value in entries for found in ((*path, key), *places(value, (*path, key)))]


def changed(document: Document, path: tuple[Any, ...], junk: object) -> Document:
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = junk
    return document


@settings(max_examples=200)
@given(data=st.data(), name=st.sampled_from(["chain", "masked-pair", "batch-norm"]), junk=JUNK)
def test_any_field_may_hold_anything(data: st.DataObject, name: str, junk: object) -> None:
    document = as_document(graph_of(name))
    path = data.draw(st.sampled_from(places(document)))
    try:
        graph = load(changed(document, path, junk))
    except GraphError:
        return
    assert wire.load_graph(wire.dump(graph), 2) == graph
