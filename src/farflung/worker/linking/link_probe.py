"""One probe that the broker asked for: connect to the peers, measure the links, and return the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from farflung.connectivity.connector import Connector, ConnectRequest
from farflung.errors import ConnectionFailed, FarflungError
from farflung.plans.topology import MOST_MBPS
from farflung.protocol.probing import SHORT_TEXT_LENGTH, SURVEY, Probe, Probed, ProbedLink, ProbedPeer
from farflung.transport.endpoint import Handler, Link, Peer
from farflung.transport.probing.access_line import LineEstimate, watch
from farflung.transport.probing.probe import PairEstimate, Prober
from farflung.transport.timeouts import ACCESS_LINE_SECONDS, PROBE_SECONDS, SURVEY_PROBE_SECONDS, Timeouts

USUAL_ROUND_TRIP_SECONDS = 0.1
BEGINNING_ROUND_TRIPS = 5


class Ends(Handler, Protocol):
    """The handler of all probed links."""

    def prober(self, link: Link) -> Prober:
        """The `Prober` of this link, which measures it or answers the other side's measurement."""

    def forget(self, link: Link) -> None:
        """Drop the prober of a link that is done."""


class LinkProbe:
    """Carries out one `Probe`; call `run` once."""

    def __init__(self, probe: Probe, connector: Connector, ends: Ends, timeouts: Timeouts) -> None:
        self._probe = probe
        self._connector = connector
        self._ends = ends
        self._timeouts = timeouts
        self._links: dict[str, Link] = {}
        self._results: dict[str, ProbedLink] = {}
        loop = asyncio.get_running_loop()
        self._awaited: dict[str, asyncio.Future[Link]] = {
            peer.worker: loop.create_future() for peer in probe.peers if not peer.dials
        }

    @property
    def number(self) -> int:
        """The number that the broker gave to the probe."""
        return self._probe.number

    def awaits(self, number: int, peer: str) -> bool:
        """Whether this probe still waits for a link from that peer, by whatever route."""
        return number == self.number and peer in self._awaited and not self._awaited[peer].done()

    def take(self, link: Link) -> bool:
        """Use the link if this probe waits for it; returns whether it does."""
        awaited = self._awaited.get(link.peer.id)
        if awaited is None or awaited.done():
            return False
        awaited.set_result(link)
        return True

    async def run(self) -> Probed:
        """Connect to every peer, measure the links, and close them."""
        try:
            await asyncio.gather(*map(self._reach, self._probe.peers))
            line = await self._measure() if self._links else None
            results = [self._results[peer.worker] for peer in self._probe.peers]
            if line is None:
                return Probed(self.number, results, bytes_sent=self._bytes_sent)
            mbps = min(line.bandwidth_mbps, MOST_MBPS)
            return Probed(self.number, results, mbps, line.is_settled, self._bytes_sent)
        finally:
            for link in self._links.values():
                link.abandon("probed")
                self._ends.forget(link)

    @property
    def _bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._links.values())

    async def _reach(self, peer: ProbedPeer) -> None:
        try:
            async with asyncio.timeout(self._timeouts.probe_link_seconds):
                self._results[peer.worker] = await self._link(peer)
        except TimeoutError:
            limit = self._timeouts.probe_link_seconds
            problem = f"could not connect to worker {peer.worker} within {limit:g} s"
            self._results[peer.worker] = ProbedLink(peer.worker, problem=problem)
        except FarflungError as error:
            problem = str(error)[:SHORT_TEXT_LENGTH]
            self._results[peer.worker] = ProbedLink(peer.worker, problem=problem)

    async def _link(self, peer: ProbedPeer) -> ProbedLink:
        if not peer.dials:
            self._links[peer.worker] = await self._awaited[peer.worker]
            return ProbedLink(peer.worker)
        request = ConnectRequest(SURVEY, self.number, Peer(peer.worker, "worker"), peer.addresses)
        reached = await self._connector.connect(request, self._ends)
        self._links[peer.worker] = reached.link
        return ProbedLink(peer.worker, reached.link.path[:SHORT_TEXT_LENGTH])

    async def _measure(self) -> LineEstimate | None:
        links = list(self._links.values())
        match self._probe.task:
            case "pair":
                await self._pair(links[0])
                return None
            case "out":
                return await self._out(links)
            case "in":
                return await self._watch(links, lambda link: self._ends.prober(link).received_bytes)
            case "take" | "give":
                await self._serve(links[0])
                return None

    async def _pair(self, link: Link) -> None:
        """Measure the link to a peer and let the peer measure the one back; the side that dialled goes first.

        They take turns, because acknowledgements for a fast link would queue behind the data of a slow one,
        and the fast link would seem as slow.
        """
        prober, is_first = self._ends.prober(link), self._probe.peers[0].dials
        if not is_first:
            await _within(2 * PROBE_SECONDS, prober.peer_done)
        await self._probe_link(prober, link)
        prober.stop(link)
        if is_first:
            await _within(2 * PROBE_SECONDS, prober.peer_done)

    async def _probe_link(self, prober: Prober, link: Link) -> None:
        name = link.peer.id
        limit = SURVEY_PROBE_SECONDS + BEGINNING_ROUND_TRIPS * _round_trip(link)
        try:
            estimate = await prober.probe(link, self._probe.byte_limit, min(limit, PROBE_SECONDS))
        except ConnectionFailed as error:
            self._results[name] = msgspec.structs.replace(
                self._results[name], problem=str(error)[:SHORT_TEXT_LENGTH]
            )
        else:
            self._results[name] = _with_estimate(self._results[name], estimate)

    async def _out(self, links: Sequence[Link]) -> LineEstimate:
        for link in links:
            self._ends.prober(link).fill(link, self._probe.byte_limit)
        return await self._watch(links, lambda link: self._ends.prober(link).acked_bytes)

    async def _watch(self, links: Sequence[Link], count: Callable[[Link], int]) -> LineEstimate:
        estimate = await watch(lambda: sum(map(count, links)), max(map(_round_trip, links)))
        for link in links:
            self._ends.prober(link).stop(link)
        return estimate

    async def _serve(self, link: Link) -> None:
        prober = self._ends.prober(link)
        if self._probe.task == "give":
            prober.fill(link, self._probe.byte_limit)
        await _within(self._timeouts.probe_link_seconds + ACCESS_LINE_SECONDS, prober.peer_done)
        prober.stop(link)


def _round_trip(link: Link) -> float:
    return link.least_round_trip_seconds or USUAL_ROUND_TRIP_SECONDS


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass  # the other side has its own deadline


def _with_estimate(results: ProbedLink, estimate: PairEstimate) -> ProbedLink:
    return msgspec.structs.replace(
        results,
        bandwidth_mbps=min(estimate.bandwidth_mbps, MOST_MBPS),
        latency_ms=estimate.latency_ms,
        bytes_sent=estimate.bytes_sent,
        is_settled=estimate.is_settled,
    )
