"""Workers behind NAT and on IPv6 only, each in a network namespace of its own, train as on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.homes import STEPS, Homes, homes
from tests.support.processes import Run, train

from farflung.errors import LabError
from farflung.lab.network import check_machine
from farflung.lab.spec import Node

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.lab]


@pytest.fixture(scope="module", autouse=True)
def lab_machine() -> None:
    try:
        check_machine(needs_nft=True)
    except LabError as error:
        pytest.skip(str(error))


def losses(run: Run) -> list[float]:
    """Of every step of a run that ends well."""
    assert run.command.code() == 0, run.command.err
    assert len(run.rows) == STEPS
    return [row["loss"] for row in run.rows]


class Place:
    """Worker a can be dialled and relays, b and c stand behind NAT; the desk can be dialled."""

    def __init__(self, on: Homes) -> None:
        self.on = on
        self.broker = on.broker()
        self.workers = {"a": on.worker("a", "--relay", "50"), "b": on.worker("b"), "c": on.worker("c")}
        for worker in self.workers.values():
            worker.says("idle in the backup pool")
        self.expected = losses(train(on.on, "local", "--steps", str(STEPS), "--local", "3"))

    def leave(self, name: str) -> None:
        """Stop a worker, unless it was stopped before."""
        if self.workers[name].process.poll() is None:
            self.workers[name].stop()

    def close(self) -> None:
        """End what still runs, in good order."""
        for name in self.workers:
            self.leave(name)
        self.broker.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    nodes = Node("a"), Node("b", behind_nat=True), Node("c", behind_nat=True)
    with homes(tmp_path_factory.mktemp("homes"), *nodes) as on:
        place = Place(on)
        yield place
        place.close()


def test_workers_behind_nat_dial_back_or_meet_at_a_worker_that_relays(place: Place) -> None:
    assert losses(place.on.train("a", "b", "c")) == place.expected
    paths = place.on.paths()
    assert paths["a", "b"] == paths["b", "a"] == "reverse"
    assert paths["b", "c"] == paths["c", "b"] == "relay through a"
    desk = next(peer for holder, peer in paths if holder == "b" and peer not in "ac")
    assert paths["a", desk] == "direct"
    assert paths["b", desk] == paths[desk, "b"] == paths["c", desk] == "reverse"
    doctor = place.on.on.document("desk", "doctor")
    (explained,) = [one["details"] for one in doctor["findings"] if one["found"] == "b to c: relay through a"]
    assert explained[0].startswith("dialled: ") and "did not answer within" in explained[0]
    assert explained[1].startswith("asked to dial back: ")
    assert " through to b or TCP port " in explained[2] and " through to c (" in explained[2]


@pytest.mark.full
def test_without_another_relay_the_broker_carries_the_link(place: Place) -> None:
    place.leave("a")
    losses(place.on.train("b", "c"))
    assert place.on.paths()["b", "c"] == "relay through broker"


@pytest.mark.full
def test_where_no_way_leads_the_run_fails_and_says_what_was_tried(place: Place) -> None:
    place.leave("a")
    place.broker.stop()
    place.broker = place.on.broker("--relay", "0")
    place.on.on.idle("b", "c")
    reason = place.on.train("b", "c").fails()
    assert "lost the link to worker c: no route to worker c: dialled: " in reason
    assert "over a relay: no relay is on offer" in reason and "What helps: " in reason
    doctor = place.on.on.start("desk", "doctor")
    assert doctor.code() == 1
    (line,) = [line for line in doctor.out.splitlines() if "FAIL" in line]
    assert "b to c: no route" in line


@pytest.mark.full
def test_workers_that_have_ipv6_only_train(tmp_path: Path) -> None:
    with homes(tmp_path, Node("a"), Node("b"), ipv6=True) as on:
        on.forget_ipv4()
        broker = on.broker()
        workers = [on.worker(name) for name in "ab"]
        for worker in workers:
            worker.says("idle in the backup pool")
        losses(on.train("a", "b"))
        links = [view["report"]["link"] for view in on.on.status()["links"]]
        assert links and {link["path"] for link in links} == {"direct"}
        assert all(link["remote"].startswith("[fd") for link in links), links
        for command in (*workers, broker):
            command.stop()
