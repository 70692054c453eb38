from __future__ import annotations

import io
import re
import tokenize

import msgspec
import pytest
import torch
from benchmarks.zoo import CASES, Case
from benchmarks.zoo.side_by_side import captured, workers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile_programs import segment_of

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.graph import DType, Ref, ValueType
from farflung.planner import plan_graph
from farflung.runtime.torch_backend.codegen import Program, resolve

torch.set_num_threads(1)

OUR_NAMES = re.compile(r"v\d+|[oc]\d+|_|run|state|values|seed|reseed|def|return|del")
KEYWORDS = {name for op in opset.table().values() for name in op.parameters}
HARMLESS = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def require_harmless(source: str) -> None:
    """Every token is a name that we made, an integer, an argument's name of the table, or punctuation."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            assert OUR_NAMES.fullmatch(token.string) or token.string in KEYWORDS, token
        elif token.type == tokenize.NUMBER:
            assert token.string.isdecimal(), token
        elif token.type == tokenize.OP:
            assert token.string in "()[],=-:", token
        else:
            assert token.type in HARMLESS, token


@pytest.mark.cases(5)
@pytest.mark.parametrize("case", CASES, ids=lambda entry: entry.name)
def test_source_of_captured_models_is_harmless(case: Case) -> None:
    _, graph = captured(case, 2)
    for segment in plan_graph(graph, 2, 2, workers(2)).segments:
        for train in (True, False):
            require_harmless(Program(segment, 2, train).source)


SCALARS = st.one_of(st.floats(), st.integers(-(2**40), 2**40), st.booleans())


@settings(max_examples=50)
@given(scalar=SCALARS, numbers=st.lists(st.integers(-(2**40), 2**40), max_size=4), name=st.text(max_size=20))
def test_nothing_from_the_wire_is_in_the_source(scalar: float, numbers: list[int], name: str) -> None:
    anything = ValueType("float32", [2])
    segment = segment_of(
        [anything],
        [
            ("mul.Scalar", {"self": Ref(0), "other": scalar}, [1]),
            ("full.default", {"size": numbers, "fill_value": scalar, "dtype": DType("float64")}, [2]),
            ("gelu.default", {"self": Ref(1), "approximate": "tanh"}, [3]),
        ],
        [anything] * 3,
    )
    named = msgspec.structs.replace(
        segment, inputs=[msgspec.structs.replace(entry, name=name or "x") for entry in segment.inputs]
    )
    program = Program(named, 2, train=True)
    require_harmless(program.source)
    assert "tanh" not in program.source
    assert "float" not in program.source


def test_floats_reach_the_op_exactly() -> None:
    row = ValueType("float64", [1])
    numbers = [0.1, -0.0, 1e-300, 5e-324, float("inf")]
    nodes = [("mul.Scalar", {"self": Ref(0), "other": number}, [at + 1]) for at, number in enumerate(numbers)]
    segment = segment_of([row], [*nodes, ("cat.default", {"tensors": [Ref(n + 1) for n in range(5)]}, [6])],
                         [row] * 5 + [ValueType("float64", [5])])  # fmt: skip
    (result,) = Program(segment, 1, train=True).run([], [torch.ones(1, dtype=torch.float64)], 0)
    assert [repr(number) for number in result.tolist()] == [repr(number) for number in numbers]


def test_only_ops_of_the_table_are_resolved() -> None:
    for name in ("aten.from_file.default", "aten.save.default", "os.system.default", "aten.add", ""):
        with pytest.raises(GraphError):
            resolve(name)


def test_generated_code_has_no_builtins() -> None:
    segment = segment_of(
        [ValueType("float32", [2])], [("tanh.default", {"self": Ref(0)}, [1])], [ValueType("float32", [2])]
    )
    assert Program(segment, 2, train=True).run.__globals__["__builtins__"] == {}


def test_evaluation_leaves_dropout_out() -> None:
    row = ValueType("float32", [64])
    segment = segment_of(
        [row], [("native_dropout.default", {"input": Ref(0), "p": 0.5, "train": True}, [1, -1])], [row]
    )
    x = torch.ones(64)
    (trained,) = Program(segment, 2, train=True).run([], [x], 7)
    (again,) = Program(segment, 2, train=True).run([], [x], 7)
    (other,) = Program(segment, 2, train=True).run([], [x], 8)
    (evaluated,) = Program(segment, 2, train=False).run([], [x], 7)
    assert torch.equal(trained, again)
    assert not torch.equal(trained, other)
    assert torch.equal(evaluated, x)
    assert set(trained.tolist()) == {0.0, 2.0}
