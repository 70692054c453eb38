"""A viewer sees only the jobs that its token names, their workers, and the links of these."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.broker.scenario import Scenario, training
from tests.broker.test_service import planner, running, story, submitter
from tests.support.broker_fleet import Member, PretendedWorker, broker, identity

from farflung.broker.security.authority import create_token
from farflung.broker.security.tokens import known_tokens, revoke_token
from farflung.broker.service import BrokerService
from farflung.broker.status import status_of
from farflung.client.run.broker_client import ask_status, ask_step, ask_topology, renew
from farflung.errors import ConnectionFailed, IdentityError
from farflung.protocol.messages import Accepted, Registered, Submit
from farflung.protocol.reachability import LinkReport
from farflung.protocol.viewer import LinkView
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity

__all__ = ["planner"]  # a fixture that plans without a graph


async def viewer(service: BrokerService, folder: Path, id: str, jobs: Sequence[str]) -> Identity:
    """One that joins with a token for these jobs."""
    token = await asyncio.to_thread(create_token, folder, "viewer", 1, 24.0, jobs)
    return (await enrol(service.address, token, folder.parent / id, "viewer", id)).identity


async def fleet(service: BrokerService, folder: Path) -> tuple[Member, Member]:
    """A job "gpt" that runs on two workers, one "secret" that waits, and an idle worker; the submitters."""
    ana, _ = await running(service, folder)
    bob = await submitter(service, folder, "bob")
    idle = await PretendedWorker.join(service, folder, "lab-3")
    await idle.hear(Registered)
    bob.say(Submit("secret", b"graph", training(), 5))
    await bob.hear(Accepted)
    return ana, bob


def test_a_viewer_sees_the_jobs_of_its_token_and_their_workers(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await fleet(service, folder)
        for names in (["gpt"], ["job-1"], ["gpt", "another"]):
            seen = await viewer(service, folder, f"eye-{len(names)}-{names[0]}", names)
            status = await ask_status(seen)
            assert [job.name for job in status.jobs] == ["gpt"]
            assert [worker.worker for worker in status.workers] == ["lab-1", "lab-2"]
            assert status.backup_pool == []
            assert b"secret" not in msgspec.json.encode(status)
            topology = (await ask_topology(seen)).topology
            assert topology is not None
            assert [worker.id for worker in topology.workers] == ["lab-1", "lab-2"]
        waiting = await viewer(service, folder, "eye-2", ["secret"])
        with pytest.raises(ConnectionFailed, match="there is no job job-1"):
            await ask_step(waiting, "job-1")
        with pytest.raises(
            ConnectionFailed, match="job-2 runs no steps now, it is queued: try again once it runs"
        ):
            await ask_step(waiting, "job-2")
        for role in ("worker", "submitter"):  # any role may ask
            asker = await identity(service, folder, f"{role}-9", role)
            with pytest.raises(ConnectionFailed, match=r"^there is no job job-9: `farflung status` lists"):
                await ask_step(asker, "job-9")
        status = await ask_status(waiting)
        assert ([job.name for job in status.jobs], status.workers) == (["secret"], [])
        assert (await ask_topology(waiting)).topology is None
        everything = await ask_status(await viewer(service, folder, "eye-3", []))
        assert [job.name for job in everything.jobs] == ["gpt", "secret"]
        assert [worker.worker for worker in everything.workers] == ["lab-1", "lab-2", "lab-3"]
        assert everything.backup_pool == ["lab-3"]

    story(tmp_path, scene)


def test_a_viewer_sees_no_more_after_a_renewal_a_restart_or_the_end_of_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "broker"

    async def scene() -> None:
        async with broker(folder) as service:
            seen = await viewer(service, folder, "eye", ["gpt"])
            bob = await submitter(service, folder, "bob")
            bob.say(Submit("secret", b"graph", training(), 5))
            await bob.hear(Accepted)
            assert (await ask_status(await renew(seen))).jobs == []
        (token,) = [one for one in known_tokens(folder) if one.role == "viewer"]
        assert token.jobs == ["gpt"]
        revoke_token(folder, token.id)
        async with broker(folder) as service:
            at_it = Identity.write(seen.folder, _pem(seen), seen.authority(), service.address)
            status = await ask_status(at_it)
            assert (status.jobs, status.workers) == ([], [])
            all_of_it = await ask_status(await viewer(service, folder, "other", []))
            assert [job.name for job in all_of_it.jobs] == ["secret"]

    asyncio.run(scene())


def _pem(identity: Identity) -> bytes:
    return (identity.folder / "certificate.pem").read_bytes()


def test_the_links_of_other_jobs_are_not_seen() -> None:
    story = Scenario("a", "b")
    story.running(2)
    links = [LinkView("a", job, LinkReport("b", "", 7001, None)) for job in ("job-1", "job-2")]
    status = status_of(story.state, {}, [], "1", 0.0, {"suspect_seconds": 1.0}, 0.0, time.time())
    seen = msgspec.structs.replace(status, links=links).limited_to(["job-1"])
    assert [view.job for view in seen.links] == ["job-1"]


@pytest.mark.parametrize("role", ["worker", "submitter", "operator"])
def test_only_what_a_viewer_sees_is_limited(tmp_path: Path, role: str) -> None:
    with pytest.raises(IdentityError, match=f"limits what a viewer sees, and the token is for an? {role}"):
        create_token(tmp_path, role, jobs=["gpt"])  # type: ignore[arg-type]
    with pytest.raises(IdentityError, match="or an empty one"):
        create_token(tmp_path, "viewer", jobs=[""])
    assert known_tokens(tmp_path) == []


def test_words_about_a_job_that_waits_name_no_other_job_and_no_other_worker(tmp_path: Path) -> None:
    async def scene(service: BrokerService, folder: Path) -> None:
        await fleet(service, folder)
        whole = service.view.status()
        (waiting,) = [job for job in whole.jobs if job.name == "secret"]
        assert "job-1" in waiting.reason
        status = await ask_status(await viewer(service, folder, "eye", ["secret"]))
        (job,) = status.jobs
        assert "busy with another job" in job.reason
        page = service.view.limited_to(["secret"])
        shown = msgspec.json.encode([status, page.status(), page.log(job.job)]).decode()
        assert not re.search(r"job-1\b|lab-\d|gpt", shown)

    story(tmp_path, scene)
