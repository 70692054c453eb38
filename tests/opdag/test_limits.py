"""Huge but valid documents: what is at a limit loads, what is one over it is refused with the limit."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Sequence

import msgspec
import pytest
from tests.support.memory import ROOT

from farflung.errors import GraphError
from farflung.opdag import wire
from farflung.opdag.graph import (
    Argument,
    BatchSize,
    Constant,
    Dimension,
    DTypeName,
    Input,
    Node,
    Ref,
    ValueType,
)
from farflung.opdag.segment import Segment
from farflung.runtime.torch_backend.verify import verify_segment

MOST_NODES = 100_000


def chain(
    nodes: Sequence[Node], types: Sequence[ValueType], constants: dict[str, Constant] | None = None
) -> bytes:
    """A segment that reads value 0 and sends the last one."""
    held = constants or {}
    inputs = [Input(0, "input", "x")]
    inputs += [Input(len(types) + at, "constant", name) for at, name in enumerate(held)]
    of_constants = [ValueType(constant.dtype, list(constant.shape)) for constant in held.values()]
    segment = Segment(
        version=wire.FORMAT_VERSION, opset=1, number=0, values=dict(enumerate([*types, *of_constants])),
        inputs=inputs, owned=[], receives=[], nodes=list(nodes), sends=[len(types) - 1], differentiable=[],
        loss=None, mutations={}, constants=held,
    )  # fmt: skip
    return wire.dump(segment)


def negations(count: int, type: ValueType) -> bytes:
    """So many nodes in a row, with values of one type."""
    nodes = [Node(at, "aten.neg.default", {"self": Ref(at)}, [at + 1]) for at in range(count)]
    return chain(nodes, [type] * (count + 1))


def of(shape: list[Dimension], dtype: DTypeName = "int8") -> ValueType:
    return ValueType(dtype, shape)


@pytest.mark.slow
def test_nodes() -> None:
    data = negations(MOST_NODES, of([2]))
    assert len(wire.load_segment(data, 2).nodes) == MOST_NODES
    with pytest.raises(GraphError, match=r"length <= 100000.*nodes"):
        wire.load_segment(negations(MOST_NODES + 1, of([2])), 2)


def test_rank() -> None:
    verify_segment(wire.load_segment(negations(2, of([1, 2] * 4)), 2), 2)
    with pytest.raises(GraphError, match="length <= 8"):
        wire.load_segment(negations(2, of([1] * 9)), 2)


@pytest.mark.parametrize(
    ("shape", "batch"),
    [([2**31], 1), ([2**16, 2**15], 1), ([2**8] * 3 + [2**7], 1), ([BatchSize(2**21), 2], 512)],
)
def test_elements_of_a_value(shape: list[Dimension], batch: int) -> None:
    # On the meta device they take no memory, so a worker can say how much they would.
    verify_segment(wire.load_segment(negations(3, of(shape)), batch), batch)
    larger = [*shape[:-1], shape[-1] + 1] if isinstance(shape[-1], int) else shape
    assert larger != shape
    with pytest.raises(GraphError, match="outside 0 to 2147483648 elements"):
        wire.load_segment(negations(3, of(larger)), batch)
    if batch > 1:
        with pytest.raises(GraphError, match="outside 0 to 2147483648 elements"):
            wire.load_segment(negations(3, of(shape)), batch + 1)


def test_bytes_of_constants() -> None:
    def held(sizes: list[int]) -> bytes:
        constants = {f"k{at}": Constant("uint8", [size], bytes(size)) for at, size in enumerate(sizes)}
        nodes = [Node(0, "aten.neg.default", {"self": Ref(0)}, [1])]
        return chain(nodes, [of([2]), of([2])], constants)

    assert sum(len(c.data) for c in wire.load_segment(held([2**23, 2**23]), 2).constants.values()) == 2**24
    with pytest.raises(GraphError, match="constants take more than 16777216 bytes"):
        wire.load_segment(held([2**23, 2**23, 1]), 2)


def test_numbers_in_a_list() -> None:
    def rolled(count: int) -> bytes:
        arguments: dict[str, Argument] = {"self": Ref(0), "shifts": [1] * count, "dims": [0] * count}
        return chain([Node(0, "aten.roll.default", arguments, [1])], [of([2]), of([2])])

    verify_segment(wire.load_segment(rolled(16), 2), 2)
    with pytest.raises(GraphError, match=r"'shifts' must be int\[\] of at most 16"):
        wire.load_segment(rolled(17), 2)
    parts: dict[str, Argument] = {"self": Ref(0), "split_sizes": [1] * 4096}
    data = chain([Node(0, "aten.split_with_sizes.default", parts, [1] + [-1] * 4095)], [of([4096]), of([1])])
    verify_segment(wire.load_segment(data, 2), 2)


def test_bytes_of_a_document() -> None:
    with pytest.raises(GraphError, match=f"over the limit of {wire.MAXIMUM_BYTES}"):
        wire.load_segment(bytes(wire.MAXIMUM_BYTES + 1), 2)


@pytest.mark.parametrize("field", ["mutations", "ties", "constants", "arguments", "values"])
def test_dicts_are_bounded_before_they_are_built(field: str) -> None:
    """A map of millions of entries of three bytes each would take gigabytes."""
    count = 2**21
    many = b"\xdf" + count.to_bytes(4, "big") + b"\xa1a\x00" * count
    if field == "arguments":
        field, many = "nodes", b"\x91\x94\x00\xa1a" + many + b"\x90"
    version = msgspec.msgpack.encode("version") + msgspec.msgpack.encode(wire.FORMAT_VERSION)
    data = b"\x82" + version + msgspec.msgpack.encode(field) + many
    load = wire.load_segment if field == "values" else wire.load_graph
    tracemalloc.start()
    try:
        with pytest.raises(GraphError, match="length <="):
            load(data, 2)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


WORST = """
import msgspec, psutil
from tests.support.memory import peak_bytes
from farflung.errors import GraphError
from farflung.opdag import wire

element = {element!r}
row = b"\\x94\\x00\\xb0aten.neg.default\\x81\\xa4self\\xdc\\x10\\x00" + element * 4096 + b"\\x91\\x01"
rows = (wire.MAXIMUM_BYTES - 4096) // len(row)
data = b"\\x83\\xa7version" + msgspec.msgpack.encode(wire.FORMAT_VERSION) + b"\\xa5opset\\x01"
data += b"\\xa5nodes\\xdd" + rows.to_bytes(4, "big") + row * rows
before = psutil.Process().memory_info().rss
try:
    wire.load_segment(data, 2)
except GraphError as error:
    assert "missing" in str(error), error
else:
    raise AssertionError
print((peak_bytes() - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "element", [b"\xcd\x03\xe8", b"\xcb" + bytes(7) + b"\x01"], ids=["integers", "floats"]
)
def test_the_dearest_document_takes_less_than_a_gigabyte(element: bytes) -> None:
    """Of 64 MiB, decoded to the end: many small numbers are what grows most."""
    argv = [sys.executable, "-c", WORST.format(element=element)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1024
