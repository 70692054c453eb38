"""Rungs in turn become a plan's later codecs."""

from __future__ import annotations

import pytest
from tests.planner.codecs.chains import chain, topology

from farflung.planner.codecs.wishes import fixed, phase_notes, phased, unused_phases
from farflung.plans import CodecWishes, LinkWish
from farflung.simulator import Conditions


def test_links_change_codecs_when_their_phases_end() -> None:
    plan = chain(["a", "b"])
    found = phased(plan, CodecWishes("int8@0.5,bf16", (LinkWish("b", "a", "int4@0.8,dense"),)), 10)
    assert {(c.source, c.codec) for c in found.codecs} == {("a", "int8"), ("b", "int4")}
    assert [later.step for later in found.later] == [5, 8]
    assert [{(c.source, c.codec) for c in later.codecs} for later in found.later] == [
        {("a", "bf16"), ("b", "int4")},
        {("a", "bf16")},
    ]


def test_a_run_too_short_for_a_phase_skips_it() -> None:
    plan = chain(["a", "b"])
    found = phased(plan, CodecWishes("int8@0.1,bf16"), 2)
    assert {c.codec for c in found.codecs} == {"bf16"} and not found.later


def test_a_codec_pair_or_policy_without_phases_leaves_the_plan_unchanged() -> None:
    plan = chain(["a", "b"])
    assert phased(plan, CodecWishes("int8"), 10) is plan
    assert phased(plan, CodecWishes("auto"), 10) is plan
    assert fixed(plan, CodecWishes("int8@0.5,bf16")) == fixed(plan, CodecWishes("int8"))


def test_a_note_gives_the_step_time_of_a_later_phase() -> None:
    plan = phased(chain(["a", "b", "c"]), CodecWishes("int4@0.8,dense"), 10)
    (note,) = phase_notes(plan, 10, topology({}), Conditions())
    assert note.startswith("from step 9 of 10 on, links use other codecs: a step then takes ")


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
def test_a_phase_without_steps_gets_a_note(rung: str, steps: int, without: list[str]) -> None:
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


def test_phases_of_named_links_get_a_note_once() -> None:
    links = tuple(LinkWish(a, b, "int4@0.99,int8") for a, b in ("ab", "ba"))
    (note,) = unused_phases(CodecWishes("int4@0.5,int8", links), 20)
    assert note == "int8 is used in none of 20 steps: its share in int4@0.99,int8 rounds to no step"
