"""The table, held against torch's own schemas."""

from __future__ import annotations

import pytest
import torch

from farflung.opdag import opset
from farflung.opdag.graph import Node
from farflung.runtime.torch_backend.codegen import resolve

ABSENT = {
    "device",
    "layout",
    "pin_memory",
    "memory_format",
    "non_blocking",
    "sparse",
    "sparse_grad",
    "generator",
    "copy",
}
OPS = sorted(opset.table())


@pytest.mark.parametrize("name", OPS)
def test_arguments_are_torchs(name: str) -> None:
    op, schema = opset.table()[name], resolve(name)._schema
    theirs = [argument for argument in schema.arguments if argument.name not in ABSENT]
    assert list(op.parameters) == [argument.name for argument in theirs]
    for argument in theirs:
        ours = op.parameters[argument.name]
        assert ours.required == (not argument.has_default_value()), argument.name
        text = str(argument.type)
        assert ours.optional == text.startswith("Optional["), argument.name
        assert ours.is_list == ("List[" in text), argument.name
        if ours.base == "Operand":
            assert "Tensor" in text
        if "Tensor" in text:
            assert ours.base in ("Tensor", "Tensor?", "Operand"), argument.name


@pytest.mark.parametrize("name", OPS)
def test_results_are_torchs(name: str) -> None:
    op, schema = opset.table()[name], resolve(name)._schema
    if op.results == opset.MANY:
        assert [str(result.type) for result in schema.returns] == ["List[Tensor]"]
    else:
        assert [str(result.type) for result in schema.returns] == ["Tensor"] * op.results


@pytest.mark.parametrize("name", OPS)
def test_no_op_writes_its_arguments_or_touches_anything_else(name: str) -> None:
    operator = resolve(name)
    assert not operator._schema.is_mutable
    assert not {"filename", "fn", "file"} & {argument.name for argument in operator._schema.arguments}


@pytest.mark.parametrize("name", OPS)
def test_random_ops_are_torchs(name: str) -> None:
    tagged = torch.Tag.nondeterministic_seeded in resolve(name).tags
    assert opset.table()[name].random == tagged


@pytest.mark.parametrize("name", [name for name in OPS if opset.table()[name].random])
def test_random_ops_draw_unless_they_are_told_not_to(name: str) -> None:
    op = opset.table()[name]

    def draws(**arguments: float | bool | None) -> bool:
        return op.draws(Node(0, name, dict(arguments), [0]))

    if name == "aten.native_dropout.default":
        assert draws(p=0.1, train=True)
        assert draws(p=0.1, train=None)
        assert not draws(p=0.0, train=True)
        assert not draws(p=0.1, train=False)
    elif name == "aten.scaled_dot_product_attention.default":
        assert draws(dropout_p=0.1)
        assert not draws(dropout_p=0.0)
        assert not draws()
    else:
        assert draws()


def test_the_version_is_a_hash_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    before = opset.version()
    opset.version.cache_clear()
    monkeypatch.setitem(opset.GROUPS, "view", "")
    try:
        assert opset.version() != before
    finally:
        monkeypatch.undo()
        opset.version.cache_clear()
    assert opset.version() == before
