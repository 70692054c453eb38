"""Training goes on when links fail: cut and healed, at another address, with another certificate; or it ends
within the lease, for a reason that names the cause. Real processes, each in a network namespace of its own.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from tests.end_to_end import homes
from tests.end_to_end.homes import LEASE_SECONDS, Homes
from tests.support.broker_fleet import broker
from tests.support.processes import Machines, Run, eventually, machines, train

from farflung.broker.security.authority import create_token
from farflung.errors import LabError
from farflung.lab.network import check_machine
from farflung.lab.spec import LinkSettings, Node
from farflung.transport.net.addresses import parse_address
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.lab, pytest.mark.faults]

STEPS = 30
SHORT_CUT_SECONDS = 2.0  # TCP gets over it
LONG_CUT_SECONDS = 0.65 * LEASE_SECONDS  # each link is given up, and made again before the lease is over


class Place:
    """A broker, two workers that compute for a submitter, and the network between them."""

    def __init__(self, at: Homes) -> None:
        self.on = on = at.on
        self.network = at.network
        self.broker = at.broker()
        token = on.token("worker", "--uses", "2")
        self.workers = {name: on.worker(name, token) for name in ("a", "b")}
        for worker in self.workers.values():
            worker.says("registered", "idle in the backup pool")
        self._joins = ["--token", on.token("submitter"), "--broker", on.address]

    def train(self, name: str, *arguments: str) -> Run:
        """Start a run on both workers."""
        run = train(self.on, name, "--workers", "2", *self._joins, *arguments)
        run.reaches(1)
        self._joins = []
        return run

    def whole(self, run: Run) -> list[float]:
        """The losses of a run that ends as it should."""
        assert run.command.code() == 0, run.command.err
        assert len(run.rows) == STEPS
        return [row["loss"] for row in run.rows]

    def regroups(self, run: Run) -> None:
        """Cut the link between the workers until both have given it up, and the next attempt begins."""
        self.network.cut("a", "b")
        eventually("the workers link up again", lambda: bool(run.events("regrouping")))
        self.network.heal("a", "b")

    def rejoin(self, name: str) -> None:
        self.workers[name].process.wait()
        self.workers[name] = self.on.worker(name)
        self.workers[name].says("idle in the backup pool")
        self.on.idle("a", "b")

    def close(self) -> None:
        for command in (*self.workers.values(), self.broker):
            command.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    try:
        check_machine()
    except LabError as error:
        pytest.skip(str(error))
    nodes, line = (Node("a"), Node("b")), LinkSettings(latency_ms=2.0)
    with homes.homes(tmp_path_factory.mktemp("place"), *nodes, line=line) as on:
        place = Place(on)
        yield place
        place.close()


@pytest.fixture(scope="module")
def losses(place: Place) -> list[float]:
    """Those of a run that nothing disturbs."""
    return place.whole(place.train("undisturbed", "--steps", str(STEPS)))


def test_cut_and_healed_links_cost_no_step(place: Place, losses: list[float]) -> None:
    run = place.train("cut", "--steps", str(STEPS))
    for step, seconds in ((5, SHORT_CUT_SECONDS), (20, LONG_CUT_SECONDS)):
        run.reaches(step)
        place.network.cut("a")
        time.sleep(seconds)
        place.network.heal("a")
    assert place.whole(run) == losses
    place.workers["a"].says("linked to the broker again")
    place.workers["a"].says("linked to b again")
    run.command.says("linked to worker a again")


@pytest.mark.full
def test_a_cut_changes_no_bit_of_what_codecs_write(place: Place) -> None:
    """What was written is kept until it was taken, and masks until their gradients passed."""
    coded = ["--steps", str(STEPS), "--codec", "row-topk30-int4/masked30-int4"]
    losses = place.whole(place.train("coded", *coded))
    run = place.train("coded-cut", *coded)
    run.reaches(5)
    place.network.cut("a")
    time.sleep(LONG_CUT_SECONDS)
    place.network.heal("a")
    run.reaches(20)
    place.regroups(run)
    assert place.whole(run) == losses
    place.workers["a"].says("linked to b again")


@pytest.mark.full
def test_a_link_that_is_cut_beyond_the_lease_costs_the_step_in_flight(
    place: Place, losses: list[float]
) -> None:
    run = place.train("regrouped", "--steps", str(STEPS))
    run.reaches(5)
    place.regroups(run)
    assert place.whole(run) == losses
    assert {row["attempt"] for row in run.rows} == {1, 2} and not run.events("rolled back")


@pytest.mark.full
def test_a_worker_may_move_to_another_address(place: Place, losses: list[float]) -> None:
    run = place.train("moved", "--steps", str(STEPS))
    run.reaches(5)
    address = place.network.readdress("b")
    assert place.whole(run) == losses
    place.broker.says("worker b moved to", address)
    place.workers["a"].says("linked to b again")
    run.command.says("linked to worker b again")


@pytest.mark.full
def test_a_frozen_worker_that_thaws_within_the_lease_costs_no_step(place: Place, losses: list[float]) -> None:
    run = place.train("frozen", "--steps", str(STEPS))
    run.reaches(5)
    place.workers["b"].signal(signal.SIGSTOP)
    time.sleep(LONG_CUT_SECONDS)
    place.workers["b"].signal(signal.SIGCONT)
    assert place.whole(run) == losses
    place.workers["b"].says("linked to the broker again")


@pytest.mark.full
def test_a_worker_that_is_switched_off_is_lost_when_its_lease_is_over(place: Place) -> None:
    run = place.train("off")
    place.network.cut("a")
    place.workers["a"].signal(signal.SIGKILL)  # and no word of it gets out: the others' links are half open
    reason = run.ends_an_attempt()
    run.stops()
    silence = f"nothing heard from worker a for {LEASE_SECONDS:g} s"
    assert "worker a was lost at step" in reason and silence in reason
    place.network.heal("a")
    place.rejoin("a")


@pytest.mark.full
def test_a_worker_that_is_rebooted_leaves_no_half_open_link(place: Place) -> None:
    run = place.train("rebooted")
    place.network.cut("a")
    place.workers["a"].signal(signal.SIGKILL)
    place.workers["a"].process.wait()
    time.sleep(1)
    place.workers["a"] = place.on.worker("a")
    place.network.heal("a")
    reason = run.ends_an_attempt()
    run.stops()
    assert "worker a was lost at step" in reason
    assert any(words in reason for words in ("it connected again", "may have died", "nothing heard"))
    place.workers["a"].says("idle in the backup pool")
    place.on.idle("a", "b")


@pytest.mark.full
def test_a_worker_that_is_back_before_its_death_shows_is_admitted_at_its_second_try(place: Place) -> None:
    before, place.workers["a"] = place.workers["a"], place.on.worker("a")
    place.workers["a"].says("connected already", "asking once more")
    before.signal(signal.SIGKILL)
    place.workers["a"].says("idle in the backup pool")
    place.on.idle("a", "b")


CERTIFICATE_SECONDS = 30.0  # half of it is over in the middle of the run
RENEWED = "the certificate was renewed"


def serial_shown_at(address: str, viewer: Identity) -> int:
    """The serial number of the certificate that a worker's port shows to a new connection."""
    host, port = parse_address(address)
    with socket.create_connection((host, port)) as plain:
        context = viewer.client_context()
        context.check_hostname = False
        with context.wrap_socket(plain) as secured:
            shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.full
