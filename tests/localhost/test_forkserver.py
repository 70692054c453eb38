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

from farflung.localhost.fleet import LocalFleet
from farflung.localhost.forkserver import Forked, ForkRequest, ForkServer, is_possible

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not is_possible(), reason="processes are forked on Linux only"),
    pytest.mark.faults,
]

Start = Callable[..., Forked]


def fork_servers() -> set[psutil.Process]:
    """All of this process: tests of commands keep some."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ends as we look
            found |= {child} if "forkserver" in " ".join(child.cmdline()) else set()
    return found


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    """One that has imported nothing, and fails to import what there is not."""
    before = fork_servers()
    fork_server = ForkServer(["no_such_module"], {"INHERITED": "of the fork server", "REMOVED": "too"})
    yield fork_server
    fork_server.close(10.0)
    assert fork_servers() <= before


@pytest.fixture
def start(fork_server: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a command, whose output goes to a file; its standard input ends with the test."""
    inner, outer = os.pipe()

    def start(*arguments: str, **environment: str | None) -> Forked:
        with (tmp_path / "said").open("ab") as said:
            files = (inner, said.fileno(), said.fileno())
            return fork_server.fork(ForkRequest(list(arguments), environment, str(tmp_path)), files)

    yield start
    os.close(inner)
    os.close(outer)


def said(log: Path, words: str) -> bool:
    return words in log.read_text()


def code(forked: Forked) -> int | None:
    while not forked.is_over:
        assert select.select([forked.fileno()], [], [], 60)[0], "it does not end"
        forked.read_message()
    return forked.code


def running(forked: Forked) -> psutil.Process:
    while forked.process_id is None:
        forked.read_message()
    return psutil.Process(forked.process_id)


def a_broker(start: Start, folder: Path) -> tuple[Forked, psutil.Process]:
    broker = start("broker", "--listen", "127.0.0.1:0", "--folder", "broker")
    process = running(broker)
    eventually("it listens", lambda: said(folder / "said", "listens on"))
    return broker, process


def test_a_forked_child_behaves_as_the_command(start: Start, tmp_path: Path) -> None:
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


def test_a_forked_child_is_listed_and_signalled_as_the_command(start: Start, tmp_path: Path) -> None:
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


def test_a_child_that_is_not_forked_yet_gets_the_signal_later(start: Start, tmp_path: Path) -> None:
    forked = start("broker", "--listen", "127.0.0.1:0", "--folder", "broker")
    assert forked.process_id is None
    forked.signal(signal.SIGTERM)
    assert code(forked) == -signal.SIGTERM


def test_a_childs_environment_is_that_of_the_fork_server_with_changes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text("""
import json, os, pathlib, sys
pathlib.Path("told").write_text(json.dumps({**os.environ, "argv": sys.orig_argv[1:]}))
raise SystemExit(3)
""")
    assert code(start("check", "tell.py", GIVEN="new", REMOVED=None)) not in (None, 0)
    report = json.loads((tmp_path / "told").read_text())
    assert (report["GIVEN"], report["INHERITED"]) == ("new", "of the fork server") and "REMOVED" not in report
    assert report["argv"] == ["-m", "farflung", "check", "tell.py"]  # with which it starts again


def test_children_import_themselves_if_an_import_starts_threads(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text("""
import threading, time
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
""")
    (tmp_path / "tell.py").write_text("""
import os, pathlib, sys
pathlib.Path("told").write_text(f"busy: {'busy' in sys.modules}, GIVEN: {'GIVEN' in os.environ}")
raise SystemExit(3)
""")
    fork_server = ForkServer(
        ["busy"], {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    )
    with (tmp_path / "said").open("w+b") as said, Path(os.devnull).open("rb") as nothing:
        files = nothing.fileno(), said.fileno(), said.fileno()
        forked = fork_server.fork(ForkRequest(["check", "tell.py"], {"GIVEN": "anew"}, str(tmp_path)), files)
        assert code(forked) == 2
    assert (tmp_path / "told").read_text() == "busy: False, GIVEN: True"
    fork_server.kill()
    fork_server.close(0.0)


def test_children_have_different_random_numbers_and_keys(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text("""
import os, pathlib, random, ssl
from cryptography.hazmat.primitives.asymmetric import ec
from farflung.transport.wire.frames import boot
key = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
said = f"{boot()} {random.random()} {ssl.RAND_bytes(16).hex()} {key}"
pathlib.Path(f"told-{os.getpid()}").write_text(said)
raise SystemExit(3)
""")
    fork_server = ForkServer(["farflung.transport.endpoint", "farflung.transport.security.enrolment"], {})
    with Path(os.devnull).open("r+b") as nothing:
        files = (nothing.fileno(),) * 3
        for forked in [
            fork_server.fork(ForkRequest(["check", "tell.py"], {}, str(tmp_path)), files) for _ in range(3)
        ]:
            assert code(forked) == 2
    fork_server.close(10.0)
    report = [path.read_text().split() for path in tmp_path.glob("told-*")]
    assert len(report) == 3 and all(len(set(column)) == 3 for column in zip(*report, strict=True))


def test_a_request_that_is_too_large_is_refused_and_the_server_lives_on(start: Start) -> None:
    with pytest.raises(OSError, match="the limit is 131072"):
        start("--version", LARGE="x" * 2**17)
    assert code(start("--version")) == 0


def test_a_child_without_a_descriptor_ends_without_an_exit_code(
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


def test_a_system_without_process_descriptors_has_no_fork_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(process: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert not is_possible()


def test_children_outlive_a_killed_fork_server(fork_server: ForkServer, start: Start, tmp_path: Path) -> None:
    broker, process = a_broker(start, tmp_path)
    fork_server.kill()
    broker.read_message()
    assert not broker.is_over and process.is_running()
    broker.signal(signal.SIGTERM)
    assert code(broker) is None
    with pytest.raises(OSError):
        for _ in range(100):
            start("--version")


def test_a_fleet_whose_fork_server_is_killed_goes_on_and_leaves_no_process(
    temporary: Path, tmp_path: Path
) -> None:
    async def scenario() -> list[str]:
        async with LocalFleet(2, tmp_path / "logs") as fleet:
            ids = [await child.process_id() for child in fleet.workers]
            (fork_server,) = {psutil.Process(number).ppid() for number in ids}
            assert "forkserver" in " ".join(psutil.Process(fork_server).cmdline())
            os.kill(fork_server, signal.SIGKILL)
            for child in fleet.workers:
                listens = partial(said, child.log, "listens on")
                await asyncio.to_thread(eventually, "it listens", listens)
            os.kill(ids[1], signal.SIGKILL)
            report: list[str] = []
            await fleet.watch(report.append)
            processes = [psutil.Process(ids[0])]
        psutil.wait_procs(processes, 60)
        assert not any(process.is_running() for process in processes)
        return report

    report = asyncio.run(scenario())
    assert len(report) == 1 and report[0].startswith("worker-1 ended")


def test_a_fleet_that_is_left_at_once_has_forked_no_process(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its fork server has imported what workers need, however long the broker takes to begin."""
    (tmp_path / "heavy.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("farflung.localhost.fleet.WORKER_MODULES", ("heavy",))

    async def scenario() -> None:
        async with LocalFleet(2, tmp_path / "logs"):
            pass

    before = set(psutil.Process().children(recursive=True))
    asyncio.run(scenario())
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not (tmp_path / "logs" / "worker-0.log").read_text()
