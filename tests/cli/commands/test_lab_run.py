"""`farflung lab` as a user runs it: real processes, real namespaces."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.cli.main import run
from farflung.errors import LabError
from farflung.lab import machine, registry, running_lab
from farflung.lab.machine import check_machine

TOPOLOGY = {
    "workers": [
        {"id": "a", "site": "x", "tflops": 1, "memory_gb": 1},
        {"id": "b", "site": "y", "tflops": 1, "memory_gb": 1, "behind_nat": True},
    ],
    "latency_ms": [[0, 5], [5, 0]],
    "bandwidth_mbps": [[0, 50], [50, 0]],
}
WAIT_SECONDS = 60


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(TOPOLOGY))
    return path


@pytest.fixture
def name() -> str:
    """The lab's: whoever else runs these tests on this machine has another one."""
    return secrets.token_hex(4)


@pytest.fixture
def lab(topology: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """`lab up` in a process of its own."""
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))
    process = started(topology, name)
    yield process
    process.terminate()
    process.wait(WAIT_SECONDS)


def started(topology: Path, name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "farflung", "lab", "up", str(topology), "--name", name, "--json"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def nodes(lab: subprocess.Popen[str]) -> dict[str, dict[str, str]]:
    """What it says once it is up."""
    assert lab.stdout is not None
    told = json.loads(lab.stdout.readline())
    assert "nodes" in told, told
    return {node["name"]: node for node in told["nodes"]}


def farflung(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "farflung", "lab", *arguments]
    return subprocess.run(argv, capture_output=True, text=True)


def rooms(lab: str) -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"farflung-{lab}-*")] if folder.exists() else []


@pytest.mark.lab
def test_a_lab_is_changed_looked_at_and_taken_down_by_other_commands(
    lab: subprocess.Popen[str], name: str, topology: Path
) -> None:
    found = nodes(lab)
    assert list(found) == ["a", "b", "broker", "submitter"]
    assert found["b"]["local_address"] != found["b"]["address"]
    ping = ["exec", "--name", name, "b", "--", "ping", "-c", "1", "-W", "5", found["a"]["address"]]
    assert farflung(*ping).returncode == 0
    unknown = farflung("exec", "--name", name, "b", "--", "nosuchcmd")
    assert unknown.returncode == 127 and "no command 'nosuchcmd'" in unknown.stderr
    assert farflung("cut", "a", "b", "--name", name).stderr == "cut: a - b\n"
    assert "cut; 50 Mbit/s, 5 ms, queue 200 ms" in farflung("stats", "--name", name).stdout
    assert name in json.loads(farflung("list", "--json").stdout)["labs"]
    missing = farflung("stats", "--name", "none").stderr
    assert missing.startswith("error: no lab called none runs; there ") and name in missing
    assert farflung(*ping).returncode == 1
    assert farflung("heal", "--name", name).stderr == "healed: a - b\n"
    told = farflung("set", "a", "b", "--ms", "30", "--both", "--name", name)
    assert told.stderr.splitlines()[0] == (
        "a -> b: 50 Mbit/s, 30 ms, queue 200 ms (was 50 Mbit/s, 5 ms, queue 200 ms)"
    )
    told = farflung(*ping)
    assert float(told.stdout.partition("time=")[2].split()[0]) >= 60
    assert farflung("set", "b", "--up-mbps", "0.01", "--name", name).returncode == 0
    told = farflung(*ping)
    assert float(told.stdout.partition("time=")[2].split()[0]) >= 138  # 98 bytes at 10 kbit/s, and 60
    stats = json.loads(farflung("stats", "--json", "--name", name).stdout)
    assert {"seconds", "late_p99_ms", "void", "real_time", "links"} <= set(stats)
    assert {(link["source"], link["target"]) for link in stats["links"]} == {("a", "b"), ("b", "a")}
    assert "a -> b" in farflung("stats", "--name", name).stdout
    again = farflung("up", str(topology), "--name", name)
    assert again.returncode == 2
    assert again.stderr.startswith(f"error: a lab called {name} runs already")
    assert farflung("down", "--name", name).returncode == 0
    assert lab.wait(WAIT_SECONDS) == 0
    assert lab.stderr is not None and lab.stderr.read() == f"lab {name} was taken down\n"
    assert rooms(name) == []


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["mine"], "no lab called mine runs"),
        (["mine", "yours"], "no lab called lab runs; there are mine, yours"),
        ([], "no lab called lab runs: farflung lab up"),
    ],
)
def test_without_a_name_the_only_lab_is_meant(
    names: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_lab, "check_machine", lambda: None)
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    monkeypatch.setattr(registry, "names", lambda: names)
    with pytest.raises(LabError, match=words):
        running_lab.find()


