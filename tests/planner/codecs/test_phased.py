"""Rungs in turn become a plan's later codecs."""

from __future__ import annotations

import pytest
from tests.planner.codecs.chains import chain, topology

from farflung.planner.codecs.wishes import fixed, phase_notes, phased, unused_phases
from farflung.plans import CodecWishes, LinkWish
from farflung.simulator import Conditions


def test_links_change_where_their_own_rungs_end() -> None:
    plan = chain(["a", "b"])
    found = phased(plan, CodecWishes("int8@0.5,bf16", (LinkWish("b", "a", "int4@0.8,dense"),)), 10)
    assert {(c.source, c.codec) for c in found.codecs} == {("a", "int8"), ("b", "int4")}
    assert [later.step for later in found.later] == [5, 8]
    assert [{(c.source, c.codec) for c in later.codecs} for later in found.later] == [
        {("a", "bf16"), ("b", "int4")},
        {("a", "bf16")},
    ]


def test_a_run_that_is_too_short_for_a_rung_goes_without() -> None:
    plan = chain(["a", "b"])
    found = phased(plan, CodecWishes("int8@0.1,bf16"), 2)
    assert {c.codec for c in found.codecs} == {"bf16"} and not found.later


def test_one_rung_or_a_policy_leaves_the_plan_as_it_is() -> None:
    plan = chain(["a", "b"])
    assert phased(plan, CodecWishes("int8"), 10) is plan
    assert phased(plan, CodecWishes("auto"), 10) is plan
    assert fixed(plan, CodecWishes("int8@0.5,bf16")) == fixed(plan, CodecWishes("int8"))


def test_the_note_says_what_a_step_takes_later() -> None:
    plan = phased(chain(["a", "b", "c"]), CodecWishes("int4@0.8,dense"), 10)
    (note,) = phase_notes(plan, 10, topology({}), Conditions())
    assert note.startswith("from step 9 of 10 on links are written otherwise: a step then takes ")


@pytest.mark.parametrize(
    ("rung", "steps", "without"),
    [
        ("int4@0.99,int8", 20, ["int8"]),
        ("int4@0.01,int8", 20, ["int4"]),
        ("int4@0.5,bf16@0.51,int8", 20, ["bf16"]),
        ("int4@0.2,bf16@0.3,int8", 1, ["int4", "bf16"]),
        ("int4@0.8,int8", 20, []),
        ("int8", 1, []),
        ("auto", 1, []),
    ],
)
def test_a_rung_of_which_no_step_comes_is_told(rung: str, steps: int, without: list[str]) -> None:
    notes = unused_phases(CodecWishes(rung), steps)
    assert [note.split(" ")[0] for note in notes] == without
    assert all("\n" not in note and rung in note for note in notes)
    plan = phased(chain(["a", "b"]), CodecWishes(rung), steps)
    written = {
        codec.codec
        for codecs in (plan.codecs, *(each.codecs for each in plan.later if each.step < steps))
        for codec in codecs
    }
    assert not written & set(without)


def test_a_links_own_rungs_are_told_too_and_once() -> None:
    links = tuple(LinkWish(a, b, "int4@0.99,int8") for a, b in ("ab", "ba"))
    (note,) = unused_phases(CodecWishes("int4@0.5,int8", links), 20)
    assert note == "int8 is used in none of 20 steps: its share in int4@0.99,int8 rounds to no step"
