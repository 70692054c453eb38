"""One graph at several lengths: each bucket is what is captured there, and received ones are checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lengths import LENGTHS, SYMBOLS, Branching, Positions, Table, classifier, language
from torch import Tensor, nn

from farflung.client.capture.check import capture_shapes
from farflung.errors import CaptureError, GraphError
from farflung.opdag import wire
from farflung.opdag.buckets import bucket_of, in_bucket, in_buckets, input_shapes, lengths_of, with_buckets
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.opdag.partition import Partition, legal_positions

BATCH = 2
JOBS = {"gpt": language, "bert": classifier}
OF_JOBS = pytest.mark.parametrize("kind", JOBS)


@cache
def graph(kind: str = "gpt") -> Graph:
    return capture_shapes(JOBS[kind]()).graph


def captured(model: nn.Module, length: int, **more: Tensor) -> Graph:
    symbols = torch.randint(1, SYMBOLS, (BATCH, length), generator=torch.Generator().manual_seed(0))
    return capture(model, {"input_ids": symbols, "labels": symbols, **more}, several_lengths=True).graph


def by_number(found: Graph) -> dict[int, Any]:
    return {node.number: node for node in found.nodes}


def test_each_bucket_is_the_graph_that_is_captured_at_its_length() -> None:
    torch.manual_seed(0)
    model = Table()
    alone = {length: captured(model, length) for length in LENGTHS}
    *shorter, longest = LENGTHS
    made = with_buckets(longest, alone[longest], {length: alone[length] for length in shorter})
    assert lengths_of(made, longest) == LENGTHS and made.version == 3
    for found, length in zip(in_buckets(made), reversed(LENGTHS), strict=True):
        assert found.values == alone[length].values and found.constants == alone[length].constants
        assert by_number(found) == by_number(alone[length]) and not found.buckets
    assert any(bucket.arguments for bucket in made.buckets) and any(b.constants for b in made.buckets)


def test_a_graph_of_one_length_stays_as_it_is() -> None:
    alone = captured(Table(), 8)
    assert with_buckets(8, alone, {}) is alone and in_bucket(alone, 0) is alone
    assert b"buckets" not in wire.dump(alone) and alone.version == 2


@pytest.mark.cases(1)
@OF_JOBS
def test_the_wire_carries_buckets(kind: str) -> None:
    assert wire.load_graph(wire.dump(graph(kind)), BATCH) == graph(kind)


@OF_JOBS
@settings(max_examples=15)
@given(at=st.integers(0, 2), drawn=st.lists(st.floats(0, 1), max_size=3))
def test_segments_in_a_bucket_are_those_of_the_graph_in_it(kind: str, at: int, drawn: list[float]) -> None:
    whole = graph(kind)
    places = [n for n, legal in enumerate(legal_positions(whole)) if legal and 0 < n < len(whole.nodes)]
    cuts = sorted({places[int(share * (len(places) - 1))] for share in drawn})
    segments = Partition(whole, cuts, BATCH).segments()
    for segment in segments:
        assert wire.load_segment(wire.dump(segment), BATCH) == segment
        sized, expected = in_bucket(segment, at), in_bucket(whole, at)
        assert sized.values == {value: expected.values[value] for value in sized.values}
        assert all(by_number(expected)[node.number] == node for node in sized.nodes)
        assert all(expected.constants[name] == one for name, one in sized.constants.items())


@OF_JOBS
def test_the_first_segment_is_fed_so_that_it_knows_the_bucket(kind: str) -> None:
    whole = graph(kind)
    for at, legal in enumerate(legal_positions(whole)):
        if legal and 0 < at < len(whole.nodes):
            first = Partition(whole, [at], BATCH).segments()[0]
            assert any(entry.kind == "input" for entry in first.inputs)


def test_the_shapes_of_a_microbatch_say_its_bucket() -> None:
    known = input_shapes(graph(), BATCH)
    for bucket, length in enumerate(reversed(LENGTHS)):
        shape = (BATCH, length)
        found = {"input_ids": shape, "labels": shape, "farflung_loss_weight": (BATCH,)}
        assert bucket_of(known, found) == bucket
    assert bucket_of(known, {"input_ids": (BATCH, 9), "labels": (BATCH, 9)}) is None


def test_a_model_that_computes_otherwise_at_another_length_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"otherwise at length 8 than at 32 \(node \d+ is aten.tanh.*one length"
    ):
        capture_shapes(language(model=Branching()))


class Blind(nn.Module):
    """Has inputs of the same shapes at any length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean()


def test_lengths_that_no_input_shows_are_refused() -> None:
    one = capture(Blind(), {"x": torch.ones(BATCH, 4)}).graph
    with pytest.raises(CaptureError, match="no input of the model has another shape at length 8 than at 16"):
        with_buckets(16, one, {8: one})


def test_a_parameter_that_has_another_shape_is_refused() -> None:
    wide, narrow = captured(Positions(16), 8), captured(Positions(8), 4)
    with pytest.raises(CaptureError, match=r"parameter positions.weight has another shape"):
        with_buckets(8, wide, {4: narrow})


def refuse(change: Callable[[dict[str, Any]], object], message: str) -> None:
    document = msgspec.msgpack.decode(wire.dump(graph()), strict=False)
    change(document)
    with pytest.raises(GraphError, match=message):
        wire.load_graph(msgspec.msgpack.encode(document), BATCH)


def test_received_buckets_change_nothing_but_sizes() -> None:
    reading = {node.number for node in graph().nodes if node.reads()}
    node = next(number for number in graph().buckets[0].arguments if number in reading)
    parameter = next(entry.value for entry in graph().inputs_of("parameter"))
    made = next(value for value in graph().buckets[0].values)
    refuse(lambda d: d.update(version=2), "not in order, or its format has none")
    refuse(lambda d: d["buckets"].reverse(), "not in order")
    refuse(lambda d: d["buckets"].append(d["buckets"][-1]), "not in order")
    refuse(lambda d: d["buckets"][0]["values"].update({parameter: [1]}), "length 16 resizes what it may not")
    refuse(lambda d: d["buckets"][1]["values"].update({10**5: [1]}), "length 8 resizes what it may not")
    refuse(lambda d: d["buckets"][0]["values"].update({made: [10**6]}), f"no shorter: value {made} is larger")
    refuse(lambda d: d["buckets"][0]["values"].update({made: [-1]}), "outside 0 to")
    refuse(lambda d: d["buckets"][0]["arguments"].update({10**5: {}}), "resizes what it may not")
    refuse(lambda d: d["buckets"][0]["arguments"].update({node: {}}), f"lets node {node} read other values")
    refuse(lambda d: d["buckets"][0]["constants"].update(other={}), "cannot be read")
    refuse(lambda d: d["buckets"][0].update(length=0), "cannot be read")
    refuse(lambda d: d.update(buckets=[d["buckets"][0]] * 16), "cannot be read")


def test_a_received_segment_is_checked_in_each_bucket() -> None:
    places = [n for n, legal in enumerate(legal_positions(graph())) if legal and 0 < n < len(graph().nodes)]
    segment = Partition(graph(), [places[len(places) // 2]], BATCH).segments()[1]
    bucket = next(one for one in segment.buckets if one.arguments)
    number, arguments = next(iter(bucket.arguments.items()))
    wrong = msgspec.structs.replace(bucket, arguments={**bucket.arguments, number: {**arguments, "more": 1}})
    rest = [wrong if one is bucket else one for one in segment.buckets]
    with pytest.raises(GraphError, match=f"node {number}"):
        wire.load_segment(wire.dump(msgspec.structs.replace(segment, buckets=rest)), BATCH)
