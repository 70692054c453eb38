"""A job with batches of several lengths: what the planner refuses, and what it says."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from tests.support.lengths import LENGTHS, language

from farflung.broker.planning.messages import Impossible, Lacking, PlanResult, Question
from farflung.broker.planning.process import answer
from farflung.client.capture.check import capture_shapes
from farflung.opdag import wire
from farflung.opdag.buckets import BUCKETS, lengths_of
from farflung.opdag.opset import version
from farflung.plans import CodecWishes, LinkWish
from farflung.plans.ability import Ability


@cache
def question() -> Question:
    job = language()
    program = wire.dump(capture_shapes(job).graph)
    abilities = {name: Ability(version(), (), "torch") for name in "ab"}
    return Question(program, job.training(), ["a", "b"], 2, abilities=abilities)


def asked(**changes: Any) -> Any:
    return answer(msgspec.structs.replace(question(), **changes))


def test_programs_have_all_lengths_and_a_note_says_which_is_planned_for() -> None:
    made = asked()
    assert isinstance(made, PlanResult)
    for program in made.programs:
        assert lengths_of(wire.load_segment(program.program, 2), LENGTHS[-1]) == LENGTHS
    assert "planned for batches of length 32, the longest; shorter ones take less time" in made.notes


@pytest.mark.parametrize(
    "codecs",
    [CodecWishes("int8/int8"), CodecWishes("auto"), CodecWishes(links=(LinkWish("a", "b", "int8/int8"),))],
    ids=["every", "auto", "a link"],
)
def test_codecs_of_links_are_refused(codecs: CodecWishes) -> None:
    training = question().training.with_codecs(("int8",))
    found = asked(codecs=codecs, training=training)
    assert isinstance(found, Impossible) and found.reason.startswith(
        "codecs of links write batches of one le"
    )


def test_a_codec_of_sums_is_planned() -> None:
    training = question().training.with_codecs(("int8",))
    assert isinstance(asked(codecs=CodecWishes(sums="int8"), training=training), PlanResult)


def test_a_graph_of_other_lengths_is_refused() -> None:
    for lengths in ((), (8, 32), (8, 16, 24, 32)):
        training = msgspec.structs.replace(question().training, lengths=lengths)
        found = asked(training=training)
        assert isinstance(found, Impossible) and "captured at other lengths" in found.reason


def test_a_worker_whose_backend_runs_one_length_is_left_out() -> None:
    abilities = {"a": Ability(version(), (), "torch"), "b": Ability(version(), (BUCKETS,), "jax")}
    found = asked(abilities=abilities)
    assert isinstance(found, Lacking) and list(found.unable) == ["b"]
    assert "its backend (jax) has no length_buckets" in found.unable["b"]
