from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.certificates import TestAuthority
from tests.support.links import RawPeer, run, slice_header

from farflung.errors import ConnectionFailed
from farflung.transport.endpoint import Hello, Link, Listener, Peer, dial, listen
from farflung.transport.probing.messages import Question, Report
from farflung.transport.probing.probe import PairEstimate, Prober
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import Control, Open
from farflung.transport.wire.headers import ProbeHeader

PATIENCE_SECONDS = 10.0
"""A probe ends once it knows the path: more time for it only forgives a busy machine."""


class Places:
    """A listener whose links may be probed, and those who dial it."""

    def __init__(self, authority: TestAuthority) -> None:
        self.authority = authority
        self.entered: list[tuple[Link, Prober]] = []
        self.listener: Listener

    def admit(self, link: Link) -> Prober:
        self.entered.append((link, Prober()))
        return self.entered[-1][1]

    async def dial(self) -> tuple[Link, Prober]:
        holder, prober = self.authority.holder("a", "worker"), Prober()
        hello, expected = Hello("a", "worker", "probe"), Peer("b", "worker")
        return await dial(self.listener.address, holder.client, hello, expected, prober, Timeouts()), prober


@asynccontextmanager
async def places(folder: Path) -> AsyncIterator[Places]:
    place = Places(TestAuthority(folder))
    server, own = place.authority.holder("b", "worker").server, Hello("b", "worker", "probe")
    place.listener = await listen("127.0.0.1:0", server, own, place.admit, Timeouts())
    try:
        yield place
    finally:
        await place.listener.close()


def assert_plausible(estimate: PairEstimate) -> None:
    assert 0 < estimate.latency_ms < 1000
    assert estimate.bandwidth_mbps > 1
    assert estimate.bytes_sent > 32 * 1024
    assert estimate.seconds <= PATIENCE_SECONDS


def test_a_path_is_probed_in_both_directions_at_once(tmp_path: Path) -> None:
    async def scene() -> list[PairEstimate]:
        async with places(tmp_path) as place:
            link, prober = await place.dial()
            back, other = place.entered[0]
            estimates = await asyncio.gather(
                *(end.probe(over, seconds=PATIENCE_SECONDS) for end, over in ((prober, link), (other, back)))
            )
            with pytest.raises(ValueError, match="already probed"):
                await prober.probe(link)
            await link.close("done")
            return estimates

    for estimate in run(scene()):
        assert_plausible(estimate)


def test_a_process_that_stands_still_while_it_asks_asks_again(tmp_path: Path) -> None:
    async def scene() -> PairEstimate:
        async with places(tmp_path) as place:
            link, prober = await place.dial()
            asyncio.get_running_loop().call_later(0.01, time.sleep, 0.3)
            estimate = await prober.probe(link, seconds=PATIENCE_SECONDS)
            await link.close("done")
            return estimate

    assert_plausible(run(scene()))


def test_a_lost_link_ends_its_probe(tmp_path: Path) -> None:
    async def scene() -> str:
        async with places(tmp_path) as place:
            link, prober = await place.dial()
            probing = asyncio.create_task(prober.probe(link, seconds=PATIENCE_SECONDS))
            await asyncio.sleep(0.01)
            await place.entered[0][0].close("enough")
            with pytest.raises(ConnectionFailed) as error:
                await probing
            return str(error.value)

    assert "the path to worker b could not be probed: worker b closed the link: enough" in run(scene())


@pytest.mark.parametrize(
    ("say", "refusal"),
    [
        (lambda raw: say(raw, b"\xc1"), "cannot read a probe's message"),
        (lambda raw: say(raw, msgspec.msgpack.encode(["Shout"])), "cannot read a probe's message"),
        (lambda raw: say(raw, msgspec.msgpack.encode(["Question", -1])), "cannot read a probe's message"),
        (lambda raw: raw.say(Open(0, slice_header(1)), b"x"), "expected only a probe's messages"),
        (lambda raw: raw.say(Open(0, ProbeHeader(2**20)), bytes(2**20 + 1)), "at most 1048576"),
    ],
)
def test_messages_that_do_not_belong_to_a_probe_are_refused(
    tmp_path: Path, say: Callable[[RawPeer], None], refusal: str
) -> None:
    async def scene() -> str:
        async with places(tmp_path) as place:
            raw = await RawPeer.connect(place.listener.address, place.authority.holder("a", "worker"))
            raw.say(Hello("a", "worker", "probe"))
            say(raw)
            words = await raw.last_words()
            await raw.close()
            return words

    assert refusal in run(scene())


def test_a_report_of_more_than_was_sent_ends_the_link(tmp_path: Path) -> None:
    async def scene() -> str:
        async with places(tmp_path) as place:
            raw = await RawPeer.connect(place.listener.address, place.authority.holder("a", "worker"))
            raw.say(Hello("a", "worker", "probe"))
            await raw.read(lambda: bool(raw.frames))
            link, prober = place.entered[0]
            probing = asyncio.create_task(prober.probe(link))
            await raw.read(lambda: any(isinstance(frame, Control) for frame, _ in raw.frames))
            say(raw, msgspec.msgpack.encode(Report(1.0, 2**50)))
            words = await raw.last_words()
            await raw.close()
            with pytest.raises(ConnectionFailed):
                await probing
            return words

    assert "bytes, but only" in run(scene())


def test_a_peer_that_answers_nothing_is_named(tmp_path: Path) -> None:
    async def scene() -> str:
        async with places(tmp_path) as place:
            raw = await RawPeer.connect(place.listener.address, place.authority.holder("a", "worker"))
            raw.say(Hello("a", "worker", "probe"))
            await raw.read(lambda: bool(raw.frames))
            link, prober = place.entered[0]
            with pytest.raises(ConnectionFailed) as error:
                await prober.probe(link)
            await raw.close()
            return str(error.value)

    assert "worker a did not answer a probe" in run(scene())


def say(raw: RawPeer, message: bytes) -> None:
    raw.say(Control(0, len(message)), message)


def test_a_question_is_answered_at_once(tmp_path: Path) -> None:
    async def scene() -> bytes:
        async with places(tmp_path) as place:
            raw = await RawPeer.connect(place.listener.address, place.authority.holder("a", "worker"))
            raw.say(Hello("a", "worker", "probe"))
            say(raw, msgspec.msgpack.encode(Question(7)))
            await raw.read(lambda: any(isinstance(frame, Control) for frame, _ in raw.frames))
            await raw.close()
            return next(payload for frame, payload in raw.frames if isinstance(frame, Control))

    assert msgspec.msgpack.decode(run(scene())) == ["Answer", 7]


def test_the_kernel_tells_a_round_trip_before_any_ping_was_answered(tmp_path: Path) -> None:
    async def scene() -> tuple[float | None, float | None]:
        async with places(tmp_path) as place:
            link, _ = await place.dial()
            direct = link.least_round_trip_seconds
            link.path = "relay through home"
            relayed = link.least_round_trip_seconds
            await link.close("done")
            return direct, relayed

    direct, relayed = run(scene())
    assert relayed is None
    assert direct is None if sys.platform != "linux" else direct is not None and 0 < direct < 1
