"""A whole attack: damaged frames, wrong handshakes and a slow trickle, while a healthy link is at work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from tests.fuzz.frames import Tally, attack_until
from tests.fuzz.handshakes import Besieger, Weapons, besiege
from tests.fuzz.place import WAIT_SECONDS, Place, attacked_place, healthy_peer
from tests.fuzz.sessions import record
from tests.fuzz.victim import LEASE_SECONDS, Holding

TRICKLES = 50
_LOOK_SECONDS = 0.5

Given = TypeVar("Given")


class Figures(msgspec.Struct):
    """What was thrown at the victim, and how it stood it. Memory is the victim's resident bytes."""

    frames: int
    connections: int
    handshakes: int
    seconds: float
    memory_before: int
    memory_peak: int
    healthy_exchanges: int
    healthy_slowest_seconds: float
    trickles_hung_up_on: int
    over_limits: int
    left_links: int
    left_descriptors: int
    frame_outcomes: dict[str, int]
    handshake_outcomes: dict[str, int]


class _Watch:
    """Looks at the victim's memory now and then while something else goes on."""

    def __init__(self, place: Place, tell: Callable[[str], None]) -> None:
        self._place = place
        self._tell = tell
        self.peak = 0

    async def during(self, work: Awaitable[Given]) -> Given:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
            self.peak = max(self.peak, (await self._place.holding()).resident_bytes)
            self._tell(f"; the victim holds at most {self.peak / 1e6:.1f} MB")
        return task.result()


async def run(
    folder: Path,
    frames: int,
    handshakes: int,
    seed: int,
    first: int = 0,
    tell: Callable[[int, str], None] = lambda frames, words: None,
) -> Figures:
    """Attack a victim of its own; AssertionError if it dies, logs a traceback or harms its healthy peer.

    Sessions and handshakes are those of this seed from number `first` on. `tell` is called now and then
    with how many frames were judged, and with words on the victim.
    """
    tally = Tally()
    (folder / "other").mkdir()
    async with attacked_place(folder) as place:
        sessions = await record(place.authority)
        weapons = Weapons.made(place.authority, folder / "other")
        async with healthy_peer(place) as healthy:
            before = await place.holding()
            watch = _Watch(place, lambda words: tell(tally.frames, words))
            began = time.monotonic()
            besieger = Besieger(place.address, weapons)
            trickles = [
                asyncio.create_task(besieger.trickle(LEASE_SECONDS + WAIT_SECONDS)) for _ in range(TRICKLES)
            ]
            attack = attack_until(place.address, weapons.hasty, sessions, frames, seed, first, tally)
            await watch.during(attack)
            wrong: Counter[str] = await watch.during(besiege(besieger, handshakes, seed, first))
            hung_up_on = sum(await asyncio.gather(*trickles))
            seconds = time.monotonic() - began
            after = await _settled(place, before.links)
    return Figures(
        frames=tally.frames,
        connections=tally.connections,
        handshakes=sum(wrong.values()),
        seconds=seconds,
        memory_before=before.resident_bytes,
        memory_peak=max(watch.peak, after.resident_bytes),
        healthy_exchanges=healthy.exchanges,
        healthy_slowest_seconds=healthy.slowest_seconds,
        trickles_hung_up_on=hung_up_on,
        over_limits=after.over_limits,
        left_links=after.links - before.links,
        left_descriptors=after.descriptors - before.descriptors,
        frame_outcomes=dict(sorted(tally.outcomes.items())),
        handshake_outcomes=dict(sorted(wrong.items())),
    )


async def _settled(place: Place, links: int) -> Holding:
    """What the victim holds once the last attackers are gone, or after a while at the latest."""
    for _ in range(round(WAIT_SECONDS / _LOOK_SECONDS)):
        if (await place.holding()).links <= links:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return await place.holding()


def together(parts: Sequence[Figures]) -> Figures:
    """Sums of what was done, and the worst of what it cost one victim."""
    frames, handshakes = Counter[str](), Counter[str]()
    for part in parts:
        frames.update(part.frame_outcomes)
        handshakes.update(part.handshake_outcomes)
    dearest = max(parts, key=lambda part: part.memory_peak - part.memory_before)
    return Figures(
        frames=sum(part.frames for part in parts),
        connections=sum(part.connections for part in parts),
        handshakes=sum(part.handshakes for part in parts),
        seconds=sum(part.seconds for part in parts),
        memory_before=dearest.memory_before,
        memory_peak=dearest.memory_peak,
        healthy_exchanges=sum(part.healthy_exchanges for part in parts),
        healthy_slowest_seconds=max(part.healthy_slowest_seconds for part in parts),
        trickles_hung_up_on=sum(part.trickles_hung_up_on for part in parts),
        over_limits=sum(part.over_limits for part in parts),
        left_links=max(part.left_links for part in parts),
        left_descriptors=max(part.left_descriptors for part in parts),
        frame_outcomes=dict(sorted(frames.items())),
        handshake_outcomes=dict(sorted(handshakes.items())),
    )