def test_certificates_renewed_in_mid_training_cost_no_step(tmp_path: Path) -> None:
    def train_meanwhile(on: Machines) -> None:
        token = create_token(tmp_path / "broker", "worker", uses=2).text
        workers = [on.worker(name, token) for name in ("a", "b")]
        for worker in workers:
            worker.says("idle in the backup pool")
        joins = ["--token", create_token(tmp_path / "broker", "submitter").text, "--broker", on.address]
        run = train(on, "run", "--workers", "2", *joins)
        run.reaches(1)
        listening = next(line for line in workers[0].err.splitlines() if "worker a listens on" in line)
        shown = serial_shown_at(listening.split()[-1], Identity.load(on.folder / "a" / "worker"))
        before = [worker.err.count(RENEWED) for worker in workers]
        for worker, count in zip(workers, before, strict=True):
            eventually("it is renewed", lambda w=worker, c=count: w.err.count(RENEWED) > c)  # type: ignore[misc]
        run.reaches(len(run.rows) + 5)
        assert serial_shown_at(listening.split()[-1], Identity.load(on.folder / "a" / "worker")) != shown
        run.command.signal(signal.SIGINT)
        assert run.command.code() == 130
        assert [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))
        assert {row["attempt"] for row in run.rows} == {1}
        for worker in workers:
            assert "lost the link" not in worker.err
            worker.stop()

    async def scene(on: Machines) -> None:
        async with broker(tmp_path / "broker", Timeouts(LEASE_SECONDS), CERTIFICATE_SECONDS) as service:
            on.address = service.address
            await asyncio.to_thread(train_meanwhile, on)

    with machines(tmp_path / "machines") as on:
        asyncio.run(scene(on))