@pytest.mark.lab
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_takes_it_down(
    lab: subprocess.Popen[str], name: str, number: signal.Signals, code: int
) -> None:
    nodes(lab)
    lab.send_signal(number)
    assert lab.wait(WAIT_SECONDS) == code
    assert lab.stderr is not None
    assert lab.stderr.read() == f"lab {name} is down\n"
    assert rooms(name) == []


@pytest.mark.lab
def test_a_killed_switch_is_told_and_cleaned_up(lab: subprocess.Popen[str], name: str) -> None:
    nodes(lab)
    record = json.loads(Path(f"/run/farflung-lab/{name}.json").read_text())
    os.kill(record["process_id"], signal.SIGKILL)
    assert lab.wait(WAIT_SECONDS) == 2
    assert lab.stderr is not None
    assert lab.stderr.read() == f"error: the switch of lab {name} was killed; what it left is removed\n"
    assert rooms(name) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "nowhere"], "neither a file nor a testbed"),
        (["up", "lan", "--name", "A LAB"], "cannot name a lab"),
        (["set", "a", "b"], "a pair takes --mbps, --ms"),
        (["set", "a", "b", "--up-mbps", "1"], "a pair takes --mbps, --ms"),
        (["set", "a", "--ms", "1"], "one node takes --up-mbps and --down-mbps"),
        (["set", "a"], "one node takes --up-mbps and --down-mbps"),
        (["cut", "a", "--name", "none"], "no lab called none runs"),
        (["exec", "a", "--name", "none", "--", "true"], "no lab called none runs"),
        (["down", "--name", "none"], "no lab called none runs"),
        (["stats", "--name", "none"], "no lab called none runs"),
        (["calibrate", "nowhere"], "neither a file nor a testbed"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for user in ("network", "running_lab"):
        monkeypatch.setattr(f"farflung.lab.{user}.check_machine", lambda needs_nft=False: None)
    assert run(["lab", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_an_impossible_rate_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farflung.lab.network.check_machine", lambda needs_nft=False: None)
    path = tmp_path / "impossible.json"
    path.write_text(json.dumps(TOPOLOGY | {"bandwidth_mbps": [[0, -50], [50, 0]]}))
    assert run(["lab", "up", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["stats"],
        ["cut", "a"],
        ["set", "a", "b", "--ms", "1"],
        ["heal"],
        ["up", "lan"],
        ["down"],
        ["exec", "a", "--", "true"],
        ["calibrate"],
        ["run", "none.py", "--topology", "lan"],
        ["run", "none.py", "--topology", "lan", "--emulate-devices"],
    ],
)
def test_every_command_says_that_it_needs_root(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(["lab", *command]) == 2
    assert capsys.readouterr().err == (
        "error: the lab needs root for its network namespaces: run this command with sudo\n"
    )


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("sys.platform", "darwin", "the lab needs Linux"),
        ("os.geteuid", lambda: 1000, "the lab needs root"),
        ("tun.DEVICE", Path("/nonexistent/tun"), "which is not there: modprobe tun"),
        ("shutil.which", lambda name: None, "apt install iproute2"),
        ("shutil.which", lambda name: None if name == "nft" else "/sbin/ip", "apt install nftables"),
    ],
)
def test_a_machine_that_cannot_carry_a_lab_is_told_what_helps(
    attribute: str,
    value: object,
    words: str,
    topology: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(machine.tun, "DEVICE", Path("/dev/null"))
    module, _, name = attribute.partition(".")
    monkeypatch.setattr(getattr(machine, module), name, value)
    assert run(["lab", "up", str(topology)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
