"""The table, held against torch's own schemas."""

from __future__ import annotations

import pytest
import torch
from tests.support.opset_tables import NEW_OP, NEWER, another_table, newer_table

from farflung.errors import GraphError
from farflung.opdag import opset
from farflung.opdag.graph import BatchSize, Node
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
VERSIONS = {1: "94a34ad3db259367", 2: "29d8b2f7ef9f641f", 3: "cb5c2d3097f4ffc9"}
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
def test_random_ops_draw_unless_their_arguments_prevent_it(name: str) -> None:
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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_what_it_was(version: int) -> None:
    message = f"a line of version {version} was changed, or a new line lacks its `since`"
    assert opset.schema_hash(version) == VERSIONS[version], message


def test_versions_follow_one_another() -> None:
    assert {op.since for op in opset.table().values()} == set(range(1, opset.version() + 1))


def test_a_new_line_makes_a_new_version_and_leaves_the_old_ones_as_they_were() -> None:
    version, before = opset.version(), opset.schema_hash(opset.version())
    with newer_table():
        assert opset.version() == NEWER == version + 1
        assert opset.schema_hash(version) == before != opset.schema_hash(NEWER)
        assert opset.schema_hash(1) == VERSIONS[1]
        assert opset.lookup(NEW_OP).since == NEWER
    assert opset.version() == version


def test_a_changed_line_changes_the_hash_of_its_version() -> None:
    changed = opset.GROUPS["view"].replace("int diagonal=0", "int diagonal").replace("-> *", "-> 2")
    with another_table("view", changed):
        assert opset.schema_hash(1) != VERSIONS[1]


def test_a_document_needs_the_lowest_version_that_has_its_ops() -> None:
    assert opset.needed_version([]) == opset.needed_version(["aten.relu.default"]) == 1
    with newer_table():
        assert opset.needed_version(["aten.relu.default", NEW_OP]) == NEWER
    with pytest.raises(GraphError, match="sinc"):
        opset.needed_version([NEW_OP])


def test_two_tables_of_one_version_are_a_conflict() -> None:
    own = opset.version()
    assert opset.conflict(own, opset.schema_hash(own)) is None
    assert opset.conflict(1, VERSIONS[1]) is None
    assert opset.conflict(own + 1, "0" * 16) is None  # a newer farflung knows ours
    words = opset.conflict(own, "0" * 16)
    assert words is not None and "0" * 16 in words and opset.schema_hash(own) in words
    assert opset.conflict(1, "0" * 16) is not None


def test_a_line_may_bound_a_number() -> None:
    line = "diff.default(Tensor self, int(16) n=1, int dim=-1) -> 1"
    with another_table("view", f"\n{line}\n"):
        n, dim = (opset.lookup("aten.diff.default").parameters[name] for name in ("n", "dim"))
        assert n.base == "int" and n.admits(16) and n.admits(-1)
        assert not n.admits(17) and not n.admits(BatchSize(1)) and not n.admits(True)
        assert dim.admits(17) and dim.admits(BatchSize(1))
