"""Replicas that train apart go on from copies of their own: what they have learned is never mixed."""

from __future__ import annotations

import pytest
from tests.broker.core.test_mending import place, plan_of, training_apart
from tests.broker.core.test_protection import job_of
from tests.broker.scenario import Scenario

from farflung.broker.core.records import Job
from farflung.broker.core.recovering import recutting


def protected(warmup: int) -> tuple[Scenario, Job]:
    """Two replicas that train apart, on a and b, c and d; copies of the state after a step are on disks."""
    story = place(disk_bytes=10**9)
    for share, owner in enumerate("abcd"):
        for worker in (owner, job_of(story).holders[owner]):
            story.copied(worker, 0, share)
    job = training_apart(job_of(story), warmup)
    assert job.versions.stable is not None
    return story, job


@pytest.mark.parametrize("members", ["cbad", "dcba", "acbd"])
def test_in_the_warm_up_all_replicas_read_what_the_first_has_learned(members: str) -> None:
    story, job = protected(warmup=5)
    found = recutting.sources(story.state, job, plan_of(members), job.owned)
    assert found is not None
    assert {share for read in found.values() for share in read} == {0, 1}
    alone = recutting.sources(story.state, job, plan_of("db", 1), job.owned[:2])
    assert alone is not None and {share for read in alone.values() for share in read} == {0, 1}


@pytest.mark.parametrize("members", ["cbad", "dcba", "acbd", "abcd"])
def test_replicas_that_trained_apart_are_read_whole(members: str) -> None:
    story, job = protected(warmup=0)
    found = recutting.sources(story.state, job, plan_of(members), job.owned)
    assert found is not None
    for replica in (members[:2], members[2:]):
        shares = {share for worker in replica for share in found[worker]}
        assert shares in ({0, 1}, {2, 3})
    if members == "abcd":
        assert found == {"a": {0: "a"}, "b": {1: "b"}, "c": {2: "c"}, "d": {3: "d"}}
