"""A worker's event loop: the session with the broker, data links to peers, and the compute thread.

It moves bytes and carries out the commands of `state.step`, which makes all decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from farflung.errors import AnotherAuthority, ConnectionFailed, DeviceHeld, FarflungError, GraphError
from farflung.plans.topology import MOST_TFLOPS
from farflung.protocol import messages
from farflung.protocol.broker_session import BrokerSession, Renewal, dial_broker
from farflung.protocol.copies import MOST_HELD
from farflung.protocol.fields import Opset, shutting_down
from farflung.protocol.messages import Load, Message, Register
from farflung.protocol.worker import Device, HomeLine
from farflung.runtime.backend import AnyBackend
from farflung.transport.endpoint import Handler, Hello, Link, Listener, listen
from farflung.transport.net.redial import redial
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.transport.wire.frames import boot
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.compute import ComputeThread, Outcome, OutgoingState, Restored, StateCopied, StateGiven
from farflung.worker.copy_store import CopyStore
from farflung.worker.copying import Copying
from farflung.worker.peers import Peers
from farflung.worker.routes import PathMessage, Routes
from farflung.worker.state_receiver import StateReceiver
from farflung.worker.task_deadlines import Limits, Watch, most_seconds
from farflung.worker.traffic_meter import TrafficMeter

log = logging.getLogger("farflung.worker")


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs.

    `listen` is HOST:PORT for data links; `advertise` are the addresses given to peers (empty: all of this
    machine, and the one that the broker sees). `memory_bytes` is the limit for jobs, `backend` computes them.
    `relay_mbps` is the rate to relay for peers that cannot reach each other, in Mbit/s; `line` is the access
    line as its owner describes it. Copies of jobs' state may take `disk_bytes` in the identity's folder (0:
    none are made or held).
    """

    identity: Identity
    listen: str
    memory_bytes: int
    backend: AnyBackend
    site: str = ""
    advertise: list[str] = field(default_factory=list)
    relay_mbps: float = 0.0
    line: HomeLine = field(default_factory=HomeLine)
    disk_bytes: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)


async def run(options: WorkerOptions) -> None:
    """Offer this machine's device to the broker until cancelled; reconnects whenever the broker is lost.

    Raises
    ------
    FarflungError
        The port is in use, or the broker refuses this worker for good.
    DeviceHeld
        The compute thread is stuck. The broker has been notified; this process must exit or be replaced
        before its device can be offered again.
    """
    service = WorkerService(options)
    await service.start()
    reason = shutting_down(options.identity.id)
    work = [asyncio.create_task(task) for task in (service.stay_registered(), service.watch_device())]
    try:
        await asyncio.gather(*work)
    except DeviceHeld as held:
        reason = str(held)
        raise
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await service.stop(reason)


def describe_device(backend: AnyBackend, memory_bytes: int) -> Device:
    """Describe this worker's device for the broker; takes a moment, because it tries the device out."""
    offer = backend.offer()
    tflops = min(backend.measure_tflops(), MOST_TFLOPS)
    return Device(
        kind=offer.kind,
        name=offer.name,
        cores=offer.cores,
        memory_bytes=memory_bytes,
        framework=offer.framework,
        opset=Opset.own(),
        tflops=tflops,
        lacks=offer.lacks,
        kernels=backend.kernel_digest(),
    )


