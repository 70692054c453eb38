"""`farflung attach` shows a job until it ends, and says so when the broker or the job is not there."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.cli.commands.test_status import status_of

from farflung.broker.core.trusting.records import Removal
from farflung.cli.main import run
from farflung.errors import ConnectionFailed
from farflung.protocol.viewer import JobStatus, Status


class Whose:
    """An identity, of which only the broker's address matters."""

    broker = "hub:7700"


def job(state: str, step: int, reason: str = "") -> JobStatus:
    return JobStatus("job-1", "gpt", state, reason, step, 9, 2.5 if step else None, None, ["a"])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the broker answers, one after the other."""
    said: list[Any] = []

    async def ask(_: object) -> Status:
        found = said.pop(0)
        if isinstance(found, BaseException):
            raise found
        return msgspec.structs.replace(status_of(), jobs=found)

    async def identity(*_: object) -> Whose:
        return Whose()

    monkeypatch.setattr("farflung.client.run.broker_client.ask_status", ask)
    monkeypatch.setattr("farflung.cli.commands.attach.any_identity", identity)
    monkeypatch.setattr("farflung.cli.commands.attach.POLL_SECONDS", 0.001)
    return said


def test_each_change_is_a_line_until_the_job_ends(
    answers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    queued, running = [job("queued", 0, "waiting for b")], [job("running", 3)]
    answers += [queued, queued, running, [job("done", 9)]]
    assert run(["attach", "job-1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job-1 queued  step 0/9: waiting for b",
        "job-1 running  step 3/9  loss 2.5000",
        "job-1 done  step 9/9  loss 2.5000",
    ]


def test_json_is_a_document_for_each_change(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    answers += [[job("running", 3)], [job("running", 3)], [job("failed", 4, "too few workers")]]
    assert run(["attach", "job-1", "--json"]) == 1
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["state"], one["step"], one["reason"]) for one in documents] == [
        ("running", 3, ""),
        ("failed", 4, "too few workers"),
    ]


def test_a_broker_that_is_away_is_asked_again(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    away = ConnectionFailed("hub:7700 refused the connection")
    answers += [[job("running", 3)], away, away, [job("done", 9)]]
    assert run(["attach", "job-1"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "hub:7700 refused the connection; trying again until it answers"
    ]


def test_who_was_removed_watches_no_more(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    refusal = Removal("ana", "submitter", at=1.0, operator="op", reason="it mines coins").refusal
    closed = ConnectionFailed(f"the broker closed the connection: {refusal}")
    answers += [[job("running", 3)], ConnectionFailed("hub:7700 refused the connection"), closed]
    assert run(["attach", "job-1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {closed}"


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ([job("done", 9)], "the broker at hub:7700 has no job 'job-7': its newest is job-1"),
        ([], "the broker at hub:7700 has no job 'job-7': it has none"),
        (ConnectionFailed("hub:7700 refused the connection"), "hub:7700 refused the connection"),
    ],
)
def test_what_cannot_be_watched_is_one_line(
    answers: list[Any], capsys: pytest.CaptureFixture[str], first: Any, words: str
) -> None:
    answers.append(first)
    assert run(["attach", "job-7"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


def test_ctrl_c_ends_the_watching_only(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    answers += [[job("running", 3)], KeyboardInterrupt()]
    assert run(["attach", "job-1"]) == 130
    assert capsys.readouterr().err == "not watching any more; job-1 goes on\n"
