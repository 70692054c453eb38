"""The two ends of what `benchmarks/links.py` measures: a link and a plain TCP socket, two processes each.

Every process reads one order a line from standard input and answers with one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from farflung.transport.endpoint import Handler, Hello, Link, LinkOptions, dial, listen
from farflung.transport.net.sockets import ask_for_congestion_control, path_state
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.headers import DataHeader, ValueHeader
from transport import RECEIVER, SENDER, payload_of

PORT = 7700
PLAIN_BYTES = 256 * 1024
FULL_BYTES = 32 * 2**20
AHEAD_BYTES = 4 * 2**20
LARGE_BYTES = 2**18
"""Above this size framing, a two-hundredth at most, is counted as if it were payload."""


class Order(msgspec.Struct, tag=True):
    """Base of what the benchmark asks of an end."""


class Flow(Order):
    """Messages of `size` bytes without a pause; the receiver counts `seconds` after `warm_up` seconds."""

    size: int
    warm_up: float
    seconds: float


class Bursts(Order):
    """`count` times: `pause` seconds of silence, then `size` bytes in one message."""

    size: int
    pause: float
    count: int


class Urgent(Order):
    """`count` commits over a control link and gradients of `size` bytes over a full one."""

    size: int
    count: int
    warm_up: float


Orders = Flow | Bursts | Urgent


class Setting(msgspec.Struct):
    """What both ends of a system are started with."""

    address: str
    congestion_control: str


def say(**facts: Any) -> None:
    """Answer the benchmark."""
    print(json.dumps(facts), flush=True)


def hear() -> Orders | None:
    """The next order; None when there is none any more."""
    line = sys.stdin.readline()
    return msgspec.json.decode(line, type=Orders) if line else None


def header(size: int, gradient: bool = False, number: int = 0) -> ValueHeader:
    """What precedes a message."""
    return ValueHeader("benchmark", 1, 0, number, 0, 1, 7, gradient, 0, size)


class Receiver:
    """Takes what comes over any number of links; answers control messages with themselves."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.link: Link | None = None
        self.controls: Link | None = None
        self.arrived: asyncio.Queue[tuple[ValueHeader, float]] = asyncio.Queue()

    def control(self, link: Link, message: bytes) -> None:
        self.controls = link
        link.send_control(message)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        self.link = link
        self.started.set()
        return memoryview(bytearray(header.bytes))

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        assert isinstance(header, ValueHeader)
        self.arrived.put_nowait((header, time.monotonic()))

    def closed(self, link: Link, reason: str) -> None:
        pass


