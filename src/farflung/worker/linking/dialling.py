"""Dial the peers of the current attempt, and replace links that are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from farflung.errors import ConnectionFailed, FarflungError
from farflung.protocol.messages import Load, ServeCheck
from farflung.transport.endpoint import Link
from farflung.transport.net.redial import redial
from farflung.transport.timeouts import Timeouts
from farflung.worker.linking.peers import Peers
from farflung.worker.linking.routes import Routes
from farflung.worker.records import State

log = logging.getLogger("farflung.worker")


class Dialling:
    """The links that `worker` dials; of two workers the one whose name comes first dials.

    `state` returns the worker's current state. `on_lost` gets each peer that cannot be reached, and why.
    """

    def __init__(
        self,
        worker: str,
        routes: Routes,
        peers: Peers,
        state: Callable[[], State],
        on_lost: Callable[[str, str], None],
        timeouts: Callable[[], Timeouts],
    ) -> None:
        self._worker = worker
        self._routes, self._peers = routes, peers
        self._state, self._on_lost, self._timeouts = state, on_lost, timeouts
        self._addresses: dict[str, Sequence[str]] = {}

    def begin(self, load: Load) -> None:
        """Begin an attempt, with the addresses of its peers."""
        self._addresses = dict(load.addresses)

    def also(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Know these peers, too."""
        self._addresses.update(addresses)

    def moved(self, peer: str, addresses: Sequence[str]) -> None:
        """A peer has other addresses now."""
        if peer in self._addresses:
            self._addresses[peer] = addresses

    async def dial(self, peer: str, load: Load, check: ServeCheck | None = None) -> None:
        """Connect to a neighbour, which must welcome the link within the time limit for loading.

        Or to the checker of a neighbour's share, while that `check` lasts.
        """
        try:
            link = await self._connect(peer, load)
        except FarflungError as error:
            if self._is_current(load):
                self._on_lost(peer, str(error))
            return
        if self._is_current(load):
            self._peers.dialled(link)
            loop = asyncio.get_running_loop()
            loop.call_later(self._timeouts().link_seconds, self._require_link, peer, load, check)
        else:
            await link.close("the job it was made for is over")

    def expect(self, peers: Collection[str], load: Load) -> None:
        """Report each of these peers as lost that does not dial within the time limit."""
        for peer in peers:
            limit = self._timeouts().link_seconds
            asyncio.get_running_loop().call_later(limit, self._require_link, peer, load)

    async def dial_later(self, peer: str, load: Load) -> None:
        """Dial a worker again that is not needed for the attempt, only for copies."""
        await asyncio.sleep(self._timeouts().resume_seconds)
        if self._is_current(load) and not self._peers.is_linked(peer):
            await self.dial(peer, load)

    async def replace(self, peer: str, load: Load, reason: str) -> None:
        """Replace a lost link: dial again if we dialled it, else wait. On failure report the peer as lost."""
        state = self._state()
        is_dialler = peer in state.neighbours | state.partners and peer > self._worker
        if load.checks or peer == state.checker:
            is_dialler = not load.checks

        async def attempt() -> None:
            if not is_dialler:
                raise ConnectionFailed("it did not dial again")
            await self._peers.dialled(await self._connect(peer, load)).wait()

        def is_settled() -> bool:
            return not self._is_current(load) or self._peers.is_linked(peer)

        limit = self._timeouts().resume_seconds
        failure = await redial(attempt, is_settled, self._timeouts(), limit)
        if failure:
            self._on_lost(peer, f"{reason}; no other link to it within {limit:g} s: {failure}")
        elif self._is_current(load):
            log.info("linked to %s again", peer)

    async def _connect(self, peer: str, load: Load) -> Link:
        return await self._routes.connect(peer, load, self._addresses.get(peer, []))

    def _require_link(self, peer: str, load: Load, check: ServeCheck | None = None) -> None:
        is_over = check is not None and self._state().check is not check
        if self._is_current(load) and not is_over and peer not in self._state().linked:
            limit = self._timeouts().link_seconds
            self._on_lost(peer, f"it did not welcome the link within {limit:.0f} s")

    def _is_current(self, load: Load) -> bool:
        return self._state().load is load