class WorkerService:
    """One worker; see `run`."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._identity = options.identity
        self._timeouts = options.timeouts
        self._state = machine.State(options.identity.id)
        self._peers = Peers(self, options.backend.allocate)
        self._loop = asyncio.get_running_loop()
        self._compute = ComputeThread(
            options.identity.id,
            options.memory_bytes,
            options.backend,
            self._post_outcome,
            self._peers.send_from_thread,
        )
        self._peers.deliver_to(self._compute.receive)
        store = CopyStore(self._identity.folder, options.disk_bytes) if options.disk_bytes else None
        self._copying = Copying(options.identity.id, store, self._peers, self._send, lambda: self._timeouts)
        self._peers.copies_to(self._copying)
        self._client_context = self._identity.client_context()
        self._server_context = self._identity.server_context(admit_newcomers=False)
        self._listener: Listener | None = None
        self._device: Device | None = None
        self._broker: BrokerSession | None = None
        self._broker_gone = asyncio.Event()
        self._loss_reason = ""
        self._denied: messages.Denied | None = None
        self._orphaned: asyncio.TimerHandle | None = None
        self._state_receiver: StateReceiver | None = None
        self._addresses: dict[str, list[str]] = {}
        self._meter = TrafficMeter(self._peers)
        self._background: set[asyncio.Task[None]] = set()
        self._renewal = Renewal(self._identity, [self._client_context, self._server_context])
        self._routes = Routes(
            self._identity,
            self._client_context,
            options.advertise,
            options.relay_mbps,
            self._peers,
            lambda: self._state,
            self._send,
            self._timeouts,
        )

    async def start(self) -> None:
        """Listen for peers, measure the device, and start the compute thread."""
        self._listener = await listen(
            self._options.listen,
            self._server_context,
            Hello(self._identity.id, self._identity.role, "data"),
            self._routes.accept,
            self._timeouts,
        )
        self._routes.set_listener(self._listener)
        own = self._identity
        log.info("worker %s of %s starts, and measures this device", own.id, own.broker)
        self._device = await asyncio.to_thread(
            describe_device, self._options.backend, self._options.memory_bytes
        )
        self._compute.start()
        log.info("worker %s listens on %s", self._identity.id, self._listener.address)

    async def stay_registered(self) -> None:
        """Keep the session with the broker; reconnect when it is lost.

        Raises ConnectionFailed if the broker refuses this worker. If its id is in use, only the second
        refusal counts, because the process that had it may just have died (after a reboot, say). Raises
        AnotherAuthority if this is not the broker of this identity; but once connected to the right broker,
        the worker waits for it, even if another one answers meanwhile.
        """
        pause = self._timeouts.heartbeat_seconds
        asked_again = was_there = False
        while True:
            try:
                await self._register()
            except ConnectionFailed as error:
                if isinstance(error, AnotherAuthority) and not was_there:
                    raise
                log.warning("%s; trying again in %g s", error, pause)
                await asyncio.sleep(pause)
                is_awaited = self._state.load is not None  # then the job waits for each second of it
                longest = self._timeouts.heartbeat_seconds if is_awaited else self._timeouts.reconnect_seconds
                pause = min(2 * pause, longest)
                continue
            pause, was_there = self._timeouts.heartbeat_seconds, True
            await self._broker_gone.wait()
            denied, self._denied = self._denied, None
            if denied is None:
                asked_again = False
                log.warning("lost the broker (%s); dialling again", self._loss_reason)
                self._on_broker_lost()
                await asyncio.sleep(pause)  # do not flood a broker that disconnects every worker
            elif asked_again or not denied.for_now:
                raise ConnectionFailed(f"the broker refused this worker: {denied.reason}")
            else:
                asked_again = True
                silence = self._timeouts.suspect_seconds
                log.warning("%s; asking once more in %.1f s, lest it died just now", denied.reason, silence)
                await asyncio.sleep(silence)

    async def _register(self) -> None:
        self._broker_gone.clear()
        session = BrokerSession(messages.ToWorker, self, self._dial_broker)
        await session.open()
        held = await self._copying.held()
        if self._broker_gone.is_set():
            return  # lost again meanwhile
        assert self._listener is not None
        self._broker, self._timeouts = session, session.timeouts
        self._listener.set_timeouts(self._timeouts)
        self._routes.on_registered(session.link.local, session.link.remote, self._timeouts)
        assert self._device is not None
        options, state = self._options, self._state
        register = Register(
            self._device,
            options.site,
            self._routes.addresses(),
            boot(),
            options.relay_mbps,
            options.line,
            state.standing,
            state.generation,
            held[-MOST_HELD:],
            self._copying.disk_bytes,
            state.seal,
        )
        self._send(register)
        self._renewal.start(self._send, self._timeouts.certificate_check_seconds)

    def _on_broker_lost(self) -> None:
        """Keep the job, but not for ever."""
        self._step(events.BrokerLost(f"lost the broker: {self._loss_reason}"))
        if self._orphaned is None:
            seconds = self._timeouts.orphan_seconds
            self._orphaned = self._loop.call_later(seconds, self._step, events.Orphaned(seconds))

    async def _hang_up(self, reason: str) -> None:
        if self._broker is not None:
            broker, self._broker = self._broker, None
            await broker.close(reason)
            self.on_disconnect(reason)

    async def _dial_broker(self, handler: Handler) -> Link:
        return await dial_broker(self._identity, handler, self._timeouts, self._client_context)

    async def watch_device(self) -> None:
        """Watch the deadlines of the compute thread; raises DeviceHeld if it is stuck."""
        watch, before = Watch(), self._loop.time()
        while not (overrun := watch.overrun(self._most_seconds())):
            pause = self._timeouts.heartbeat_seconds
            await asyncio.sleep(pause)
            now = self._loop.time()
            watch = watch.seen(self._compute.stopwatch.doing, min(now - before, 2 * pause))
            before = now
        raise DeviceHeld(f"{overrun}, and only the end of its process ends an op")

    def _most_seconds(self) -> float:
        return most_seconds(self._compute.attempt, self._state.attempt, self._timeouts.chore_seconds)

    async def stop(self, reason: str) -> None:
        """Close every connection with `reason`, end the thread and free the port."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._routes.close()
        self._renewal.stop()
        await self._copying.close()
        if self._orphaned is not None:
            self._orphaned.cancel()
        self._compute.drop()
        self._compute.close()
        if self._broker is not None:  # first, so that it gets the reason from here and not from a peer
            await self._broker.close(reason)
        await self._peers.close(reason)
        if self._listener is not None:
            await self._listener.close(reason)
        await asyncio.to_thread(self._compute.join, self._timeouts.close_seconds)

    # The broker: messages become events of the state machine.

    def on_message(self, message: Any) -> None:
        if isinstance(message, messages.Renewed):
            self._spawn(self._take_certificate(message.certificate))
        elif isinstance(message, messages.Denied):
            self._denied = message
        elif isinstance(message, messages.PeerMoved):
            if message.worker in self._addresses:
                self._addresses[message.worker] = message.addresses
        elif isinstance(message, PathMessage):
            self._routes.on_message(message)
        else:
            self._step(events.FromBroker(message))
            if self._orphaned is not None and not self._state.away:
                self._orphaned.cancel()
                self._orphaned = None

    def on_reconnect(self) -> None:
        log.info("linked to the broker again")
        if self._broker is not None:
            link = self._broker.link
            self._routes.on_registered(link.local, link.remote, self._timeouts)
            # Always: behind a NAT only the broker sees whether the address has changed.
            self._send(messages.Moved(self._routes.addresses()))
            self._step(events.BrokerBack())

    def on_disconnect(self, reason: str) -> None:
        self._broker = None
        self._loss_reason = reason
        self._broker_gone.set()

    async def _take_certificate(self, certificate: bytes) -> None:
        await asyncio.to_thread(self._renewal.renewed, certificate)
        self._renewal.start(self._send, self._timeouts.certificate_check_seconds)

    # Each event changes the state and gives commands, which are carried out here.

    def _step(self, event: events.Event) -> None:
        self._state, commands = machine.step(self._state, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: events.Command) -> None:
        attempt = self._state.attempt
        if isinstance(command, events.Note):
            log.info("%s", command.text)
        elif isinstance(command, events.Tell):
            self._send(command.message)
        elif isinstance(command, events.HangUp):
            self._spawn(self._hang_up(command.reason))
        elif isinstance(command, events.Prepare):
            self._prepare(command)
        elif isinstance(command, events.Regroup):
            self._regroup(command)
        elif isinstance(command, events.Drop):
            self._drop(command)
        elif isinstance(command, events.Retain):
            self._retain(command.message)
        elif attempt is None:
            return
        elif isinstance(command, events.Start):
            self._meter.begin(self._state.neighbours)
            self._compute.begin(attempt)
        elif isinstance(command, events.Apply):
            self._peers.advance()
            self._compute.decide(attempt, command.unit, command.scale, command.codecs)
        elif isinstance(command, events.AdvanceReplay):
            self._peers.advance_replay()
        elif isinstance(command, events.EndTraining):
            self._compute.end_training(attempt)
        elif isinstance(command, events.CopyState):
            self._compute.copy_state(attempt, command.unit, command.keep, command.copy)
        else:
            self._compute.give_state(attempt, command.whole)

    def _retain(self, message: messages.Retain) -> None:
        self._copying.retain(message)
        load = self._state.load
        if load is not None and load.job == message.job and message.versions:
            self._peers.forget_sent(min(version.unit for version in message.versions) + 1)

    def _drop(self, command: events.Drop) -> None:
        self._peers.dismiss(command.reason)
        self._peers.end_log()
        self._compute.drop()
        self._copying.end()
        self._state_receiver = None
        if command.over:
            self._copying.retain(messages.Retain(command.job, []))

    def _prepare(self, command: events.Prepare) -> None:
        load = command.load
        worker = self._identity.id
        self._routes.stop_probing("a job begins here")
        try:
            self._state_receiver = StateReceiver(
                load,
                load.plan.segments_of(worker),
                self._options.memory_bytes,
                self._options.backend.allocate,
            )
        except GraphError as error:
            self._step(events.Verified((load.job, load.attempt), str(error)))
            return
        self._compute.prepare(load, self._state_receiver, self._limits())
        self._copying.begin(load)
        self._peers.admit(worker, load, self._state_receiver, self._state.admitted)
        if load.version is not None:
            self._spawn(self._restore(load, self._state_receiver))
        elif self._state_receiver.full:
            self.state_arrived()
        self._addresses = dict(load.addresses)
        for peer in command.dial:
            self._spawn(self._dial_peer(peer, load))

    async def _restore(self, load: Load, receiver: StateReceiver) -> None:
        if await self._copying.restore(load, receiver) and self._state.load is load:
            self.state_arrived()

    def _regroup(self, command: events.Regroup) -> None:
        load = command.load
        self._peers.dismiss(f"job {load.job} goes on in attempt {load.attempt}")
        self._state_receiver = None
        self._compute.regroup(load)
        self._copying.begin(load)
        self._peers.admit(self._identity.id, load, None, self._state.admitted)
        self._peers.trust()
        if command.replayer and not self._peers.serve_replay(command.replayer, command.replay_from):
            problem = f"it has no longer what it sent in unit {command.replay_from}"
            self._step(events.Verified((load.job, load.attempt), problem))
            return
        self._addresses = dict(load.addresses)
        for peer in command.dial:
            self._spawn(self._dial_peer(peer, load))

    def _log_sent(self, needs_bytes: int) -> None:
        """Log what is sent in half of the memory that is free, if the job makes copies.

        A worker that takes over a lost share needs as much for what it is sent again.
        """
        load = self._state.load
        if load is not None and load.holders:
            self._peers.log_sent(max(0, self._options.memory_bytes - needs_bytes) // 2)

    def _limits(self) -> Limits:
        assert self._device is not None
        limits = self._timeouts
        return Limits(
            self._device.tflops, limits.pass_seconds, limits.longest_pass_seconds, limits.chore_seconds
        )

    # The compute thread: its outcomes are events, too.

    def _post_outcome(self, outcome: Outcome) -> None:
        """Pass an outcome to the event loop; called on the compute thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker is shutting down
            self._loop.call_soon_threadsafe(self._handle_outcome, outcome)

    def _handle_outcome(self, outcome: Outcome) -> None:
        load = self._state.load
        if load is None or outcome.attempt != (load.job, load.attempt):
            return
        if isinstance(outcome, OutgoingState):
            self._peers.send_state(outcome.segment, outcome.key, outcome.buffer, outcome.sha256)
        elif isinstance(outcome, StateCopied):
            self._copying.made(outcome)
        elif isinstance(outcome, Restored):
            self._peers.begin_replay()
        elif isinstance(outcome, StateGiven):
            log.info("job %s: the state was handed to the submitter", load.job)
        else:
            if isinstance(outcome, events.Verified) and outcome.problem is None:
                self._peers.trust()
                self._log_sent(outcome.needs_bytes)
            if isinstance(outcome, events.UnitFinished):
                traffic = self._meter.read(sent.target for sent in outcome.sent)
                traffic = replace(traffic, logged_from=self._peers.logged_from)
                outcome = replace(outcome, traffic=traffic)
            self._step(outcome)

    def state_arrived(self) -> None:
        if self._state.attempt is not None and self._state_receiver is not None:
            self._compute.check_state(self._state.attempt, self._state_receiver)

    # Peers: links to neighbours and the submitter come, break and are replaced.

    def peer_linked(self, peer: str) -> None:
        self._copying.linked(peer)
        self._step(events.PeerLinked(peer))
        self._routes.report()

    def peer_disconnected(self, peer: str, reason: str) -> None:
        load = self._state.load
        if load is not None:
            log.warning("lost the link to %s (%s)", peer, reason)
            self._spawn(self._replace_link(peer, load, reason))

    def peer_lost(self, peer: str, reason: str) -> None:
        self._peers.give_up(peer)
        self._copying.lost(peer)
        self._step(events.PeerLost(peer, reason))
        load = self._state.load
        if load is not None and peer in self._state.partners - self._state.needed:
            log.warning("no link to %s, with which copies are exchanged: %s", peer, reason)
            if peer > self._identity.id:
                self._spawn(self._dial_later(peer, load))

    async def _dial_later(self, peer: str, load: Load) -> None:
        """Dial a worker again that is not needed for the attempt, only for copies."""
        await asyncio.sleep(self._timeouts.resume_seconds)
        if self._state.load is load and not self._peers.is_linked(peer):
            await self._dial_peer(peer, load)

    async def _dial_peer(self, peer: str, load: Load) -> None:
        """Connect to a neighbour, which must welcome the link within the time limit for loading."""
        try:
            link = await self._connect(peer, load)
        except FarflungError as error:
            if self._state.load is load:
                self.peer_lost(peer, str(error))
            return
        if self._state.load is load:
            self._peers.dialled(link)
            self._loop.call_later(self._timeouts.link_seconds, self._require_link, peer, load)
        else:
            await link.close("the job it was made for is over")

    async def _connect(self, peer: str, load: Load) -> Link:
        return await self._routes.connect(peer, load, self._addresses.get(peer, []))

    def _require_link(self, peer: str, load: Load) -> None:
        if self._state.load is load and peer not in self._state.linked:
            self.peer_lost(peer, f"it did not welcome the link within {self._timeouts.link_seconds:.0f} s")

    async def _replace_link(self, peer: str, load: Load, reason: str) -> None:
        """Replace a lost link: dial again if we dialled it, else wait. On failure report the peer as lost."""
        is_dialler = peer in self._state.neighbours | self._state.partners and peer > self._identity.id

        async def attempt() -> None:
            if not is_dialler:
                raise ConnectionFailed("it did not dial again")
            await self._peers.dialled(await self._connect(peer, load)).wait()

        def is_settled() -> bool:
            return self._state.load is not load or self._peers.is_linked(peer)

        limit = self._timeouts.resume_seconds
        failure = await redial(attempt, is_settled, self._timeouts, limit)
        if failure:
            self.peer_lost(peer, f"{reason}; no other link to it within {limit:g} s: {failure}")
        elif self._state.load is load:
            log.info("linked to %s again", peer)

    def _send(self, message: Message) -> None:
        if self._broker is not None:
            self._broker.send(message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
