"""A worker's event loop: the session with the broker, data links to peers, and the compute thread.

It moves bytes and carries out the commands of `state.step`, which makes all decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from farflung.errors import CopyError, DeviceFailed, DeviceHeld, GraphError, ProtocolError
from farflung.protocol import messages
from farflung.protocol.broker_session import BrokerSession
from farflung.protocol.copies import MOST_HELD, HeldCopy
from farflung.protocol.fields import shutting_down
from farflung.protocol.messages import Copied, Load, Message, Register
from farflung.protocol.sessions import BaseList
from farflung.transport.endpoint import Hello, Listener, listen
from farflung.transport.link.governor import Pace
from farflung.transport.wire.frames import boot
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.broker_line import BrokerLine
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome, OutgoingState, Restored, StateCopied, StateGiven
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.computing.task_deadlines import Limits
from farflung.worker.departure import Departure
from farflung.worker.device_watch import DeviceWatch
from farflung.worker.linking.dialling import Dialling
from farflung.worker.linking.peers import Peers
from farflung.worker.linking.routes import PathMessage, Routes
from farflung.worker.linking.traffic_meter import TrafficMeter
from farflung.worker.options import WorkerOptions
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.copying import Copying
from farflung.worker.weights.cache import WeightCache
from farflung.worker.weights.filling import BaseFilling

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
    tasks = (service.stay_registered(), service.device_watch.watch(), service.device_watch.stay_measured())
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
    """One worker; see `run`. `device_watch` is to run beside its session with the broker."""

    def __init__(self, options: WorkerOptions, departure: Departure | None = None) -> None:
        self._options = options
        self._departure = departure or Departure()
        self._identity = options.identity
        self._timeouts = options.timeouts
        self._state = machine.State(options.identity.id, away=True)
        self._peers = Peers(self, options.backend.allocate)
        self._loop = asyncio.get_running_loop()
        self._compute = ComputeThread(
            options.identity.id,
            options.memory_bytes,
            options.backend,
            self._post_outcome,
            self._peers.send_from_thread,
        )
        self.device_watch = DeviceWatch(
            self._compute, lambda: self._state, self._send, lambda: self._timeouts
        )
        self._peers.deliver_to(self._compute.receive)
        store = CopyStore(self._identity.folder, options.disk_bytes) if options.disk_bytes != 0 else None
        pace = Pace(options.standby_mbps * 1e6 / 8)
        self._copying = Copying(
            options.identity.id, store, self._peers, self._send, lambda: self._timeouts, pace
        )
        self._peers.copies_to(self._copying)
        self._base = BaseFilling(
            self._cache_beside(store), options.base, self._peers.tell_submitter, self._base_filled
        )
        client_context = self._identity.client_context()
        self._server_context = self._identity.server_context(admit_joiners=False)
        self._line = BrokerLine(self._identity, client_context, self._server_context, self)
        self._listener: Listener | None = None
        self._disk_bytes = 0
        self._orphaned: asyncio.TimerHandle | None = None
        self._state_receiver: StateReceiver | None = None
        self._is_checked = False
        self._meter = TrafficMeter(self._peers)
        self._background: set[asyncio.Task[None]] = set()
        self._routes = Routes(
            self._identity,
            client_context,
            options.advertise,
            options.relay_mbps,
            self._peers,
            lambda: self._state,
            self._send,
            self._timeouts,
        )
        self._dialling = Dialling(
            options.identity.id,
            self._routes,
            self._peers,
            lambda: self._state,
            self.peer_lost,
            lambda: self._timeouts,
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
        await self.device_watch.begin(self._options.backend, self._options.memory_bytes)
        self._compute.start()
        self._departure.attach(self._step, self._timeouts.lease_seconds)
        log.info("worker %s listens on %s", self._identity.id, self._listener.address)

    async def stay_registered(self) -> None:
        """Keep the session with the broker; see `BrokerLine.stay_registered`."""
        await self._line.stay_registered(self._timeouts)

    async def stop(self, reason: str) -> None:
        """Close every connection with `reason`, end the thread and free the port."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._routes.close()
        self._line.stop_renewing()
        await self._copying.close()
        await self._base.close()
        if self._orphaned is not None:
            self._orphaned.cancel()
        self._compute.drop()
        self._compute.close()
        await self._line.close(reason)  # first, so that it gets the reason from here and not from a peer
        await self._peers.close(reason)
        if self._listener is not None:
            await self._listener.close(reason)
        await asyncio.to_thread(self._compute.join, self._timeouts.close_seconds)

    # The broker: messages become events of the state machine.

    @property
    def is_awaited(self) -> bool:
        """Whether a job waits for each second without the broker."""
        return self._state.load is not None

    async def held_copies(self) -> list[HeldCopy]:
        """The newest copies on this worker's disk; notes also what they may take there."""
        self._disk_bytes = await self._copying.measure_disk()
        return (await self._copying.held())[-MOST_HELD:]

    def registration(self, session: BrokerSession, held: list[HeldCopy]) -> Register:
        """Who this worker is, what it offers, and what it holds of a job."""
        assert self._listener is not None
        self._timeouts = session.timeouts
        self._listener.set_timeouts(self._timeouts)
        self._routes.on_registered(session.link.local, session.link.remote, self._timeouts)
        options, state = self._options, self._state
        return Register(
            self.device_watch.device,
            options.site,
            self._routes.addresses(),
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
            self._dialling.moved(message.worker, message.addresses)
        elif isinstance(message, PathMessage):
            self._routes.on_message(message)
        elif isinstance(message, messages.MemberRemoved):
            self._expel({message.member: message.words})
        elif isinstance(message, messages.MemberAllowed):
            self._peers.allow(message.member)
        elif isinstance(message, messages.ShowStep):
            self._peers.watch.ask(message)
            self._compute.watch((message.job, message.attempt), message.unit)
        else:
            if isinstance(message, messages.Registered):
                self._peers.forget_removed()
                self._expel(dict.fromkeys(message.removed, "was removed by an operator"))
            self._step(events.FromBroker(message))
            if self._orphaned is not None and not self._state.away:
                self._orphaned.cancel()
                self._orphaned = None

    def _expel(self, removed: Mapping[str, str]) -> None:
        """Have no more to do with members that were removed."""
        for peer in self._peers.expel(removed):
            log.warning("%s %s: its link is closed", peer, removed[peer])
            self.peer_lost(peer, removed[peer])

    def broker_back(self, session: BrokerSession) -> None:
        """Say where this worker is now: behind a NAT only the broker sees whether its address has changed."""
        self._routes.on_registered(session.link.local, session.link.remote, self._timeouts)
        self._send(messages.Moved(self._routes.addresses()))
        self._step(events.BrokerBack())

    def broker_lost(self, reason: str) -> None:
        """Keep the job, but not for ever."""
        self._step(events.BrokerLost(f"lost the broker: {reason}"))
        if self._orphaned is None:
            seconds = self._timeouts.orphan_seconds
            self._orphaned = self._loop.call_later(seconds, self._step, events.Orphaned(seconds))

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
        elif isinstance(command, events.Exit):
            self._departure.end(command)
        elif isinstance(command, events.HangUp):
            self._spawn(self._line.hang_up(command.reason))
        elif isinstance(command, events.Prepare):
            self._prepare(command)
        elif isinstance(command, events.Regroup):
            self._regroup(command)
        elif isinstance(command, events.Assist):
            self._assist(command)
        elif isinstance(command, events.ChangeStandbys):
            self._change_standbys(command)
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
            if shown := self._peers.watch.decided(attempt, command.unit):
                self._send(shown)
        elif isinstance(command, events.AdvanceReplay):
            self._peers.advance_replay()
        elif isinstance(command, events.EndTraining):
            self._compute.end_training(attempt)
        elif isinstance(command, events.CopyState):
            with_base = command.copy and self._copying.lacks_base
            self._compute.wait(attempt, "waiting for the disk", self._copying.wait_until_written)
            self._compute.copy_state(attempt, command.unit, command.keep, command.copy, with_base)
        elif isinstance(command, events.GiveTo):
            self._compute.give_to(attempt, command.taker)
        else:
            self._compute.give_state(attempt, command.whole)

    def _retain(self, message: messages.Retain) -> None:
        self._copying.retain(message)
        load = self._state.load
        if load is not None and load.job == message.job and message.versions:
            self._peers.replays.forget_sent(min(version.unit for version in message.versions) + 1)

    def _drop(self, command: events.Drop) -> None:
        self._peers.dismiss(command.reason)
        self._peers.replays.end_log()
        self._compute.drop()
        self._copying.end()
        self._base.end()
        self._state_receiver = None
        if command.over:
            self._copying.retain(messages.Retain(command.job, []))

    def _prepare(self, command: events.Prepare) -> None:
        load = command.load
        worker = self._identity.id
        self._routes.stop_probing("a job begins here")
        self._is_checked = False
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
        self._copying.forget_base()
        self._copying.begin(load)
        self._peers.admit(worker, load, self._state_receiver, self._state.admitted)
        if load.version is not None:
            self._spawn(self._restore(load, self._state_receiver))
        elif self._state_receiver.full:
            self.state_arrived()
        self._dialling.begin(load)
        for peer in command.dial:
            self._spawn(self._dialling.dial(peer, load))

    async def _restore(self, load: Load, receiver: StateReceiver) -> None:
        try:
            is_read, problem = await self._copying.restore(load, receiver), receiver.lacking
        except CopyError as error:
            is_read, problem = True, str(error)
        if not is_read or self._state.load is not load:
            return
        if problem:
            self._step(machine.Verified((load.job, load.attempt), problem, lacks=True))
        else:
            self.state_arrived()

    def _assist(self, command: events.Assist) -> None:
        """Hold copies of a job in which this worker has no part."""
        load = command.load
        self._compute.warm_up()
        self._copying.begin(load)
        self._copying.change_standbys(command.standbys)
        self._peers.admit(self._identity.id, load, None, self._state.admitted)
        self._dialling.begin(load)
        for peer in command.dial:
            self._spawn(self._dialling.dial(peer, load))

    def _change_standbys(self, command: events.ChangeStandbys) -> None:
        load = self._state.load
        assert load is not None
        self._copying.change_standbys(command.standbys)
        self._dialling.also(command.addresses)
        self._peers.admit_also(self._state.admitted)
        for peer in command.dial:
            self._spawn(self._dialling.dial(peer, load))

    def _regroup(self, command: events.Regroup) -> None:
        load = command.load
        self._peers.dismiss(f"job {load.job} goes on in attempt {load.attempt}")
        self._base.end()
        self._state_receiver = None
        self._compute.regroup(load)
        self._copying.begin(load)
        self._peers.admit(self._identity.id, load, None, self._state.admitted)
        self._peers.trust()
        if command.serves and not self._peers.replays.serve(command.replay_from):
            problem = f"it has no longer what it sent in unit {command.replay_from}"
            self._step(events.Verified((load.job, load.attempt), problem))
            return
        self._dialling.begin(load)
        for peer in command.dial:
            self._spawn(self._dialling.dial(peer, load))

    def _log_sent(self, needs_bytes: int) -> None:
        """Log what is sent in half of the memory that is free, if the job makes copies.

        A worker that takes over a lost share needs as much for what it is sent again.
        """
        load = self._state.load
        # A lost member of a job with sums is not replayed: all members go back.
        if load is not None and load.holders and not load.plan.sums:
            on_host = self._options.host_memory_bytes
            free = self._options.memory_bytes - needs_bytes if on_host is None else on_host
            self._peers.replays.log_sent(max(0, free) // 2)

    def _limits(self) -> Limits:
        limits = self._timeouts
        return Limits(
            self.device_watch.device.least_tflops,
            limits.pass_seconds,
            limits.longest_pass_seconds,
            limits.chore_seconds,
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
            self._peers.send_state(
                outcome.segment, outcome.key, outcome.buffer, outcome.sha256, peer=outcome.peer
            )
        elif isinstance(outcome, StateCopied):
            self._copying.made(outcome)
        elif isinstance(outcome, Restored):
            self._peers.begin_replay()
        elif isinstance(outcome, StateGiven):
            log.info("job %s: the state was handed to the submitter", load.job)
        else:
            if isinstance(outcome, events.Verified) and outcome.problem is None:
                self._peers.trust()
                log.info("job %s: this worker's part needs %s bytes", load.job, f"{outcome.needs_bytes:,}")
                self._log_sent(outcome.needs_bytes)
            if isinstance(outcome, events.Filled):
                self._base.keep()
            if isinstance(outcome, events.UnitFinished):
                traffic = self._meter.read(sent.target for sent in outcome.sent)
                traffic = replace(traffic, logged_from=self._peers.replays.logged_from)
                outcome = replace(outcome, traffic=traffic)
                self._peers.watch.ran(outcome.unit, outcome.ran)
            self._step(outcome)

    def state_arrived(self) -> None:
        """Check the whole state, once: the last slice and the end of a fetch may both say that it is here."""
        if self._state.attempt is None or self._state_receiver is None:
            return
        if not self._is_checked:
            self._is_checked = True
            self._compute.check_state(self._state.attempt, self._state_receiver)

    # Base weights, which may be on this worker's disk.

    def _cache_beside(self, store: CopyStore | None) -> WeightCache | None:
        """Where base weights are kept; None if nothing is to be kept on this disk."""
        if store is None:
            return None
        limit_bytes = self._options.disk_bytes
        return WeightCache(self._identity.folder, limit_bytes, lambda: store.taken_bytes)

    def base_listed(self, peer: str, base: BaseList) -> None:
        load, receiver = self._state.load, self._state_receiver
        if load is None or receiver is None:
            raise ProtocolError(f"{peer} listed base weights, which this worker has already")
        self._base.begin(peer, load, receiver, base)

    def _base_filled(self) -> None:
        if self._state_receiver is not None and self._state_receiver.full:
            self.state_arrived()

    # Peers: links to neighbours and the submitter come, break and are replaced.

    def peer_linked(self, peer: str) -> None:
        self._copying.linked(peer)
        self._step(events.PeerLinked(peer))
        self._routes.report()

    def peer_disconnected(self, peer: str, reason: str) -> None:
        load = self._state.load
        if load is not None:
            log.warning("lost the link to %s (%s)", peer, reason)
            self._spawn(self._dialling.replace(peer, load, reason))

    def peer_lost(self, peer: str, reason: str) -> None:
        self._peers.give_up(peer)
        self._copying.lost(peer)
        self._step(events.PeerLost(peer, reason))
        load = self._state.load
        if load is not None and peer in self._state.partners - self._state.needed:
            log.warning("no link to %s, with which copies are exchanged: %s", peer, reason)
            if peer > self._identity.id:
                self._spawn(self._dialling.dial_later(peer, load))

    def _send(self, message: Message) -> None:
        if isinstance(message, Copied):
            self._base.copied()
        self._line.send(message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
