"""A worker from its start to its end, and what it says to the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from farflung.errors import DeviceFailed, DeviceHeld
from farflung.protocol import messages
from farflung.protocol.broker_session import BrokerSession
from farflung.protocol.copies import MOST_HELD, HeldCopy
from farflung.protocol.fields import shutting_down
from farflung.protocol.messages import Register
from farflung.transport.endpoint import Hello, Listener, listen
from farflung.transport.wire.frames import boot
from farflung.worker import events
from farflung.worker.broker_line import BrokerLine
from farflung.worker.departure import Departure
from farflung.worker.driver import Driver
from farflung.worker.linking.routes import PathMessage
from farflung.worker.options import WorkerOptions

log = logging.getLogger("farflung.worker")


async def run(options: WorkerOptions, departure: Departure | None = None) -> None:
    """Offer this machine's device to the broker until cancelled; reconnects whenever the broker is lost.

    Returns once the broker lets the worker go, because its owner (`departure`) or an operator wanted that.

    Raises
    ------
    FarflungError
        The port is in use, or the broker refuses this worker for good.
    DeviceHeld
        The compute thread is stuck. The broker has been notified; this process must exit or be replaced
        before its device can be offered again.
    DeviceFailed
        The device failed for good. The broker has been notified.
    """
    departure = departure or Departure()
    service = WorkerService(options, departure)
    await service.start()
    reason = shutting_down(options.identity.id)
    released = asyncio.create_task(departure.wait())
    device = service.driver.device_watch
    tasks = (service.stay_registered(), device.watch(), device.stay_measured())
    work = [asyncio.create_task(task) for task in tasks]
    try:
        done, _ = await asyncio.wait([*work, released], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {released}:
            task.result()  # the error that ended it
        log.info("worker %s may go: %s", options.identity.id, await released)
    except (DeviceHeld, DeviceFailed) as why:
        reason = str(why)
        raise
    finally:
        for task in (*work, released):
            task.cancel()
        await asyncio.gather(*work, released, return_exceptions=True)
        await service.stop(reason)


class WorkerService:
    """One worker: its session with the broker, and its `driver`; see `run`."""

    def __init__(self, options: WorkerOptions, departure: Departure | None = None) -> None:
        self._options = options
        self._departure = departure or Departure()
        self._identity = options.identity
        self._loop = asyncio.get_running_loop()
        client_context = self._identity.client_context()
        self._server_context = self._identity.server_context(admit_joiners=False)
        self._line = BrokerLine(self._identity, client_context, self._server_context, self)
        self.driver = Driver(options, self._departure, self._line, client_context)
        self._listener: Listener | None = None
        self._disk_bytes = 0
        self._orphaned: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen for peers, measure the device, and start the compute thread."""
        self._listener = await listen(
            self._options.listen,
            self._server_context,
            Hello(self._identity.id, self._identity.role, "data"),
            self.driver.routes.accept,
            self.driver.timeouts,
        )
        self.driver.routes.set_listener(self._listener)
        own = self._identity
        log.info("worker %s of %s starts, and measures this device", own.id, own.broker)
        await self.driver.device_watch.begin(self._options.backend, self._options.memory_bytes)
        self.driver.compute.start()
        self._departure.attach(self.driver.step, self.driver.timeouts.lease_seconds)
        log.info("worker %s listens on %s", self._identity.id, self._listener.address)

    async def stay_registered(self) -> None:
        """Keep the session with the broker; see `BrokerLine.stay_registered`."""
        await self._line.stay_registered(self.driver.timeouts)

    async def stop(self, reason: str) -> None:
        """Close every connection with `reason`, end the thread and free the port."""
        self._line.stop_renewing()
        if self._orphaned is not None:
            self._orphaned.cancel()
        await self.driver.end()
        await self._line.close(reason)  # first, so that it gets the reason from here and not from a peer
        await self.driver.peers.close(reason)
        if self._listener is not None:
            await self._listener.close(reason)
        await asyncio.to_thread(self.driver.compute.join, self.driver.timeouts.close_seconds)

    @property
    def is_awaited(self) -> bool:
        """Whether a job waits for each second without the broker."""
        return self.driver.state.load is not None

    async def held_copies(self) -> list[HeldCopy]:
        """The newest copies on this worker's disk; notes also what they may take there."""
        self._disk_bytes = await self.driver.copying.measure_disk()
        return (await self.driver.copying.held())[-MOST_HELD:]

    def registration(self, session: BrokerSession, held: list[HeldCopy]) -> Register:
        """Who this worker is, what it offers, and what it holds of a job."""
        assert self._listener is not None
        self.driver.timeouts = session.timeouts
        self._listener.set_timeouts(self.driver.timeouts)
        self.driver.routes.on_registered(session.link.local, session.link.remote, self.driver.timeouts)
        options, state = self._options, self.driver.state
        return Register(
            self.driver.device_watch.device,
            options.site,
            self.driver.routes.addresses(),
            boot(),
            options.relay_mbps,
            options.line,
            state.standing,
            state.generation,
            held,
            self._disk_bytes,
            state.seal,
            self._departure.seconds_left,
            list(options.home_of),
        )

    def from_broker(self, message: Any) -> None:
        """Handle a message from the broker."""
        if isinstance(message, messages.PeerMoved):
            self.driver.dialling.moved(message.worker, message.addresses)
        elif isinstance(message, PathMessage):
            self.driver.routes.on_message(message)
        elif isinstance(message, messages.MemberRemoved):
            self._expel({message.member: message.words})
        elif isinstance(message, messages.MemberAllowed):
            self.driver.peers.allow(message.member)
        elif isinstance(message, messages.ShowStep):
            self.driver.peers.watch.ask(message)
            self.driver.compute.watch((message.job, message.attempt), message.unit)
        else:
            if isinstance(message, messages.Registered):
                self.driver.peers.forget_removed()
                self._expel(dict.fromkeys(message.removed, "was removed by an operator"))
            self.driver.step(events.FromBroker(message))
            if self._orphaned is not None and not self.driver.state.away:
                self._orphaned.cancel()
                self._orphaned = None

    def _expel(self, removed: Mapping[str, str]) -> None:
        """Have no more to do with members that were removed."""
        for peer in self.driver.peers.expel(removed):
            log.warning("%s %s: its link is closed", peer, removed[peer])
            self.driver.peer_lost(peer, removed[peer])

    def broker_back(self, session: BrokerSession) -> None:
        """Say where this worker is now: behind a NAT only the broker sees whether its address has changed."""
        self.driver.routes.on_registered(session.link.local, session.link.remote, self.driver.timeouts)
        self.driver.send(messages.Moved(self.driver.routes.addresses()))
        self.driver.step(events.BrokerBack())

    def broker_lost(self, reason: str) -> None:
        """Keep the job, but not for ever."""
        self.driver.step(events.BrokerLost(f"lost the broker: {reason}"))
        if self._orphaned is None:
            seconds = self.driver.timeouts.orphan_seconds
            self._orphaned = self._loop.call_later(seconds, self.driver.step, events.Orphaned(seconds))
