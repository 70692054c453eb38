"""Peers that wish a broker or a worker ill: each is refused with a reason, and the victim goes on."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.hostile_programs import segment_of
from tests.support.processes import Command, Machines, machines, train

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store
from farflung.errors import ConnectionFailed
from farflung.opdag import wire
from farflung.opdag.graph import Ref, ValueType
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.protocol import messages
from farflung.protocol.messages import Attach, Attached, Ended, Load, Refused, Register, Registered, Submit
from farflung.protocol.worker import SegmentProgram
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training
from farflung.transport.endpoint import Hello, Link, Listener, Peer, dial, listen
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity
from farflung.transport.security.tokens import Token
from farflung.transport.timeouts import Timeouts

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

DEADLINE_SECONDS = 60.0
BROKER = Peer("broker", "broker")
PLAN = Plan([Placement(0, ["a"], 1, 0, 1)], [Edge(0, FEEDER, 0, 32, False)], 2, 1)
TRAINING = Training(steps=1, microbatches=2, microbatch_size=2, optimizer=SGD(lr=0.1))


class Handler:
    """Keeps what it hears; takes no data."""

    def __init__(self, union: Any) -> None:
        self._union = union
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def control(self, link: Link, message: bytes) -> None:
        said = messages.decode(message, self._union)
        if isinstance(said, Attach):
            link.send_control(messages.encode(Attached()))
        else:
            self.heard.put_nowait(said)

    def opening(self, link: Link, header: object) -> memoryview | None:
        return None

    def complete(self, link: Link, header: object, buffer: memoryview) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    async def wait_for(self, kind: type) -> Any:
        """The next message of this kind."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not isinstance(message := await self.heard.get(), kind):
                pass
        return message


class Place:
    """A broker, a worker, and identities that both admit."""

    def __init__(self, on: Machines) -> None:
        self.on = on
        self.broker = on.broker()
        self.worker = on.worker("a", on.token("worker"))
        self.worker.says("idle in the backup pool")
        self.submitter = self.joined("submitter", "desk")
        listening = next(line for line in self.worker.err.splitlines() if "worker a listens on" in line)
        self.worker_address = listening.split()[-1]

    def joined(self, role: Any, name: str) -> Identity:
        """A new holder."""
        token = Token.parse(self.on.token(role))
        folder = self.on.folder / "holders" / name
        return asyncio.run(enrol(self.on.address, token, folder, role, name)).identity

    def works(self) -> None:
        """Broker and worker still train a job."""
        out = f"run-{len(list(self.on.folder.glob('run-*')))}"
        where = ["--broker", self.on.address, "--folder", str(self.submitter.folder)]
        run = train(self.on, out, "--steps", "2", *where)
        assert run.command.code() == 0, run.command.err
        assert "Traceback" not in self.broker.err + self.worker.err


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with machines(tmp_path_factory.mktemp("place")) as on:
        place = Place(on)
        yield place
        place.works()
        place.worker.stop()
        place.broker.stop()


async def refused(address: str, identity: Identity, hello: Hello, expected: Peer) -> str:
    """Why a connection did not come about, or was closed at once."""
    handler = Handler(messages.ToViewer)
    try:
        await dial(address, identity.client_context(), hello, expected, handler, Timeouts())
    except ConnectionFailed as error:
        return str(error)
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await handler.over


@pytest.mark.parametrize("victim", ["broker", "worker"])
def test_a_certificate_of_another_authority_is_refused(place: Place, victim: str, tmp_path: Path) -> None:
    with Store(tmp_path / "authority") as store:
        stranger = Authority.open(tmp_path / "authority", store).identity()
        address = place.on.address if victim == "broker" else place.worker_address
        expected = BROKER if victim == "broker" else Peer("a", "worker")
        hello = Hello("broker", "broker", "control" if victim == "broker" else "data")
        reason = asyncio.run(refused(address, stranger, hello, expected))
    assert "its certificate was refused" in reason
    # And the other way round: somebody who does not care whom he talks to.
    careless = stranger.client_context()
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    assert asyncio.run(_careless(address, careless, hello, expected))


async def _careless(address: str, context: Any, hello: Hello, expected: Peer) -> str:
    with pytest.raises(ConnectionFailed) as error:
        await dial(address, context, hello, expected, Handler(messages.ToViewer), Timeouts())
    return str(error.value)


@pytest.mark.parametrize("victim", ["broker", "worker"])
def test_another_holders_name_is_refused(place: Place, victim: str) -> None:
    mallory = place.joined("worker", f"mallory-{victim}")
    address = place.on.address if victim == "broker" else place.worker_address
    expected = BROKER if victim == "broker" else Peer("a", "worker")
    hello = Hello("b", "worker", "control" if victim == "broker" else "data")
    reason = asyncio.run(refused(address, mallory, hello, expected))
    assert f"the certificate is of worker mallory-{victim}, but the hello is from worker b" in reason


def test_a_worker_cannot_say_what_only_a_submitter_may(place: Place) -> None:
    async def scene() -> str:
        handler = Handler(messages.ToWorker)
        hello = Hello(eve.id, eve.role, "control")
        link = await dial(place.on.address, eve.client_context(), hello, BROKER, handler, Timeouts())
        link.send_control(messages.encode(Submit("theft", b"", TRAINING, 0)))
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await handler.over

    eve = place.joined("worker", "eve")
    assert "a control message was refused" in asyncio.run(scene())


def hostile_graphs() -> list[bytes]:
    segment = wire.dump(relu())
    return [
        b"",
        os.urandom(1000),
        segment,
        segment[:40],
        b"\xdd\xff\xff\xff\xff" + bytes(100),
        b"\x91" * 10**6,
    ]


