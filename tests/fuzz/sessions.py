"""Valid sessions, recorded from real links, as raw frames that can be replayed and damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import msgspec
from tests.fuzz.mutators import Mutator
from tests.support.certificates import TestAuthority
from tests.support.links import RawPeer, Recorder, slice_header, value_header

from farflung.protocol import messages
from farflung.protocol.fields import Opset
from farflung.protocol.messages import (
    Ask,
    AskStep,
    Claim,
    Loaded,
    Refused,
    Register,
    Submit,
    UnitReady,
    Welcome,
)
from farflung.protocol.probing import AskTopology
from farflung.protocol.registration import Device
from farflung.protocol.worker import Share
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.training import Training
from farflung.transport.endpoint import Link, Peer, dial
from farflung.transport.probing.probe import Question
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import (
    MAXIMUM_HEADER_BYTES,
    PREFIX_BYTES,
    STRIPE_TOKEN_BYTES,
    Cancel,
    Close,
    Control,
    Frame,
    Hello,
    Kind,
    Open,
    Ping,
    Stripe,
    Widen,
    encode,
)
from farflung.transport.wire.headers import ProbeHeader

_LARGE_BYTES = 70_000
LIMITS = [2**13, 2**20, 2**22, 2**24, 2**26]
"""Sizes at which a message becomes too large for some role or kind."""


@dataclass(frozen=True)
class Recorded:
    """One frame as it travelled."""

    frame: Frame
    payload: bytes

    @property
    def whole(self) -> bytes:
        """Its bytes."""
        return encode(self.frame, len(self.payload)) + self.payload

    def damaged(self, random: Random) -> bytes:
        """Its bytes with something wrong: in the prefix, the header's fields, the payload, or anywhere."""
        mutator, head = Mutator(random), encode(self.frame, len(self.payload))
        prefix, header = head[:PREFIX_BYTES], head[PREFIX_BYTES:]
        where = random.random()
        if where < 0.1 and isinstance(self.frame, Control):
            total = random.choice(LIMITS) + random.choice([-1, 0, 1])
            return _framed(prefix, encode(Control(self.frame.offset, total))[PREFIX_BYTES:], self.payload)
        if where < 0.3 and self.payload:
            damage = mutator.values if isinstance(self.frame, Control) else mutator.bytes
            payload = damage(self.payload)
            return _framed(prefix, _resized(self.frame, header, len(payload)), payload)
        if where < 0.65:
            return _framed(prefix, mutator.values(header), self.payload)
        if where < 0.85:
            return _framed(prefix, mutator.fields(header), self.payload)
        if where < 0.93:
            return _framed(prefix, mutator.bytes(header), self.payload)
        return mutator.bytes(self.whole)


def _framed(prefix: bytes, header: bytes, payload: bytes) -> bytes:
    """The frame, its lengths made right again so that the damage is what is judged."""
    header = header[: 2 * MAXIMUM_HEADER_BYTES]
    return prefix[:6] + len(header).to_bytes(2, "big") + len(payload).to_bytes(4, "big") + header + payload


def _resized(frame: Frame, header: bytes, size: int) -> bytes:
    """The header of a control message that has become longer or shorter."""
    if isinstance(frame, Control) and frame.offset == 0:
        return encode(Control(0, size))[PREFIX_BYTES:]
    return header


async def record(authority: TestAuthority) -> list[list[Recorded]]:
    """What attackers write on links of each kind, hello first and a reason for closing last."""
    sessions = [await _recorded(authority, speaker, kind, scene) for speaker, kind, scene in SCENES]
    much = sessions[2]
    opening = next(one for one in much if isinstance(one.frame, Open))
    cancelled = [much[0], opening, Recorded(Cancel(0, len(opening.payload)), b""), much[-1]]
    stripe = [Recorded(Stripe(bytes(STRIPE_TOKEN_BYTES)), b"")]
    return [*sessions, cancelled, [much[0], Recorded(Widen(4), b""), much[-1]], stripe]


