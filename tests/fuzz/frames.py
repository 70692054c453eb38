"""Damaged frames after a valid handshake: sessions replayed with something wrong in them."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.course import Course, Sample
from tests.fuzz.sessions import ATTACKERS, Recorded

from farflung.transport.net.addresses import parse_address
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.security.peer import Peer
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Close, Frame, Hello, Ping, Pong, Stripe, encode

PATIENCE_SECONDS = 0.25
"""A victim that says nothing for so long waits for the rest of a frame that was cut short."""

AT_ONCE = 24
"""Connections that are made at the same time."""

VICTIM_NAME = "b.worker.farflung.internal"
_DAMAGED_SHARE, _DAMAGED_HELLOS = 0.7, 0.1
_FURTHER_SHARE, _FURTHER_SHARE_AT_THE_END = 0.05, 0.2
_WANDERING_SHARE = 0.6
_MOST_ROUNDS, _MOST_IN_A_ROUND = 14, 6


@dataclass
class Tally:
    """How many frames were damaged and sent, over how many connections, and what became of them."""

    frames: int = 0
    connections: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Attacker:
    """One connection with a good certificate and bad intentions."""

    def __init__(self, connection: TlsStream) -> None:
        self._connection = connection
        self._reader = FrameReader(self)
        self._changed = asyncio.Event()
        self._pings = 0
        self._answered = -1.0
        self._end: str | None = None
        self.token: bytes | None = None

    @classmethod
    async def connect(cls, address: str, context: ssl.SSLContext) -> Attacker:
        """Shake hands as any holder would."""
        raw = socket.socket()
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, parse_address(address))
        attacker = cls(await TlsStream.shake_hands(raw, context, False, VICTIM_NAME))
        attacker._connection.start(attacker)
        return attacker

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._connection.write(data)

    async def outcome(self) -> str:
        """What the victim makes of all that was written: it answers a ping, refuses, or waits for more."""
        self._pings += 1
        self.write(encode(Ping(float(self._pings))))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self._end is None and self._answered != self._pings:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return "waited for more"
        return self._end or "taken"

    def hang_up(self) -> None:
        """Gone without a word."""
        self._connection.abort()

    # farflung.transport.net.tls_stream.Wire and farflung.transport.wire.frame_reader.Sink

    def buffer(self) -> memoryview:
        return self._reader.buffer()

    def received(self, count: int) -> None:
        self._reader.received(count)

    def on_drained(self) -> None:
        pass

    def on_lost(self, error: OSError | None) -> None:
        self._end = self._end or "hung up on"
        self._changed.set()

    def begin(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        return None

    def end(self, frame: Frame, payload_bytes: int) -> None:
        if isinstance(frame, Pong):
            self._answered = frame.stamp
        elif isinstance(frame, Hello):
            self.token = frame.stripe
        elif isinstance(frame, Close):
            self._end = "refused"
        self._changed.set()


async def attack(
    address: str, context: ssl.SSLContext, session: list[Recorded], random: Random, tally: Tally
) -> None:
    """Replay a session with about half of its frames damaged, until the victim has had enough."""
    attacker = await Attacker.connect(address, context)
    tally.connections += 1
    is_sure = True
    # So that what comes late in a session is reached as often as what comes first.
    begin = 0 if random.random() < _DAMAGED_HELLOS else random.randrange(len(session)) * 2 // 3
    for place, recorded in enumerate(session):
        is_hello = isinstance(recorded.frame, Hello)
        if place < begin or random.random() > _DAMAGED_SHARE:
            attacker.write(recorded.whole)
            # The victim says something after its hello, for which the session has credit and receipt.
            is_sure = is_hello and await attacker.outcome() == "taken"
            continue
        # What came before may have been too much already: then this frame is none that was judged.
        if not is_sure and await attacker.outcome() != "taken":
            break
        attacker.write(recorded.damaged(random))
        outcome = await attacker.outcome()
        tally.frames += 1
        tally.outcomes[f"{type(recorded.frame).__name__.lower()} {outcome}"] += 1
        is_sure = True
        if outcome != "taken":
            break
        if attacker.token is not None and random.random() < _FURTHER_SHARE:
            await _attack_further(address, context, attacker, session, random, tally)
    attacker.hang_up()


async def wander(
    address: str,
    context: ssl.SSLContext,
    session: list[Recorded],
    sample: Sample,
    random: Random,
    tally: Tally,
) -> None:
    """Say many odd things that the victim must take, then something damaged in the midst of them."""
    attacker = await Attacker.connect(address, context)
    tally.connections += 1
    attacker.write(session[0].whole)
    outcome = await attacker.outcome()
    course = Course(sample, random)
    for _ in range(random.randrange(_MOST_ROUNDS)):
        if outcome != "taken":
            break
        kinds = []
        for _ in range(random.randint(1, _MOST_IN_A_ROUND)):
            kind, frame = course.step()
            attacker.write(frame)
            kinds.append(kind)
        outcome = await attacker.outcome()
        tally.frames += len(kinds) if outcome == "taken" else 1
        tally.outcomes.update(f"odd {kind} {outcome}" for kind in kinds)
    if attacker.token is not None and random.random() < _FURTHER_SHARE_AT_THE_END:
        await _attack_further(address, context, attacker, session, random, tally)
    elif outcome == "taken":
        recorded = random.choice(session)
        attacker.write(recorded.damaged(random))
        tally.frames += 1
        tally.outcomes[f"{type(recorded.frame).__name__.lower()} {await attacker.outcome()}"] += 1
    attacker.hang_up()


async def _attack_further(
    address: str,
    context: ssl.SSLContext,
    attacker: Attacker,
    session: list[Recorded],
    random: Random,
    tally: Tally,
) -> None:
    """Damaged frames over a further connection of the same link: not counted, for some may not be judged."""
    further = await Attacker.connect(address, context)
    token = Recorded(Stripe(attacker.token or b""), b"")
    further.write(token.damaged(random) if random.random() < 0.3 else token.whole)
    for recorded in random.sample(session, min(3, len(session))):
        further.write(recorded.damaged(random) if random.random() < 0.7 else recorded.whole)
    tally.outcomes[f"further connection {await attacker.outcome()}"] += 1
    further.hang_up()


async def attack_until(
    address: str,
    contexts: dict[Peer, ssl.SSLContext],
    sessions: list[list[Recorded]],
    frames: int,
    seed: int,
    first: int,
    tally: Tally,
) -> None:
    """Damage and send this many frames, in sessions from number `first` on.

    Session number n is the same for the same seed.
    """
    numbers = itertools.count(first)

    async def work() -> None:
        while tally.frames < frames:
            random = Random(f"{seed} {next(numbers)}")
            session = random.choice(sessions)
            context = contexts[_speaker(session) or random.choice(ATTACKERS)]
            sample = Sample.of([(recorded.frame, recorded.payload) for recorded in session])
            try:
                if sample is not None and random.random() < _WANDERING_SHARE:
                    await wander(address, context, session, sample, random, tally)
                else:
                    await attack(address, context, session, random, tally)
            except OSError:
                # So busy a machine that the victim's patience with a handshake ended; if it died, others see.
                tally.outcomes["connection did not come about"] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def _speaker(session: list[Recorded]) -> Peer | None:
    """Who says hello in a session; None if it begins with a token that the victim has not given."""
    hello = session[0].frame
    return Peer(hello.id, hello.role) if isinstance(hello, Hello) else None