def relu() -> Any:
    value = ValueType("float32", [2, 4])
    return segment_of([value], [("relu.default", {"self": Ref(0)}, [1])], [value])


def test_a_garbage_graph_fails_its_job_only(place: Place) -> None:
    async def scene() -> list[Ended]:
        handler = Handler(messages.ToSubmitter)
        me = place.submitter
        hello = Hello(me.id, me.role, "control")
        link = await dial(place.on.address, me.client_context(), hello, BROKER, handler, Timeouts())
        ends = []
        for graph in hostile_graphs():
            link.send_control(messages.encode(Submit("evil\n\x1b[2Jname", graph, TRAINING, 0)))
            ends.append(await handler.wait_for(Ended))
        await link.close("enough")
        return ends

    ends = asyncio.run(scene())
    assert len(ends) == len(hostile_graphs())
    for ended in ends:
        assert ended.state == "failed" and ended.reason.isprintable() and ended.reason
    jobs = place.on.document("desk", "status", "--folder", str(place.submitter.folder))["jobs"]
    assert all(job["name"].isprintable() for job in jobs)


class Tyrant:
    """A broker that gives its worker what it likes."""

    def __init__(self, listener: Listener, workers: asyncio.Queue[tuple[Link, Handler]]) -> None:
        self.listener = listener
        self.workers = workers


@asynccontextmanager
async def tyrant(folder: Path, address: str, authority: Authority) -> Any:
    workers: asyncio.Queue[tuple[Link, Handler]] = asyncio.Queue()

    def admit(link: Link) -> Handler:
        handler = Handler(messages.FromWorker)
        workers.put_nowait((link, handler))
        return handler

    identity = await asyncio.to_thread(authority.identity)
    context = identity.server_context(admit_joiners=True)
    hello = Hello("broker", "broker", "control")
    timeouts = Timeouts(3.0)  # the worker waits longer before each return
    listener = await listen(address, context, hello, admit, timeouts, authority.on_joiner)
    try:
        yield Tyrant(listener, workers)
    finally:
        await listener.close("the tyrant is gone")


def hostile_loads() -> dict[str, Load]:
    good = wire.dump(relu())

    def load(program: bytes = good, owned: dict[str, int] | None = None, plan: Plan | None = None) -> Load:
        programs = [SegmentProgram(0, program, owned or {})]
        return Load("job-1", 1, plan or PLAN, TRAINING, programs, {}, "desk")

    def renamed(op: bytes) -> bytes:
        assert len(op) == len(b"aten.relu.default") and b"aten.relu.default" in good
        return good.replace(b"aten.relu.default", op)

    return {
        "empty": load(b""),
        "garbage": load(os.urandom(1000)),
        "op that writes files": load(renamed(b"aten.save.to_file")),
        "op of another library": load(renamed(b"evil.relu.default")),
        "op that is code": load(renamed(b"__import__('os')\n")),
        "huge state": load(owned={"w": 2**53}),
        "state that no program names": load(owned={"../../w": 16}),
        "no program": msgspec.structs.replace(load(), programs=[]),
        "another worker's plan": load(plan=Plan([Placement(0, ["z"], 1, 0, 1)], [], 2, 1)),
    }


def broken_plans() -> dict[str, bytes]:
    """A load as it travels, with something in its plan that our own encoder would not write."""

    def encoded(placement: dict[str, object] | None = None, **edge: int) -> bytes:
        load = msgspec.to_builtins(hostile_loads()["garbage"], builtin_types=(bytes,))
        load["plan"]["placements"][0].update(placement or {})
        load["plan"]["edges"][0].update(edge)
        return msgspec.msgpack.encode(load)

    return {
        "edge to nowhere": encoded(target=7),
        "edge from nowhere": encoded(source=7),
        "edge to the feeder": encoded(target=FEEDER),
        "nobody's segment": encoded({"workers": []}),
        "segments out of order": encoded({"segment": 5}),
    }


@pytest.mark.full
def test_a_worker_refuses_what_a_hostile_broker_gives_it(tmp_path: Path) -> None:
    async def scene(on: Machines, authority: Authority, worker: list[Command]) -> dict[str, str]:
        answers: dict[str, str] = {}
        async with tyrant(on.folder, on.address, authority) as broker:
            token = await asyncio.to_thread(authority.create_token, "worker")
            worker.append(on.worker("a", token.text))
            async with asyncio.timeout(DEADLINE_SECONDS):
                link, handler = await broker.workers.get()
            await handler.wait_for(Register)
            link.send_control(messages.encode(Registered("a")))
            for number, (name, load) in enumerate(hostile_loads().items()):
                attempt = msgspec.structs.replace(load, attempt=number)
                link.send_control(messages.encode(attempt))
                refusal = await handler.wait_for(Refused)
                assert refusal.attempt == number
                answers[name] = refusal.reason
            for name, encoded in broken_plans().items():
                link.send_control(encoded)
                async with asyncio.timeout(DEADLINE_SECONDS):
                    answers[name] = await handler.over
                    link, handler = await broker.workers.get()  # it comes back
                await handler.wait_for(Register)
                assert "a control message was refused" in answers[name]
            assert worker[0].process.poll() is None
        return answers

    with machines(tmp_path / "machines") as on, Store(on.folder / "tyrant") as store:
        worker: list[Command] = []
        authority = Authority.open(on.folder / "tyrant", store)
        answers = asyncio.run(scene(on, authority, worker))
        worker[0].stop()
    assert all(reason and "\n" not in reason for reason in answers.values()), answers
    assert "Traceback" not in worker[0].err
    assert "aten.save.to_file" in answers["op that writes files"]
    assert (
        "this worker offers" in answers["huge state"]
        and "has no segment for a" in answers["another worker's plan"]
    )
