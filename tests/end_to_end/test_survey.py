"""Workers measure the ways between them: where the settings are known, and where somebody does not answer."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.homes import homes
from tests.support.processes import COMMAND_PAUSE_SECONDS, Command, Machines, eventually, machines, train

from farflung.errors import LabError
from farflung.lab.machine import check_machine
from farflung.lab.spec import LinkSettings, Node

pytestmark = pytest.mark.processes

EMULATED = ("--backend", "emulated", "--tflops", "2.5", "--memory", "4")
LINES = {"a": (8.0, 50.0), "b": (50.0, 8.0), "c": (20.0, 20.0)}
LATENCY_MS = 20.0


@pytest.fixture
def lab_machine() -> None:
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))


def topology(on: Machines, *arguments: str) -> dict[str, Any]:
    """What `farflung topology show --fleet` prints for the submitter."""
    return on.document("desk", "topology", "show", "--fleet", *arguments)


class Loopback(Machines):
    lease_seconds = 16.0  # so that who is frozen is not lost before a survey is over

    def fleet(self, *names: str) -> list[Command]:
        """A broker that surveys nothing unasked, and emulated workers, all on this machine."""
        return [self.broker(), *(self.join(name) for name in names)]

    def join(self, name: str, *arguments: str) -> Command:
        token = self.token("worker")
        where = [self.address, "--name", name, "--listen", "127.0.0.1:0", "--token", token]
        worker = self.start(name, "join", *where, *EMULATED, *arguments)
        worker.says("idle in the backup pool")
        return worker


def off(found: dict[str, Any]) -> list[str]:
    """What differs by more than a tenth from what the lab is set to."""
    wrong: list[str] = []
    names = [worker["id"] for worker in found["topology"]["workers"]]
    for worker in found["topology"]["workers"]:
        up, down = LINES[worker["id"]]
        # A line shows as shared only where two others together are faster than it.
        for what, is_known, expected in (
            ("up_mbps", worker["id"] != "b", up),
            ("down_mbps", worker["id"] != "a", down),
        ):
            value = worker.get(what)
            if (is_known or value is not None) and value != pytest.approx(expected, rel=0.1):
                wrong.append(f"{worker['id']} {what}: {value}, set to {expected}")
    for a, sender in enumerate(names):
        for b, receiver in enumerate(names):
            expected = min(LINES[sender][0], LINES[receiver][1])
            value, latency = found["topology"]["bandwidth_mbps"][a][b], found["topology"]["latency_ms"][a][b]
            if a != b and value != pytest.approx(expected, rel=0.1):
                wrong.append(f"{sender} to {receiver}: {value} Mbit/s, set to {expected}")
            if a != b and latency != pytest.approx(LATENCY_MS, rel=0.1):
                wrong.append(f"{sender} to {receiver}: {latency} ms, set to {LATENCY_MS}")
    return wrong


MOST_REFRESHED = 3  # a machine that is busy for a moment measures what it is busy with


@pytest.mark.full
@pytest.mark.lab
def test_an_idle_fleet_is_surveyed_unasked_and_its_lines_are_what_they_are(
    tmp_path: Path, lab_machine: None
) -> None:
    nodes = [Node(name, up, down) for name, (up, down) in LINES.items()]
    with homes(tmp_path, *nodes, line=LinkSettings(None, LATENCY_MS)) as on:
        broker = on.broker()
        workers = [on.worker(name, "--site", f"home {name}", *EMULATED) for name in LINES]
        broker.says("survey: finished")
        found = topology(on.on, "--token", on.on.token("submitter"), "--broker", on.on.address)
        for _ in range(MOST_REFRESHED):
            if off(found):
                found = topology(on.on, "--refresh")
        asked = "--workers", "3", "--budget", "50", "--no-what-if"
        planned = on.on.document("desk", "plan", "net.py", "--fleet", *asked)
        network_is_void = on.network.stats().void
        broker.stop()
        broker = on.broker()
        for name in LINES:
            broker.says(f"worker {name} joined the backup pool")
        assert len(topology(on.on)["measured"]) == 6  # nobody had to measure it again
        for command in (*workers, broker):
            command.stop()
    if network_is_void:
        pytest.skip("the machine was too busy for the lab to keep its times")
    assert not off(found), off(found)
    assert [worker["site"] for worker in found["topology"]["workers"]] == ["home a", "home b", "home c"]
    assert [worker["tflops"] for worker in found["topology"]["workers"]] == [2.5] * 3
    assert not found["assumed"]
    assert {row["worker"] for row in planned["workers"]} == set(LINES)
    assert planned["step_seconds"] > 4 * 0.9 * LATENCY_MS / 1e3  # there and back over two links
    names, rates = [w["id"] for w in found["topology"]["workers"]], found["topology"]["bandwidth_mbps"]
    for row in planned["links"]:
        if len(row["workers"]) == 2:
            a, b = (names.index(worker) for worker in row["workers"])
            assert row["mbps"] <= rates[a][b] * (1 + 1e-9)  # a line may be slower


WIDE = """
import torch
import farflung
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(1, 1, 3, padding=1) for _ in range(4))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return nn.functional.mse_loss(x.mean(-1), y)


class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"x": torch.sin(torch.arange(65536.0) + index)[None], "y": torch.ones(1)}


def job():
    torch.manual_seed(1)
    return farflung.Job(model=Net(), data=Items(), optimizer=farflung.SGD(lr=0.1),
                        batch=8, microbatches=4, steps=1_000_000)