class Echo:
    """The sender's handler: keeps what the receiver says."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()

    def control(self, link: Link, message: bytes) -> None:
        self.said.put_nowait(message)

    def opening(self, link: Link, header: DataHeader) -> memoryview | None:
        raise AssertionError("the receiver sends no data")

    def complete(self, link: Link, header: DataHeader, buffer: memoryview) -> None:
        raise AssertionError("the receiver sends no data")

    def closed(self, link: Link, reason: str) -> None:
        pass


def options(setting: Setting) -> LinkOptions:
    """How both ends of a link are pinned."""
    return LinkOptions(congestion_control=setting.congestion_control)


async def link_receiver(identity: Identity, setting: Setting) -> None:
    """Take messages, one order after the other."""
    own, receiver = Hello(RECEIVER.id, RECEIVER.role, "data"), Receiver()
    listener = await listen(
        f"{setting.address}:{PORT}", identity.server_context(False), own, lambda link: receiver,
        Timeouts(), options=options(setting),
    )  # fmt: skip
    say(ready=True)
    while (order := await asyncio.to_thread(hear)) is not None:
        receiver.started.clear()
        await receiver.started.wait()
        link = receiver.link
        assert link is not None
        if isinstance(order, Flow):
            found = await received(link, order)
        else:
            found = {"arrived": await arrivals(receiver, order), "echoes_resent": resent(receiver.controls)}
        await link.close("measured")
        say(**found)
        receiver.arrived = asyncio.Queue()
    await listener.close()


async def received(link: Link, order: Flow) -> dict[str, float]:
    """The rate at which bytes come, framing included."""
    await asyncio.sleep(order.warm_up)
    begin, before = time.monotonic(), link.bytes_received
    await asyncio.sleep(order.seconds)
    return {"bytes_per_second": (link.bytes_received - before) / (time.monotonic() - begin)}


async def arrivals(receiver: Receiver, order: Bursts | Urgent) -> list[float]:
    """When the bursts, or the gradients, were here."""
    times: list[float] = []
    while len(times) < order.count:
        found, at = await receiver.arrived.get()
        if isinstance(order, Bursts) or found.gradient:
            times.append(at)
    return times


async def link_sender(identity: Identity, setting: Setting) -> None:
    """Dial a link for every order and send what it asks for."""

    async def dialled(kind: Literal["control", "data"], handler: Handler) -> Link:
        own = Hello(SENDER.id, SENDER.role, kind)
        address, context = f"{setting.address}:{PORT}", identity.client_context()
        return await dial(address, context, own, RECEIVER, handler, Timeouts(), options(setting))

    say(ready=True)
    while (order := await asyncio.to_thread(hear)) is not None:
        link = await dialled("data", Echo())
        if isinstance(order, Flow):
            say(payload_share=await flow(link, order.size), **told(link))
        elif isinstance(order, Bursts):
            say(posted=await bursts(link, order), **told(link))
            await gone(link)
        else:
            echo = Echo()
            control = await dialled("control", echo)
            filling = asyncio.create_task(flow(link, FULL_BYTES))
            await asyncio.sleep(order.warm_up)
            trips = asyncio.create_task(round_trips(control, echo, order.count))
            posted = await gradients(link, order)
            say(round_trips=await trips, posted=posted, commits_resent=resent(control), **told(link))
            await filling
            await control.close("measured")


def resent(control: Link | None) -> int:
    """How many packets of a control link the kernel sent again."""
    state = None if control is None else path_state(control._transport.socket)
    return 0 if state is None else state.retransmitted


def told(link: Link) -> dict[str, Any]:
    """What the link says of itself."""
    return {"congestion_control": link.congestion_control, "connections": link.connections}


async def gone(link: Link) -> None:
    """Until the receiver has hung up."""
    while link.reason is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def flow(link: Link, size: int) -> float:
    """Send without a pause until the receiver hangs up; payload's share of the bytes."""
    ahead = max(4, AHEAD_BYTES // size)
    payload, room, number = payload_of(size), asyncio.Semaphore(ahead), 0
    messages, count = 0, 0
    while link.reason is None:
        await room.acquire()
        if number == ahead:
            messages, count = link.messages_sent, link.bytes_sent
        link.post(header(size, number=number), payload, room.release)
        number += 1
    messages, count = link.messages_sent - messages, link.bytes_sent - count
    return messages * size / count if size <= LARGE_BYTES and number > 2 * ahead else 1.0


async def bursts(link: Link, order: Bursts) -> list[float]:
    """When each burst was posted."""
    posted = []
    for number in range(order.count):
        await asyncio.sleep(order.pause)
        posted.append(time.monotonic())
        link.post(header(order.size, number=number), payload_of(order.size))
    return posted


async def gradients(link: Link, order: Urgent) -> list[float]:
    """When each gradient was posted."""
    posted = []
    for number in range(order.count):
        await asyncio.sleep(0.25)
        posted.append(time.monotonic())
        link.post(header(order.size, True, number), payload_of(order.size))
    return posted


async def round_trips(control: Link, echo: Echo, count: int) -> list[float]:
    """Seconds that each of `count` small control messages took to come back."""
    found = []
    for _ in range(count):
        begin = time.monotonic()
        control.send_control(os.urandom(100))
        await echo.said.get()
        found.append(time.monotonic() - begin)
        await asyncio.sleep(0.25)
    return found


def plain_receiver(setting: Setting) -> None:
    """Count what a plain socket brings."""
    listener = socket.create_server((setting.address, PORT + 1))
    ask_for_congestion_control(listener, setting.congestion_control)
    say(ready=True)
    while (order := hear()) is not None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if isinstance(order, Flow):
                say(bytes_per_second=_count(connection, order))
            elif isinstance(order, Bursts):
                say(arrived=_take(connection, order))


def _count(connection: socket.socket, order: Flow) -> float:
    buffer, taken = bytearray(2**20), connection.recv(1)
    start = time.monotonic()
    begin, before, total = 0.0, 0, len(taken)
    while True:
        total += connection.recv_into(buffer)
        now = time.monotonic()
        if not begin and now - start >= order.warm_up:
            begin, before = now, total
        if begin and now - begin >= order.seconds:
            return (total - before) / (now - begin)


def _take(connection: socket.socket, order: Bursts) -> list[float]:
    buffer, times = memoryview(bytearray(order.size)), []
    for _ in range(order.count):
        filled = 0
        while filled < order.size:
            filled += connection.recv_into(buffer[filled:])
        times.append(time.monotonic())
    return times


def plain_sender(setting: Setting) -> None:
    """Fill a plain socket."""
    say(ready=True)
    while (order := hear()) is not None:
        with socket.socket() as connection:
            ask_for_congestion_control(connection, setting.congestion_control)
            connection.connect((setting.address, PORT + 1))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if isinstance(order, Bursts):
                say(posted=_plain_bursts(connection, order))
            else:
                _plain_flow(connection)
                say(posted=[])


def _plain_bursts(connection: socket.socket, order: Bursts) -> list[float]:
    posted = []
    for _ in range(order.count):
        time.sleep(order.pause)
        posted.append(time.monotonic())
        connection.sendall(payload_of(order.size))
    connection.recv(1)
    return posted


def _plain_flow(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(payload_of(PLAIN_BYTES))
    except OSError:
        pass  # the receiver has seen enough


def main(system: str, side: str, folder: str, setting_json: str) -> None:
    """Be one of the four processes."""
    setting = msgspec.json.decode(setting_json, type=Setting)
    if system == "plain":
        (plain_sender if side == "sender" else plain_receiver)(setting)
        return
    identity = Identity.load(Path(folder) / side)
    asyncio.run((link_sender if side == "sender" else link_receiver)(identity, setting))


if __name__ == "__main__":
    main(*sys.argv[1:])
