"""`farflung member` and `farflung job`: what they print, and as whom they ask."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from farflung.cli.commands import job as job_command
from farflung.cli.main import run
from farflung.client.run import broker_client
from farflung.errors import IdentityError
from farflung.protocol.members import JobCancelled, MemberChanged, Members, MemberStatus
from farflung.protocol.viewer import JobStatus, Status
from farflung.transport.security.tokens import Token

REMOVED = "was removed by operator olga: it lies (2026-11-25 18:00 UTC)"
SUSPECTED = "made an attempt of a job fail that others got through, 3 times (the last one of job-1: no)"
MEMBERS = [
    MemberStatus("ana", "submitter", False, "", "0a1b2c3d", 1.8e9, ["job-1"]),
    MemberStatus("home-b", "worker", False, REMOVED, "4e5f6a7b", 1.8e9),
    MemberStatus("home-c", "worker", True, "", "4e5f6a7b", 1.8e9, ["job-1"]),
    MemberStatus("home-d", "worker", True, "", "4e5f6a7b", 1.8e9, [], 3, SUSPECTED, True),
    MemberStatus("vic", "viewer", False, "", "8c9d0e1f", 1.8e9, sees=["gpt"]),
]


def job(state: str, reason: str = "") -> JobStatus:
    return JobStatus("job-1", "gpt", state, reason, 3, 9, 0.5, None, ["home-c"])


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A broker that answers at once, and what it is asked."""
    asked: list[tuple[Any, ...]] = []
    states = iter(["collecting", "cancelled"])

    async def identity(*given: Any, **named: Any) -> str:
        return "an identity"

    async def members(identity: str) -> Members:
        return Members(MEMBERS)

    async def remove(identity: str, member: str, reason: str) -> MemberChanged:
        asked.append(("remove", member, reason))
        return MemberChanged(member, "worker", "its share of job-1 goes to others")

    async def allow(identity: str, member: str) -> MemberChanged:
        asked.append(("allow", member))
        return MemberChanged(member, "worker", "it may connect again")

    async def cancel(identity: str, job: str, reason: str, at_once: bool) -> JobCancelled:
        asked.append(("cancel", job, reason, at_once))
        return JobCancelled(job, "" if at_once else "its weights come to its submitter first")

    async def status(identity: str) -> Status:
        found = [job(next(states, "cancelled"), "operator olga cancelled it")]
        return Status("1", 1.0, [], found, [], {}, [], 0.0)

    for name, answer in (
        ("ask_members", members),
        ("ask_to_remove", remove),
        ("ask_to_allow", allow),
        ("ask_to_cancel", cancel),
        ("ask_status", status),
    ):
        monkeypatch.setattr(broker_client, name, answer)
    monkeypatch.setattr("farflung.cli.commands.member.operator_identity", identity)
    monkeypatch.setattr(job_command, "operator_identity", identity)
    monkeypatch.setattr(job_command, "any_identity", identity)
    monkeypatch.setattr(job_command, "PAUSE_SECONDS", 0.001)
    return asked


def test_members_are_listed_with_what_is_held_against_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["member", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["ana", "submitter", "away"],
        ["home-b", "worker", "removed"],
        ["home-c", "worker", "connected"],
        ["home-d", "worker", "suspended"],
    ]
    assert lines[5].split()[:5] == ["vic", "viewer", "of", "gpt", "away"]
    assert lines[6:] == [f"  home-b {REMOVED}", f"  home-d {SUSPECTED}"]
    assert run(["member", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["members"][1]["removed"] == REMOVED


@pytest.mark.parametrize("action", ["remove", "allow"])
def test_an_id_that_no_member_can_have_is_refused_before_the_broker_is_asked(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for member in ("", "x" * 65):
        assert run(["member", action, member]) == 2
        assert "an id has 1 to 64 characters" in capsys.readouterr().err


def test_remove_and_allow_say_what_came_of_it(
    broker: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["member", "remove", "home-b", "--reason", "it lies"]) == 0
    assert run(["member", "allow", "home-b"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "worker home-b is removed: its share of job-1 goes to others",
        "worker home-b is allowed: it may connect again",
    ]
    assert broker == [("remove", "home-b", "it lies"), ("allow", "home-b")]
    assert run(["member", "remove", "home-b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] is True


def test_cancel_waits_until_the_job_is_over(
    broker: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "cancel", "job-1", "--reason", "too costly"]) == 0
    said = capsys.readouterr()
    assert said.out == "job-1 is cancelled: operator olga cancelled it\n"
    assert "job-1 ends: its weights come to its submitter first" in said.err
    assert run(["job", "cancel", "job-1", "--now", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert broker == [("cancel", "job-1", "too costly", False), ("cancel", "job-1", "", True)]


def test_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "list"]) == 0
    assert "job-1  gpt" in capsys.readouterr().out
    assert run(["job", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["job"] == "job-1"


def test_a_viewer_cannot_end_a_job(tmp_path: Path) -> None:
    token = Token.create("viewer", b"f" * 32).text
    with pytest.raises(IdentityError, match="viewers cannot end jobs"):
        asyncio.run(job_command._identity("job-1", None, token, tmp_path))


def test_the_broker_has_to_know_the_job_still(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def status(identity: str) -> Status:
        return Status("1", 1.0, [], [], [], {}, [], 0.0)

    monkeypatch.setattr(broker_client, "ask_status", status)
    assert run(["job", "cancel", "job-1"]) != 0
    assert "job-1 is not among the jobs" in capsys.readouterr().err
