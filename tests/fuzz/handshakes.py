"""Handshakes that go wrong: cut short, garbled, in plaintext, in another protocol, or without the right."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.frames import AT_ONCE, VICTIM_NAME
from tests.fuzz.mutators import Mutator
from tests.fuzz.sessions import ATTACKERS
from tests.support.certificates import TestAuthority

from farflung.transport.net.addresses import parse_address
from farflung.transport.net.tls_stream import TlsStream
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import ALPN
from farflung.transport.security.join_messages import AskAuthority, AskCertificate
from farflung.transport.security.peer import Peer
from farflung.transport.wire.frames import Hello, Join, encode

PATIENCE_SECONDS = 0.1
_GREETING = encode(Hello("a", "worker", "data"))
_ABRUPTLY = struct.pack("ii", 1, 0)  # SO_LINGER: a reset instead of a farewell


@dataclass(frozen=True)
class Weapons:
    """What handshakes are begun with: a good ClientHello, and contexts with something wrong in them.

    `hasty` show a good certificate of each attacker, and do not look at the victim's, which takes half the
    time.
    """

    client_hello: bytes
    good: ssl.SSLContext
    hasty: dict[Peer, ssl.SSLContext]
    contexts: dict[str, ssl.SSLContext]

    @classmethod
    def made(cls, authority: TestAuthority, folder: Path) -> Weapons:
        """For a victim of this authority; another one's files go to `folder`."""
        other = TestAuthority(folder)
        contexts = {
            "another authority": _careless(other.holder("a", "worker").client),
            "no certificate": authority.stranger(),
            "another protocol": _careless(authority.holder("a", "worker").client),
            "no protocol": _bare(authority.files("a", "worker")),
            "an old version": _old(),
        }
        contexts["another protocol"].set_alpn_protocols(["h2", "http/1.1"])
        good = authority.holder("a", "worker").client
        hasty = {one: _careless(authority.holder(one.id, one.role).client) for one in ATTACKERS}
        return cls(_client_hello(good), good, hasty, contexts)


def _careless(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _bare(files: tuple[Path, Path, Path]) -> ssl.SSLContext:
    context = _careless(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.load_cert_chain(files[1], files[2])
    return context


def _old() -> ssl.SSLContext:
    context = _careless(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    return context


def _client_hello(context: ssl.SSLContext) -> bytes:
    written = ssl.MemoryBIO()
    session = context.wrap_bio(ssl.MemoryBIO(), written, server_hostname=VICTIM_NAME)
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return written.read()


class Besieger:
    """Begins one wrong handshake after another; `outcomes` counts them by kind."""

    def __init__(self, address: str, weapons: Weapons) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = parse_address(address)
        self._weapons = weapons
        self._kinds: list[tuple[int, Callable[[Random], Awaitable[str]]]] = [
            (3, self._cut_short), (3, self._garbled), (2, self._plaintext), (4, self._wrong_context),
            (2, self._stranger), (1, self._reset), (1, self._changed_mind),
        ]  # fmt: skip

    async def attempt(self, random: Random) -> None:
        """One handshake, drawn from the seed."""
        kinds, weights = [kind for _, kind in self._kinds], [weight for weight, _ in self._kinds]
        [kind] = random.choices(kinds, weights)
        self.outcomes[await kind(random)] += 1

    async def trickle(self, seconds: float) -> bool:
        """Send a ClientHello so slowly that it never ends; whether the victim hung up within `seconds`."""
        raw = await self._connected()
        try:
            async with asyncio.timeout(seconds):
                for byte in self._weapons.client_hello:
                    with suppress(BlockingIOError):
                        raw.send(bytes([byte]))
                        if not raw.recv(4096):
                            return True
                    await asyncio.sleep(0.1)
        except OSError as error:
            return not isinstance(error, TimeoutError)
        finally:
            raw.close()
        return False

    async def _cut_short(self, random: Random) -> str:
        hello = self._weapons.client_hello
        return f"cut short: {await self._told(hello[: random.randrange(len(hello))], ends=True)}"

    async def _garbled(self, random: Random) -> str:
        return f"garbled: {await self._told(Mutator(random).bytes(self._weapons.client_hello), ends=False)}"

    async def _plaintext(self, random: Random) -> str:
        said = random.choice([
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", _GREETING, bytes(500),
            b"\x16\x03\x01\xff\xff" + random.randbytes(64), random.randbytes(random.randrange(1, 2000)),
        ])  # fmt: skip
        return f"plaintext: {await self._told(said, ends=random.random() < 0.5)}"

    async def _wrong_context(self, random: Random) -> str:
        name = random.choice(list(self._weapons.contexts))
        return f"{name}: {await self._shaken(self._weapons.contexts[name], _GREETING)}"

    async def _stranger(self, random: Random) -> str:
        saying = random.choice([AskAuthority(), AskCertificate(bytes(16), "lab", "worker", b"-----BEGIN")])
        mutator, said = Mutator(random), join_messages.encode(saying)
        said = random.choice([mutator.values, mutator.fields, mutator.bytes])(said)
        context = self._weapons.contexts["no certificate"]
        return f"a damaged join: {await self._shaken(context, encode(Join(), len(said)) + said)}"

    async def _reset(self, random: Random) -> str:
        raw = await self._connected()
        hello = self._weapons.client_hello
        raw.send(hello[: random.randrange(len(hello) + 1)])
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPTLY)
        raw.close()
        return "reset"

    async def _changed_mind(self, random: Random) -> str:
        connection = await TlsStream.shake_hands(
            await self._connected(), self._weapons.good, False, VICTIM_NAME
        )
        connection.socket.close()
        return "a good one that is hung up on"

    async def _connected(self) -> socket.socket:
        raw = socket.socket()
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, self._address)
        return raw

    async def _told(self, said: bytes, ends: bool) -> str:
        """How the victim takes bytes instead of a handshake."""
        loop, raw = asyncio.get_running_loop(), await self._connected()
        try:
            await loop.sock_sendall(raw, said)
            if ends:
                raw.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await loop.sock_recv(raw, 4096):
                    pass
            return "hung up on"
        except TimeoutError:
            return "waited for more"
        except OSError:
            return "hung up on"
        finally:
            raw.close()

    async def _shaken(self, context: ssl.SSLContext, said: bytes) -> str:
        """How the victim takes a handshake under this context, and a frame after it."""
        name = VICTIM_NAME if context.check_hostname else None
        try:
            connection = await TlsStream.shake_hands(await self._connected(), context, False, name)
        except OSError:
            return "refused"
        answer = _Answer()
        connection.start(answer)
        connection.write(said)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await answer.came.wait()
        except TimeoutError:
            return "waited for more"
        finally:
            connection.abort()
        return "told why not" if answer.count else "refused"


class _Answer:
    """Whatever comes back first, or the end of the connection."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.count = 0
        self._memory = memoryview(bytearray(4096))

    def buffer(self) -> memoryview:
        return self._memory

    def received(self, count: int) -> None:
        self.count += count
        self.came.set()

    def on_drained(self) -> None:
        pass

    def on_lost(self, error: OSError | None) -> None:
        self.came.set()


async def besiege(besieger: Besieger, count: int, seed: int, first: int) -> Counter[str]:
    """Begin `count` wrong handshakes and tell what became of them.

    They are those from number `first` on; n is the same for the same seed.
    """
    numbers = iter(range(first, first + count))

    async def work() -> None:
        for number in numbers:
            await besieger.attempt(Random(f"{seed} {number}"))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return besieger.outcomes