def _talk(link: Link) -> None:
    device = Device("cpu", "pretended", 2, 2**30, "2.13.0", Opset.own())
    for message in [
        Register(device, "home", ["192.0.2.1:7700", "[2001:db8::1]:7700"], "boot"),
        Loaded("job-1", 1),
        UnitReady("job-1", 1, 0, [Share(0, True, 0.25, {3: 2.5})], 10**6),
        Refused("job-1", 2, "no memory"),
        Ask(),
    ]:
        link.send_control(messages.encode(message))


def _carry(link: Link) -> None:
    link.send_control(messages.encode(Claim("job-1", 1)))
    for microbatch in range(4):
        link.post(value_header(300, gradient=False, microbatch=microbatch), memoryview(bytes(300)))
        link.post(value_header(40, gradient=True, microbatch=microbatch), memoryview(bytes(40)))
        link.post(slice_header(1000), memoryview(bytes(1000)))
    link.send_control(messages.encode(Welcome("job-1", 1)))


def _carry_much(link: Link) -> None:
    link.post(value_header(_LARGE_BYTES, gradient=False), memoryview(bytes(_LARGE_BYTES)))
    link.post(slice_header(_LARGE_BYTES), memoryview(bytes(_LARGE_BYTES)))


def _probe(link: Link) -> None:
    link.post(ProbeHeader(500), memoryview(bytes(500)))
    link.send_control(msgspec.msgpack.encode(Question(0)))


def _watch(link: Link) -> None:
    for message in [Ask(), AskTopology(), AskStep("job-1"), Ask()]:
        link.send_control(messages.encode(message))


def _submit(link: Link) -> None:
    training = Training(steps=10, microbatches=2, microbatch_size=2, optimizer=SGD(lr=0.1))
    for message in [Submit("a job", bytes(5000), training, 2), Ask(), AskTopology(survey=True)]:
        link.send_control(messages.encode(message))


_WORKER, _VIEWER, _SUBMITTER = Peer("a", "worker"), Peer("v", "viewer"), Peer("s", "submitter")
ATTACKERS = (_WORKER, _VIEWER, _SUBMITTER)
"""Who speaks in the sessions."""

SCENES: list[tuple[Peer, Kind, Callable[[Link], None]]] = [
    (_WORKER, "control", _talk), (_WORKER, "data", _carry), (_WORKER, "data", _carry_much),
    (_WORKER, "probe", _probe), (_VIEWER, "control", _watch), (_SUBMITTER, "control", _submit),
]  # fmt: skip


async def _recorded(
    authority: TestAuthority, speaker: Peer, kind: Kind, scene: Callable[[Link], None]
) -> list[Recorded]:
    """What a holder writes during a scene; the other side answers by hand, and asks a little itself."""
    over: asyncio.Future[list[Recorded]] = asyncio.get_running_loop().create_future()

    async def entered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = RawPeer((reader, writer))
        await raw.read(lambda: bool(raw.frames))
        raw.say(Hello("b", "worker", kind))
        raw.say(Ping(1.0))
        raw.say(Open(0, slice_header(100)), bytes(100))
        raw.say(Control(0, 3), b"ask")
        await raw.read(lambda: isinstance(raw.frames[-1][0], Close))
        await raw.close()
        over.set_result([Recorded(frame, payload) for frame, payload in raw.frames])

    server = await asyncio.start_server(entered, "127.0.0.1", 0, ssl=authority.holder("b", "worker").server)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    heard, hello, expected = Recorder(), Hello(speaker.id, speaker.role, kind), Peer("b", "worker")
    context = authority.holder(speaker.id, speaker.role).client
    link = await dial(address, context, hello, expected, heard, Timeouts(1.0))
    scene(link)
    await heard.until(lambda: bool(heard.messages and heard.controls))
    await asyncio.sleep(2.5 * link.timeouts.heartbeat_seconds)  # until it has asked for a sign of life
    await link.close("the session is over")
    frames = await over
    server.close()
    await server.wait_closed()
    return frames
