"""A run that names workers hears at once which of them are not there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.commands.test_status import status_of
from tests.support.broker_fleet import PretendedWorker, broker

from farflung.broker.security.authority import create_token
from farflung.cli.main import run
from farflung.client.beginning.worker_check import check_workers, require_codec_ends
from farflung.errors import JobError, PlanError
from farflung.plans import CodecWishes, LinkWish
from farflung.protocol.messages import Registered

BROKER = "broker.example:7700"


def test_who_never_joined_is_refused_with_those_there_are() -> None:
    status = status_of("ready", "lost")
    with pytest.raises(JobError) as raised:
        list(check_workers(status, ["home-0", "w0", "home-1"], BROKER, wait=False))
    words = str(raised.value)
    assert words.startswith(f"no worker called home-0, home-1 has joined the broker at {BROKER}: ")
    assert "its workers are w0, w1 (left)" in words and "\n" not in words
    assert f"farflung join {BROKER} --name home-0" in words and "--wait" in words


def test_an_empty_fleet_is_named_as_such() -> None:
    with pytest.raises(JobError, match="no worker has joined it yet"):
        list(check_workers(status_of(), ["nine"], BROKER, wait=False))


def test_who_is_away_or_to_come_is_waited_for_in_so_many_words() -> None:
    status = status_of("ready", "left")
    assert list(check_workers(status, ["w0"], BROKER, wait=False)) == []
    (away,) = check_workers(status, ["w0", "w1"], BROKER, wait=False)
    assert away == "not connected: w1; the run waits for it to come back"
    strange, away = check_workers(status, ["w1", "w2"], BROKER, wait=True)
    assert strange == "waiting for w2 to join (--wait)" and away.startswith("not connected: w1")


def test_a_codec_is_for_workers_who_are_there() -> None:
    codecs = CodecWishes(links=(LinkWish("w0", "w1", "int8/int8"),))
    require_codec_ends(status_of("ready", "running"), codecs)
    require_codec_ends(status_of("lost"), codecs)  # then any worker that joins will do
    with pytest.raises(PlanError, match=r"there is no worker w1: the workers are w0$"):
        require_codec_ends(status_of("ready", "lost"), codecs)


@contextmanager
def serving(folder: Path, worker: str) -> Iterator[str]:
    """The address of a broker that has this worker, on a thread of its own."""
    served, over = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with broker(folder) as service:
            member = await PretendedWorker.join(service, folder, worker)
            await member.hear(Registered)
            found.append(service.address)
            served.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert served.wait(60)
        yield found[0]
    finally:
        over.set()
        thread.join()


def test_a_run_on_strangers_ends_before_its_job_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("raise AssertionError('the job was read')")
    with serving(tmp_path / "broker", "nine") as address:
        token = create_token(tmp_path / "broker", "submitter").text
        where = ("--broker", address, "--token", token)
        for names, strange in (("--on", "one,nine"), "one"), (("--topology", "four-homes"), "home-0, home-1"):
            assert run(["train", "job.py", *where, *names]) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert f"no worker called {strange}" in error and "its workers are nine" in error
        assert run(["train", "job.py", *where, "--codec", "nine->ten=int8"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith("link nine -> ten, but there is no worker ten: the workers are nine")
        assert run(["train", "job.py", *where, "--on", "one,nine", "--wait"]) == 2
        said = capsys.readouterr().err
        assert "waiting for one to join" in said and "the job was read" in said
