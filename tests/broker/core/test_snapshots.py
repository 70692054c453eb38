from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.core.test_state import Chaos
from tests.broker.scenario import Scenario

from farflung.broker.core import facts
from farflung.broker.core.records import Job, State, Worker, durable
from farflung.broker.core.snapshots import Snapshot, decode_snapshot, encode_snapshot
from farflung.broker.core.state import replay
from farflung.errors import FarflungError


def running() -> Scenario:
    story = Scenario("a", "b", "c")
    story.running(2)
    story.all_ready(0)
    story.submit(1)
    return story


def body_of(state: State) -> bytes:
    body = encode_snapshot(state)
    assert body is not None
    return body


@settings(max_examples=60)
@given(st.data())
def test_a_snapshot_and_the_facts_after_it_give_what_all_facts_give(data: st.DataObject) -> None:
    chaos = Chaos(data)
    chaos.play(60)
    log = [fact for fact in chaos.story.facts if isinstance(fact, facts.Decision)]
    expected = replay(log)
    state, rest = State.empty(), log
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rest)))
        state = decode_snapshot(body_of(replay(rest[:at], state)))
        rest = rest[at:]
    found = replay(rest, state)
    assert found == expected == durable(chaos.story.state)
    assert list(found.jobs) == list(expected.jobs) and list(found.workers) == list(expected.workers)


def test_what_is_observed_is_not_in_a_snapshot() -> None:
    story = running()
    story.ready("a", 1)
    assert story.state != durable(story.state)
    assert decode_snapshot(body_of(story.state)) == durable(story.state)


def test_every_field_is_either_in_a_snapshot_or_emptied_by_a_replay() -> None:
    state, workers, jobs = (field.type for field in msgspec.inspect.type_info(Snapshot).fields[1:])
    of_jobs = {field.name for field in jobs.item_type.fields}  # type: ignore[attr-defined]
    for kind, info, elsewhere in (
        (Worker, workers.item_type, {"held"}),  # type: ignore[attr-defined]
        (State, state, {"workers", "jobs", "replace_seconds"}),
        (Job, jobs.item_type, set(observed_fields())),  # type: ignore[attr-defined]
    ):
        kept = {field.name for field in info.fields}
        assert kept | elsewhere == {field.name for field in dataclasses.fields(kind)}
        assert not kept & elsewhere
    assert of_jobs


def observed_fields() -> list[str]:
    """Fields of a job that are emptied by `durable`, whatever they hold."""
    marked = Scenario()
    marked.submit(1)
    (job,) = marked.state.jobs.values()
    other = object()
    found = []
    for field in dataclasses.fields(Job):
        changed = marked.state.with_job(dataclasses.replace(job, **{field.name: other}))
        if field.name != "job" and getattr(durable(changed).jobs["job-1"], field.name) is not other:
            found.append(field.name)
    return found


def test_a_state_that_would_not_come_back_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    story = running()
    (job, *_) = story.state.jobs.values()
    broken = story.state.with_job(dataclasses.replace(job, loss=math.nan))  # which equals nothing
    assert encode_snapshot(broken) is None
    wrong = story.state.with_job(dataclasses.replace(job, reason=7))  # type: ignore[arg-type]
    assert encode_snapshot(wrong) is None
    assert [record.message.count("the log grows instead") for record in caplog.records] == [1, 1]


@pytest.mark.parametrize("change", ["format", "field", "type", "cut"])
def test_a_snapshot_of_another_version_is_refused_in_one_line(change: str) -> None:
    body = body_of(running().state)
    plain = msgspec.msgpack.decode(body, strict=False)
    if change == "format":
        plain["format"] = 99
    elif change == "field":
        plain["jobs"][0]["later_field"] = 1
    elif change == "type":
        plain["workers"][0]["connected"] = "yes"
    changed = body[:-20] if change == "cut" else msgspec.msgpack.encode(plain)
    with pytest.raises(FarflungError, match="snapshot that this version cannot read") as caught:
        decode_snapshot(changed)
    assert "\n" not in str(caught.value)


def test_fields_that_an_older_version_did_not_write_have_their_default() -> None:
    state = running().state
    plain = msgspec.msgpack.decode(body_of(state), strict=False)
    for job in plain["jobs"]:
        del job["checkpoint_end"]
    del plain["state"]["submitted"]
    found = decode_snapshot(msgspec.msgpack.encode(plain))
    assert found == dataclasses.replace(durable(state), submitted=0)
