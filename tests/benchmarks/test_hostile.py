"""`benchmarks/hostile`: attackers of a real fleet are refused, and no honest job fails."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from benchmarks.hostile.__main__ import main
from benchmarks.hostile.attacks import ATTACKS, client_hello
from benchmarks.hostile.cage import Cage
from benchmarks.hostile.figures import Pace, Window, holds
from benchmarks.hostile.raw import MOST_REASONS, Tally
from tests.support.certificates import TestAuthority

KEYS = {"name", "role", "held", "speed_kept", "broker_mb", "honest_failed", "join_seconds"}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_attackers_are_refused_and_honest_jobs_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--only", "wrong joins,refused loads", "--rounds", "1", "--seconds", "2", "--json"]
    assert main([*given, "--folder", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document.keys() >= {"attacks", "ok", "cap", "load"} and "[2/2]" in err
    joins, loads = document["attacks"]
    assert joins.keys() >= KEYS and (joins["name"], joins["role"]) == ("wrong joins", "stranger")
    assert not joins["honest_failed"] and not loads["honest_failed"]
    assert joins["tries"] >= joins["refused"] > 0
    assert any("does not know the token" in reason for reason in joins["reasons"])
    assert document["ok"] == (joins["held"] and loads["held"])
    assert not [process for process in psutil.process_iter() if _is_below(process, tmp_path)]


def _is_below(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.is_running() and process.cwd().startswith(str(folder))
    except psutil.Error:
        return False


def test_a_fleet_holds_within_each_limit_only() -> None:
    assert holds(0.9, 255.9, False, 10.0)
    assert not holds(0.89, 100.0, False, 1.0) and not holds(1.0, 256.0, False, 1.0)
    assert not holds(1.0, 100.0, True, 1.0) and not holds(1.0, 100.0, False, 10.1)


def test_speed_is_held_against_the_windows_around() -> None:
    def pace(speed: float, mean: float) -> Pace:
        return Pace(speed, mean, 0.2)

    window = Window(pace(10.0, 8.0), pace(9.0, 2.0), pace(20.0, 8.0))
    assert (window.kept, window.mean_kept) == (0.6, 0.25)
    still = Pace.of([3.0], 0.0)
    assert Window(still, still, still).kept == 0.0  # a fleet that stands still has not held


def test_a_pace_goes_by_the_median_step_or_by_all() -> None:
    pace = Pace.of([1.0, 1.5, 2.0, 2.5, 5.0], 0.1)
    assert (pace.speed, pace.mean_speed) == (2.0, 1.0)


def test_a_tally_keeps_so_many_reasons_and_all_counts() -> None:
    tally, total = Tally(tries=100), Tally(tries=1)
    for number in range(100):
        tally.refuse(f"reason {number}")
    total.add(tally)
    assert (total.tries, total.refused, len(total.reasons)) == (101, 100, MOST_REASONS)


def test_the_recorded_hello_is_one_that_a_broker_answers(tmp_path: Path) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = TestAuthority(tmp_path).holder("broker", "broker", admit_joiners=True).server
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(client_hello())
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    assert len(outgoing.read()) > 500  # its key share, its certificate and its signature


def test_a_cage_says_how_it_holds_a_process_and_leaves_no_group() -> None:
    with Cage(0.5) as cage:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            cage.hold(sleeper.pid)
            group = cage.group
            if group is None:
                assert cage.kind == "nice 19" and psutil.Process(sleeper.pid).nice() == 19
            else:
                assert str(sleeper.pid) in (group / "cgroup.procs").read_text().split()
        finally:
            sleeper.kill()
            sleeper.wait()
    assert group is None or not group.exists()


def test_each_kind_of_attacker_has_attacks_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {role for _, role in ATTACKS} == {"stranger", "viewer", "submitter", "worker"}
    with pytest.raises(SystemExit):
        main(["--only", "silent socket"])
    assert "did you mean silent sockets?" in capsys.readouterr().err
