"""The attacks, each a coroutine that goes on until it is cancelled. Whatever is refused is tried again."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import msgspec
from benchmarks.hostile.raw import HUNG_UP, RawLink, Target
from benchmarks.hostile.trying import LinkRefused, say_all, together, use_links

from farflung.errors import FarflungError
from farflung.protocol import messages
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Ask, Denied, Load, Message, Moved, Refused, Register, Renew, Submit
from farflung.protocol.probing import AskTopology
from farflung.protocol.registration import Device
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training
from farflung.transport.endpoint import ask
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import new_key, signing_request, unverified_context
from farflung.transport.security.tokens import SECRET_BYTES
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES

Attack = Callable[[Target], Awaitable[None]]

SILENT_SOCKETS = 400
JOINS_AT_ONCE = 8
HANDSHAKES_AT_ONCE = 32
LINKS_AT_ONCE = 100
UNFINISHED_AT_ONCE = 20
FLOODS_AT_ONCE = 4
JOBS = 3000
GRAPH_BYTES = 100_000
WORKERS_THAT_ARE_NOT_THERE = 50

UNREACHABLE = (["203.0.113.7:7001"], ["203.0.113.8:7001", "203.0.113.9:7001"])
DEVICE = Device("cpu", "of an attacker", 8, 2**36, "2.13.0", Opset.own(), tflops=10.0)
TRAINING = Training(steps=10, microbatches=2, microbatch_size=2, optimizer=SGD(lr=0.1))


async def nothing(at: Target) -> None:
    """Do nothing: what is measured then is the noise of the measurement."""
    await asyncio.Event().wait()


async def idle_loop(at: Target) -> None:
    """Use up the attacker's CPU and leave the fleet alone: what that costs is no fault of the broker's."""
    while True:
        for _ in range(10_000):
            pass
        await asyncio.sleep(0)


async def silent_sockets(at: Target) -> None:
    """Connect and say nothing; every second one begins a TLS record first."""

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(*at.host_and_port)
        try:
            writer.write(b"\x16\x03\x01" if number % 2 else b"")
            await reader.read()
            at.tally.refuse(HUNG_UP)
        finally:
            writer.transport.abort()

    await together(at, SILENT_SOCKETS, one)


async def wrong_joins(at: Target) -> None:
    """Ask for a certificate with a secret that no token has."""
    context, key = unverified_context(), new_key()
    request = signing_request(key, "mallory", "worker")

    async def one(number: int) -> None:
        wrong = join_messages.AskCertificate(os.urandom(SECRET_BYTES), "mallory", "worker", request)
        reply = await ask(at.address, context, None, join_messages.encode(wrong), 10.0)
        answer = join_messages.decode_answer(reply)
        at.tally.refuse(answer.reason if isinstance(answer, join_messages.Refuse) else "")

    await together(at, JOINS_AT_ONCE, one)


async def handshake_flood(at: Target) -> None:
    """Send one ClientHello again and again: the broker signs and computes keys, the attacker nothing."""
    hello = client_hello()

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(*at.host_and_port)
        try:
            writer.write(hello)
            if not await reader.read(1):
                at.tally.refuse(HUNG_UP)
        finally:
            writer.transport.abort()

    await together(at, HANDSHAKES_AT_ONCE, one)


async def many_links(at: Target) -> None:
    """Open link after link, and keep all."""
    await use_links(at, LINKS_AT_ONCE, _keep)


async def unfinished_messages(at: Target) -> None:
    """Begin messages, as large as they may be and larger, and send all but their last byte."""
    kind, most = LARGEST[at.holder.role]
    head = b"\x82\xa4type" + bytes([0xA0 + len(kind)]) + kind

    bodies = [head + bytes(total - len(head) - 1) for total in (most, MAXIMUM_CONTROL_BYTES)]

    async def one(link: RawLink, number: int) -> None:
        body = bodies[number % 2]
        listening = asyncio.create_task(link.until_closed())
        try:
            with suppress(OSError):
                await link.send(body, len(body) + 1)
            raise LinkRefused(await listening)
        finally:
            listening.cancel()

    await use_links(at, UNFINISHED_AT_ONCE, one)


LARGEST = {
    "viewer": (b"Ask", 8 * 2**10),
    "worker": (b"UnitReady", 16 * 2**20),
    "submitter": (b"Submit", MAXIMUM_CONTROL_BYTES),
}
"""The kind of the largest message that a role may send, and its bytes."""


async def renewals(at: Target) -> None:
    """Ask for a new certificate without pause."""
    await _flood(at, lambda: Renew(at.holder.renewal_request()))


async def questions(at: Target) -> None:
    """Ask for the status without pause."""
    await _flood(at, Ask)


async def surveys(at: Target) -> None:
    """Request a survey of all lines without pause."""
    await _flood(at, lambda: AskTopology(survey=True))


async def many_jobs(at: Target) -> None:
    """Submit 3,000 jobs, each of which needs more workers than there are."""
    numbers = iter(range(JOBS))

    async def one(link: RawLink, _: int) -> None:
        await say_all(at, link, (_job(f"many-{number}") for number in numbers), _count_denials(at))

    await use_links(at, 1, one)


async def job_in_the_way(at: Target) -> None:
    """Submit three jobs that cannot run, before the honest one that is submitted then."""

    async def one(link: RawLink, _: int) -> None:
        await say_all(at, link, (_job(f"in-the-way-{number}") for number in range(3)), _count_denials(at))

    await use_links(at, 1, one)


async def moves(at: Target) -> None:
    """Register, then say without pause that the addresses have changed."""

    async def one(link: RawLink, _: int) -> None:
        await link.say(_registration(at))
        await say_all(at, link, (Moved(list(UNREACHABLE[number % 2])) for number in count()), None)

    await use_links(at, 1, one)


async def refused_loads(at: Target) -> None:
    """Register as the best of all workers, and refuse every job."""

    async def one(link: RawLink, _: int) -> None:
        def hear(message: bytes) -> None:
            said = messages.decode(message, messages.ToWorker)
            if isinstance(said, Load):
                at.tally.tries += 1
                answers.put_nowait(Refused(said.job, said.attempt, "I would rather not"))

        async def answer() -> None:
            while True:
                await link.say(await answers.get())

        answers: asyncio.Queue[Message] = asyncio.Queue()
        await link.say(_registration(at))
        answering = asyncio.create_task(answer())
        try:
            raise LinkRefused(await link.until_closed(hear))
        finally:
            answering.cancel()

    await use_links(at, 1, one)


ATTACKS: dict[tuple[str, str], Attack] = {
    ("nothing", "stranger"): nothing,
    ("idle loop", "stranger"): idle_loop,
    ("silent sockets", "stranger"): silent_sockets,
    ("wrong joins", "stranger"): wrong_joins,
    ("handshake flood", "stranger"): handshake_flood,
    ("many links", "viewer"): many_links,
    ("unfinished messages", "viewer"): unfinished_messages,
    ("renewals", "viewer"): renewals,
    ("questions", "viewer"): questions,
    ("many links", "submitter"): many_links,
    ("unfinished messages", "submitter"): unfinished_messages,
    ("many jobs", "submitter"): many_jobs,
    ("job in the way", "submitter"): job_in_the_way,
    ("surveys", "submitter"): surveys,
    ("many links", "worker"): many_links,
    ("unfinished messages", "worker"): unfinished_messages,
    ("renewals", "worker"): renewals,
    ("moves", "worker"): moves,
    ("refused loads", "worker"): refused_loads,
}
"""By name and role of the attacker; "nothing" and "idle loop" are the controls."""


def client_hello() -> bytes:
    """The first bytes of a TLS handshake with a broker, as an honest joiner begins it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = unverified_context().wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def _registration(at: Target) -> Register:
    return Register(DEVICE, "nowhere", list(UNREACHABLE[0]), f"boot-{at.holder.id}")


def _job(name: str) -> Submit:
    graph = os.urandom(GRAPH_BYTES)  # equal ones would be stored once
    return Submit(name, graph, TRAINING, WORKERS_THAT_ARE_NOT_THERE)


def _count_denials(at: Target) -> Callable[[bytes], None]:
    def hear(message: bytes) -> None:
        with suppress(msgspec.DecodeError, FarflungError):
            said = messages.decode(message, messages.ToSubmitter)
            if isinstance(said, Denied):
                at.tally.refuse(said.reason)

    return hear


async def _flood(at: Target, make: Callable[[], Message]) -> None:
    async def one(link: RawLink, _: int) -> None:
        said = make()
        await say_all(at, link, (said for _ in count()), None)

    await use_links(at, FLOODS_AT_ONCE, one)


async def _keep(link: RawLink, _: int) -> None:
    """Hold a link; `use_links` counts why it ended."""
    raise LinkRefused(await link.until_closed())
