"""Whom a model's ops leave out, and in which words."""

from __future__ import annotations

import pytest
from tests.support.opset_tables import NEW_OP, NEWER, newer_table

from farflung.errors import PlanError
from farflung.planner.compatibility import Needs, require_able, unable
from farflung.plans.ability import Ability

OPS = frozenset({"aten.relu.default", "aten.tanh.default"})


def test_who_has_every_op_is_able() -> None:
    abilities = {"a": Ability(1), "b": Ability(7, ("aten.erf.default",)), "c": Ability(1, (), "jax")}
    assert unable(Needs(1, OPS), abilities) == {}


def test_an_older_opset_is_told_with_the_op_that_it_lacks() -> None:
    with newer_table():
        found = unable(Needs(NEWER, OPS | {NEW_OP}), {"a": Ability(NEWER), "b": Ability(NEWER - 1)})
    assert list(found) == ["b"]
    assert found["b"] == (
        f"its opset version {NEWER - 1} lacks {NEW_OP} (version {NEWER}): install a newer farflung there"
    )


def test_what_a_backend_refuses_is_told_with_the_backend() -> None:
    lacks = (*OPS, "aten.erf.default")
    found = unable(
        Needs(1, OPS), {"a": Ability(1, lacks, "jax 0.10.2\n\x1b[2J" + "x" * 99), "b": Ability(1, lacks)}
    )
    assert found["a"].startswith("its backend (jax 0.10.2??[2J")
    assert "x" * 60 not in found["a"] and found["a"].isprintable()
    assert found["b"] == (
        "its backend has no aten.relu.default, aten.tanh.default: join it with another --backend"
    )


def test_a_device_without_an_element_type_is_left_out_with_what_helps() -> None:
    abilities = {"a": Ability(1, ("bfloat16",), "torch 2.13"), "b": Ability(1)}
    assert unable(Needs(1, OPS, frozenset({"float32", "bfloat16"})), abilities) == {
        "a": "its device has no bfloat16: train in float32, or without it"
    }
    assert unable(Needs(1, OPS, frozenset({"float32"})), abilities) == {}


def test_there_must_be_as_many_as_were_asked_for() -> None:
    out = {f"w{number}": "its backend has no aten.x" for number in range(5)}
    for workers, asked in ((6, 0), (6, 1), (7, 2)):
        require_able(workers, asked, out)
    require_able(0, 3, {})  # that is told elsewhere
    with pytest.raises(PlanError, match=r"no worker here can run the model's ops: w0: .*; w2: .* and 2 more"):
        require_able(5, 0, out)
    with pytest.raises(PlanError, match=r"2 workers were asked for, 1 of 6 here can run .*: w0: "):
        require_able(6, 2, out)


def test_a_backend_that_runs_one_length_is_left_out_of_jobs_with_several() -> None:
    abilities = {"a": Ability(1, ("length_buckets",), "jax 0.10"), "b": Ability(1)}
    assert unable(Needs(1, OPS), abilities) == {}
    assert unable(Needs(1, OPS, buckets=True), abilities) == {
        "a": "its backend (jax 0.10) has no length_buckets: join it with another --backend"
    }