"""
"""A microbatch is half a megabyte at any cut: enough to see what the link carries."""


@pytest.mark.full
@pytest.mark.lab
def test_a_jobs_traffic_refreshes_the_rate_of_a_link(tmp_path: Path, lab_machine: None) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    slow, fast = 8.0, 24.0
    with homes(tmp_path, Node("a"), Node("b")) as on:
        on.network.set("a", "b", bandwidth_mbps=slow)
        broker = on.broker()
        workers = [on.worker(name) for name in "ab"]
        broker.says("survey: finished")
        where = ["--token", on.on.token("submitter"), "--broker", on.on.address]
        before = way(topology(on.on, *where), "a", "b")
        for _ in range(MOST_REFRESHED):
            if before[0] != pytest.approx(slow, rel=0.2):
                before = way(topology(on.on, "--refresh"), "a", "b")
        on.network.set("a", "b", bandwidth_mbps=fast)
        run = train(on.on, "run", "--on", "a,b", "--scheduler", "equal-compute", job="wide.py")

        after = before

        def is_known() -> bool:
            nonlocal after
            after = way(topology(on.on), "a", "b")
            return after[1] == "traffic" and after[0] == pytest.approx(fast, rel=0.2)

        eventually(f"{fast} Mbit/s by its traffic", is_known, COMMAND_PAUSE_SECONDS)
        run.command.stop()
        after = way(topology(on.on), "a", "b")  # its last steps said something, too
        light = "--scheduler", "equal-compute", "--no-what-if"
        planned = on.on.document("desk", "plan", "wide.py", "--fleet", *light)
        told = [after[0], way(topology(on.on), "a", "b")[0]]  # before the plan, and after it
        for command in (*workers, broker):
            command.stop()
    assert before[1] == "probe" and before[0] == pytest.approx(slow, rel=0.2)
    (forward,) = [row for row in planned["links"] if row["name"] == "the link a -> b"]
    assert slow < forward["mbps"] <= max(told) * 1.01


def way(found: dict[str, Any], sender: str, receiver: str) -> tuple[float, str]:
    """The rate from one worker to another, and where it comes from."""
    names = [worker["id"] for worker in found["topology"]["workers"]]
    rate = found["topology"]["bandwidth_mbps"][names.index(sender)][names.index(receiver)]
    (source,) = [w["source"] for w in found["measured"] if (w["sender"], w["receiver"]) == (sender, receiver)]
    return rate, source


@pytest.mark.full
@pytest.mark.lab
def test_who_stands_behind_nat_is_measured_all_the_same(tmp_path: Path, lab_machine: None) -> None:
    nodes = Node("a"), Node("b", behind_nat=True), Node("c", behind_nat=True)
    with homes(tmp_path, *nodes, line=LinkSettings(40, 10)) as on:
        broker = on.broker()
        workers = [on.worker(name, *EMULATED) for name in "abc"]
        for worker in workers:
            worker.says("idle in the backup pool")
        found = topology(on.on, "--token", on.on.token("submitter"), "--broker", on.on.address)

        def is_whole() -> bool:  # a survey may begin before the last of them is there
            nonlocal found
            found = topology(on.on)
            return sum(not link["problem"] for link in found["measured"]) == 6

        eventually("all ways are measured", is_whole, COMMAND_PAUSE_SECONDS)
        for command in (*workers, broker):
            command.stop()
    assert [worker.get("behind_nat", False) for worker in found["topology"]["workers"]] == [False, True, True]
    assert {
        link["path"] for link in found["measured"] if {link["sender"], link["receiver"]} == {"b", "c"}
    } == {"relay through broker"}
    rates = found["topology"]["bandwidth_mbps"]
    assert all(rates[a][b] > 5 for a in range(3) for b in range(3) if a != b)


@pytest.mark.full
def test_a_frozen_worker_is_a_clear_result_and_no_more(tmp_path: Path) -> None:
    with machines(tmp_path, Loopback) as on:
        broker, a, b, c = on.fleet("a", "b", "c")
        topology(on, "--token", on.token("submitter"), "--broker", on.address)
        b.signal(signal.SIGSTOP)
        told = topology(on, "--refresh")
        b.signal(signal.SIGCONT)
        between = {(link["sender"], link["receiver"]): link for link in told["measured"]}
        assert not between["a", "c"]["problem"] and not between["c", "a"]["problem"]
        broker.says("survey: no link from", "worker b: ")
        with_b = [link for pair, link in between.items() if "b" in pair]
        assert with_b and all("worker b: " in link["problem"] for link in with_b)
        for command in (a, b, c, broker):
            command.stop()


@pytest.mark.full
def test_nobody_is_probed_who_does_not_want_it_nor_at_anybodys_word(tmp_path: Path) -> None:
    with machines(tmp_path, Loopback) as on:
        commands = on.fleet("a", "b")
        commands.append(on.join("c", "--no-probe", "--up-mbps", "12"))
        viewer = ["topology", "show", "--fleet", "--broker", on.address]
        words = on.fails("glass", *viewer, "--refresh", "--token", on.token("viewer"))
        assert "only a submitter may request a survey" in words
        told = topology(on, "--refresh", "--token", on.token("submitter"), "--broker", on.address)
        assert {(link["sender"], link["receiver"]) for link in told["measured"]} == {("a", "b"), ("b", "a")}
        assert told["topology"]["workers"][2]["up_mbps"] == 12
        assert any(words.startswith("4 of 6 links not measured") for words in told["assumed"])
        for command in reversed(commands):
            command.stop()
