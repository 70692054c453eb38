"""What follows if a checker finds other work than a member said: who is suspended, where the job goes on."""

from __future__ import annotations

import msgspec
import pytest
from tests.broker.core.test_protection import job_of, spread
from tests.broker.core.trusting.test_checking import (
    FALSE,
    after_the_next_version,
    check,
    found,
    is_replayable,
    number,
    place,
    say,
)
from tests.broker.scenario import Scenario, told

from farflung.protocol.messages import CheckBegun, Checked, Ended, RolledBack


@pytest.mark.parametrize("otherwise", [{"false": {0: FALSE}}, {"state": FALSE}])
def test_a_member_that_two_checkers_find_false_is_suspended_and_all_go_back(
    otherwise: dict[str, object],
) -> None:
    story = place(idle="def", steps=20)
    story.all_ready(0)
    spread(story, 0)
    check(story)
    running = job_of(story).checks.running
    assert running is not None and running.owner == "b"
    first = running.checker
    check(story, **otherwise)
    running = job_of(story).checks.running
    assert running is not None and running.owner == "b" and running.checker != first
    check(story, **otherwise)
    assert story.state.is_suspended("b")
    assert "did other work than it said" in story.state.suspicions["b"].words
    assert first in story.state.suspicions["b"].words
    (back,) = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert back.unit == 0 and "b" in back.reason
    assert "b" not in job_of(story).members and job_of(story).state == "planning"
    assert is_replayable(story)


def test_all_go_back_to_the_version_before_and_another_worker_has_the_place() -> None:
    story = after_the_next_version()
    check(story)
    check(story, false={1: FALSE})
    check(story, false={1: FALSE})
    job = job_of(story)
    assert (job.state, job.restores, job.next_unit) == ("loading", True, 1)
    assert job.plan is not None and len(job.plan.workers()) == 3 and "b" not in job.plan.workers()


def unfit(story: Scenario, begun: bytes | None = None) -> None:
    """The checker of the moment cannot begin with the copy that it has."""
    stable, running = job_of(story).versions.stable, job_of(story).checks.running
    assert stable is not None and running is not None
    digest = stable.digests[running.share] if begun is None else begun
    trouble = "the copies of the job's state lack exp_avg of 'w'"
    say(
        story,
        Checked("job-1", 1, running.number, running.share, begun=digest, trouble=trouble, unfit=True),
    )


def test_a_member_whose_copies_no_checker_can_begin_with_is_suspended() -> None:
    """It was not checked at all, where not all is."""
    story = after_the_next_version()
    unfit(story)
    assert not story.state.suspicions
    unfit(story)
    assert story.state.is_suspended("a")
    assert "the copy that a made of its state after step 1" in story.state.suspicions["a"].words
    assert "a" not in job_of(story).members and is_replayable(story)


def test_who_says_falsely_that_a_copy_is_unfit_is_suspended() -> None:
    story = after_the_next_version()
    running = job_of(story).checks.running
    assert running is not None
    unfit(story)
    check(story)
    assert story.state.is_suspended(running.checker) and job_of(story).state == "running"


def test_a_copy_that_its_owner_did_not_make_says_nothing_of_it() -> None:
    story = after_the_next_version()
    unfit(story, b"another".ljust(32))
    unfit(story, b"another".ljust(32))
    assert not story.state.suspicions and job_of(story).state == "running"


def test_a_checker_that_lies_is_suspended_and_the_job_goes_on() -> None:
    story = place()
    story.all_ready(0)
    spread(story, 0)
    running = job_of(story).checks.running
    assert running is not None
    liar = running.checker
    check(story, false={0: FALSE})
    check(story)
    assert story.state.is_suspended(liar) and job_of(story).state == "running"
    assert job_of(story).checks.running is not None  # the next share, by the other one
    assert not [one for one in told(story.commands) if isinstance(one, RolledBack)]


def test_without_a_third_worker_the_job_ends_and_names_both() -> None:
    story = place(idle="d")
    story.all_ready(0)
    spread(story, 0)
    check(story, false={0: FALSE})
    (end,) = [one for one in told(story.commands) if isinstance(one, Ended)]
    assert end.state == "failed" and "which of a, d is right" in end.reason


def test_three_that_differ_from_one_another_decide_nothing() -> None:
    story = place(idle="de")
    story.all_ready(0)
    spread(story, 0)
    check(story, false={0: FALSE})
    check(story, false={0: b"third"})
    (back,) = [one for one in told(story.commands) if isinstance(one, RolledBack)]
    assert "agrees with neither" in back.reason and set(job_of(story).blamed) == {"a", "d"}
    assert not story.state.suspicions


def test_two_members_that_contradict_each_other_do_not_decide_a_step() -> None:
    story = place(idle="de", steps=20)
    story.ready("a", 0)
    story.ready("b", 0, sent={2: b"one"})
    story.ready("c", 0, received={1: b"two"})
    job = job_of(story)
    assert job.step == 0 and set(job.blamed) == {"b", "c"}
    assert set(job.members) == {"a", "d", "e"}


def test_a_neighbour_that_gives_two_checkers_something_else_is_suspended() -> None:
    story = place(idle="de", steps=20)
    story.ready("a", 0)
    story.ready("b", 0, sent={2: b"b to c"})
    story.ready("c", 0, received={1: b"b to c"})
    assert job_of(story).step == 1
    spread(story, 0)
    check(story)  # a
    check(story)  # b
    for other in (b"x", b"y"):
        say(story, CheckBegun("job-1", 1, number(story), 2))
        one = found(story)
        unit = msgspec.structs.replace(one.units[0], received={2: {1: other}})
        say(story, msgspec.structs.replace(one, units=[unit]))
    assert story.state.is_suspended("b")
