"""Processes that are forked of one which has imported a framework: as if a shell had started them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.support.processes import eventually

from farflung.local.fleet import LocalFleet
from farflung.local.forkserver import Birth, Forked, ForkServer, is_possible

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not is_possible(), reason="processes are forked on Linux only"),
    pytest.mark.faults,
]

Start = Callable[..., Forked]


def nurseries() -> set[psutil.Process]:
    """All of this process: tests of commands keep some."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ends as we look
            found |= {child} if "nursery" in " ".join(child.cmdline()) else set()
    return found


@pytest.fixture
def nursery() -> Iterator[ForkServer]:
    """One that has imported nothing, and fails to import what there is not."""
    before = nurseries()
    nursery = ForkServer(["no_such_module"], {"INHERITED": "of the nursery", "REMOVED": "too"})
    yield nursery
    nursery.close(10.0)
    assert nurseries() <= before


@pytest.fixture
def start(nursery: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a command, whose output goes to a file; its standard input ends with the test."""
    inner, outer = os.pipe()

    def start(*arguments: str, **environment: str | None) -> Forked:
        with (tmp_path / "said").open("ab") as said:
            files = (inner, said.fileno(), said.fileno())
            return nursery.fork(Birth(list(arguments), environment, str(tmp_path)), files)

    yield start
    os.close(inner)
    os.close(outer)


def said(log: Path, words: str) -> bool:
    return words in log.read_text()


def code(forked: Forked) -> int | None:
    while not forked.is_over:
        assert select.select([forked.fileno()], [], [], 60)[0], "it does not end"
        forked.hear()
    return forked.code


def running(forked: Forked) -> psutil.Process:
    while forked.process_id is None:
        forked.hear()
    return psutil.Process(forked.process_id)


def a_broker(start: Start, folder: Path) -> tuple[Forked, psutil.Process]:
    broker = start("broker", "--listen", "127.0.0.1:0", "--folder", "broker")
    process = running(broker)
    eventually("it listens", lambda: said(folder / "said", "listens on"))
    return broker, process


def test_it_is_the_command_in_all_that_it_says(start: Start, tmp_path: Path) -> None:
    assert code(start("--version")) == 0
    assert code(start("status", FARFLUNG_HOME=str(tmp_path))) == 2
    plain = [
        subprocess.run(
            [sys.executable, "-m", "farflung", *arguments],
            env={**os.environ, "FARFLUNG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        for arguments in (["--version"], ["status"])
    ]
    assert [done.returncode for done in plain] == [0, 2]
    assert (tmp_path / "said").read_text() == "".join(done.stdout + done.stderr for done in plain)


def test_it_is_shown_and_signalled_as_the_command(start: Start, tmp_path: Path) -> None:
    broker, process = a_broker(start, tmp_path)
    assert process.cmdline()[1:4] == ["-m", "farflung", "broker"]
    assert process.cwd() == str(tmp_path) and os.getsid(process.pid) == process.pid
    assert process.num_fds() < 20
    process.send_signal(signal.SIGINT)
    assert code(broker) == 130
    broker, _ = a_broker(start, tmp_path)
    broker.signal(signal.SIGKILL)
    assert code(broker) == -signal.SIGKILL
    broker.signal(signal.SIGKILL)  # nobody is there; nobody else is hit


def test_who_is_still_to_be_born_gets_the_signal_then(start: Start, tmp_path: Path) -> None:
    forked = start("broker", "--listen", "127.0.0.1:0", "--folder", "broker")
    assert forked.process_id is None
    forked.signal(signal.SIGTERM)
    assert code(forked) == -signal.SIGTERM


def test_its_environment_is_that_of_the_nursery_with_changes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text("""
import json, os, pathlib, sys
pathlib.Path("told").write_text(json.dumps({**os.environ, "argv": sys.orig_argv[1:]}))
raise SystemExit(3)
""")
    assert code(start("check", "tell.py", GIVEN="anew", REMOVED=None)) not in (None, 0)
    told = json.loads((tmp_path / "told").read_text())
    assert (told["GIVEN"], told["INHERITED"]) == ("anew", "of the nursery") and "REMOVED" not in told
    assert told["argv"] == ["-m", "farflung", "check", "tell.py"]  # with which it begins anew


def test_what_an_import_makes_threads_for_is_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text("""
import threading, time
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
""")
    (tmp_path / "tell.py").write_text("""
import os, pathlib, sys
pathlib.Path("told").write_text(f"busy: {'busy' in sys.modules}, GIVEN: {'GIVEN' in os.environ}")
raise SystemExit(3)
""")
    nursery = ForkServer(
        ["busy"], {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    )
    with (tmp_path / "said").open("w+b") as said, Path(os.devnull).open("rb") as nothing:
        files = nothing.fileno(), said.fileno(), said.fileno()
        forked = nursery.fork(Birth(["check", "tell.py"], {"GIVEN": "anew"}, str(tmp_path)), files)
        assert code(forked) == 2
    assert (tmp_path / "told").read_text() == "busy: False, GIVEN: True"
    nursery.kill()
    nursery.close(0.0)


def test_no_two_have_the_same_random_numbers_and_keys(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text("""
import os, pathlib, random, ssl
from cryptography.hazmat.primitives.asymmetric import ec
from farflung.transport.wire.frames import boot
key = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
said = f"{boot()} {random.random()} {ssl.RAND_bytes(16).hex()} {key}"
pathlib.Path(f"told-{os.getpid()}").write_text(said)
raise SystemExit(3)
""")
    nursery = ForkServer(["farflung.transport.endpoint", "farflung.transport.security.enrolment"], {})
    with Path(os.devnull).open("r+b") as nothing:
        files = (nothing.fileno(),) * 3
        for forked in [nursery.fork(Birth(["check", "tell.py"], {}, str(tmp_path)), files) for _ in range(3)]:
            assert code(forked) == 2
    nursery.close(10.0)
    told = [path.read_text().split() for path in tmp_path.glob("told-*")]
    assert len(told) == 3 and all(len(set(column)) == 3 for column in zip(*told, strict=True))


def test_what_is_too_much_for_a_message_is_refused_and_the_nursery_lives_on(start: Start) -> None:
    with pytest.raises(OSError, match="at most 131072 may be"):
        start("--version", LARGE="x" * 2**17)
    assert code(start("--version")) == 0


def test_who_lacks_room_for_descriptors_hears_no_more_of_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, forked = a_broker(start, tmp_path)
    process = psutil.Process(forked.ppid())
    broker.signal(signal.SIGKILL)
    assert code(broker) == -signal.SIGKILL
    most = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 2, most[1]))
    assert code(start("--version")) is None
    process.rlimit(resource.RLIMIT_NOFILE, most)
    assert code(start("--version")) == 0
    receive = socket.recv_fds

    def without_room(line: socket.socket, size: int, most: int) -> tuple[bytes, list[int], int, object]:
        data, descriptors, flags, address = receive(line, size, most)
        for descriptor in descriptors:
            os.close(descriptor)
        return data, [], flags | socket.MSG_CTRUNC, address

    with monkeypatch.context() as patched:
        patched.setattr(socket, "recv_fds", without_room)
        assert code(start("--version")) is None
    assert code(start("--version")) == 0


def test_a_system_without_descriptors_of_processes_has_no_nurseries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(process: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert not is_possible()


def test_who_was_forked_outlives_a_nursery_that_is_killed(
    nursery: ForkServer, start: Start, tmp_path: Path
) -> None:
    broker, process = a_broker(start, tmp_path)
    nursery.kill()
    broker.hear()
    assert not broker.is_over and process.is_running()
    broker.signal(signal.SIGTERM)
    assert code(broker) is None
    with pytest.raises(OSError):
        for _ in range(100):
            start("--version")


def test_a_fleet_whose_nursery_is_killed_goes_on_and_leaves_nobody(temporary: Path, tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        async with LocalFleet(2, tmp_path / "logs") as fleet:
            ids = [await child.process_id() for child in fleet.workers]
            (nursery,) = {psutil.Process(number).ppid() for number in ids}
            assert "forkserver" in " ".join(psutil.Process(nursery).cmdline())
            os.kill(nursery, signal.SIGKILL)
            for child in fleet.workers:
                listens = partial(said, child.log, "listens on")
                await asyncio.to_thread(eventually, "it listens", listens)
            os.kill(ids[1], signal.SIGKILL)
            told: list[str] = []
            await fleet.watch(told.append)
            processes = [psutil.Process(ids[0])]
        psutil.wait_procs(processes, 60)
        assert not any(process.is_running() for process in processes)
        return told

    told = asyncio.run(scenario())
    assert len(told) == 1 and told[0].startswith("worker-1 ended")


def test_a_fleet_that_is_left_at_once_has_forked_nobody(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its nursery has imported what workers need, however long the broker takes to begin."""
    (tmp_path / "heavy.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("farflung.local.fleet.WORKER_MODULES", ("heavy",))

    async def scenario() -> None:
        async with LocalFleet(2, tmp_path / "logs"):
            pass

    before = set(psutil.Process().children(recursive=True))
    asyncio.run(scenario())
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not (tmp_path / "logs" / "worker-0.log").read_text()
