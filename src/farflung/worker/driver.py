"""Drives a worker's state machine: its links, its threads and its disk carry out what that decides.

All decisions are made by `state.step`. What happens here becomes an event, and each event gives commands.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from farflung.errors import CopyError, GraphError, ProtocolError
from farflung.protocol import messages
from farflung.protocol.messages import Copied, Load, Message
from farflung.protocol.sessions import BaseList
from farflung.runtime.parcel import Coded, Parcel
from farflung.transport.link.governor import Pace
from farflung.worker import events
from farflung.worker import state as machine
from farflung.worker.broker_line import BrokerLine
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import (
    Outcome,
    OutgoingState,
    Restored,
    ShareReplayed,
    StateCopied,
    StateGiven,
)
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.computing.task_deadlines import Limits
from farflung.worker.departure import Departure
from farflung.worker.device_watch import DeviceWatch
from farflung.worker.linking.dialling import Dialling
from farflung.worker.linking.peers import Peers
from farflung.worker.linking.routes import Routes
from farflung.worker.linking.traffic_meter import TrafficMeter
from farflung.worker.options import WorkerOptions
from farflung.worker.records import State
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.copying import Copying
from farflung.worker.weights.cache import WeightCache
from farflung.worker.weights.filling import BaseFilling

log = logging.getLogger("farflung.worker")


class Driver:
    """The state of a worker, and the parts of it that do its work; messages to the broker go over `line`.

    `timeouts` are those of the broker that it last registered with.
    """

    def __init__(
        self, options: WorkerOptions, departure: Departure, line: BrokerLine, context: ssl.SSLContext
    ) -> None:
        self._options, self._departure, self._line = options, departure, line
        self._loop = asyncio.get_running_loop()
        own = options.identity
        self.timeouts = options.timeouts
        self.state = State(own.id, away=True)
        self.peers = Peers(self, options.backend.allocate)
        self.compute = ComputeThread(
            own.id, options.memory_bytes, options.backend, self._post_outcome, self.peers.send_from_thread
        )
        self.device_watch = DeviceWatch(self.compute, lambda: self.state, self.send, lambda: self.timeouts)
        self.peers.deliver_to(self._receive)
        store = CopyStore(own.folder, options.disk_bytes) if options.disk_bytes != 0 else None
        pace = Pace(options.standby_mbps * 1e6 / 8)
        self.copying = Copying(own.id, store, self.peers, self.send, lambda: self.timeouts, pace)
        self.peers.copies_to(self.copying)
        self.base = BaseFilling(
            self._cache_beside(store), options.base, self.peers.tell_submitter, self._base_filled
        )
        self._state_receiver: StateReceiver | None = None
        self._is_checked = False
        self._telling: asyncio.Task[None] | None = None
        self._meter = TrafficMeter(self.peers)
        self._background: set[asyncio.Task[None]] = set()
        self.routes = Routes(
            own,
            context,
            options.advertise,
            options.relay_mbps,
            self.peers,
            lambda: self.state,
            self.send,
            self.timeouts,
        )
        self.dialling = Dialling(
            own.id, self.routes, self.peers, lambda: self.state, self.peer_lost, lambda: self.timeouts
        )

    async def end(self) -> None:
        """End what runs in the background, and the work of the compute thread."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.routes.close()
        await self.copying.close()
        await self.base.close()
        self.compute.drop()
        self.compute.close()

    def step(self, event: events.Event) -> None:
        """Change the state by an event, and carry out the commands that follow."""
        self.state, commands = machine.step(self.state, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: events.Command) -> None:
        attempt = self.state.attempt
        if isinstance(command, events.Note):
            log.info("%s", command.text)
        elif isinstance(command, events.Tell):
            self.send(command.message)
        elif isinstance(command, events.Exit):
            self._departure.end(command)
        elif isinstance(command, events.HangUp):
            self.spawn(self._line.hang_up(command.reason))
        elif isinstance(command, events.Prepare):
            self._prepare(command)
        elif isinstance(command, events.Regroup):
            self._regroup(command)
        elif isinstance(command, events.Assist):
            self._assist(command)
        elif isinstance(command, events.ChangeStandbys):
            self._change_standbys(command)
        elif isinstance(command, events.AssistCheck):
            self._assist_check(command.check)
        elif isinstance(command, events.EndCheck):
            self._end_check(command.checker)
        elif isinstance(command, events.Drop):
            self._drop(command)
        elif isinstance(command, events.Retain):
            self._retain(command.message)
        elif attempt is None:
            return
        elif isinstance(command, events.Start):
            self._meter.begin(self.state.neighbours)
            self.compute.begin(attempt)
        elif isinstance(command, events.Apply):
            self.peers.advance()
            self.compute.decide(attempt, command.unit, command.scale, command.codecs)
            if shown := self.peers.watch.decided(attempt, command.unit):
                self.send(shown)
        elif isinstance(command, events.AdvanceReplay):
            self.peers.advance_replay()
        elif isinstance(command, events.EndTraining):
            self.compute.end_training(attempt)
        elif isinstance(command, events.CopyState):
            with_base = command.copy and self.copying.lacks_base
            self.compute.wait(attempt, "waiting for the disk", self.copying.wait_until_written)
            self.compute.copy_state(attempt, command.unit, command.keep, command.copy, with_base)
        elif isinstance(command, events.GiveTo):
            self.compute.give_to(attempt, command.taker)
        else:
            self.compute.give_state(attempt, command.whole)

    def _retain(self, message: messages.Retain) -> None:
        self.copying.retain(message)
        load = self.state.load
        if load is not None and load.job == message.job and message.versions:
            self.peers.replays.forget_sent(min(version.unit for version in message.versions) + 1)

    def _drop(self, command: events.Drop) -> None:
        self.peers.dismiss(command.reason)
        self.peers.replays.end_log()
        self.compute.drop()
        if self._telling is not None:
            self._telling.cancel()
        self.copying.end()
        self.base.end()
        self._state_receiver = None
        if command.over:
            self.copying.retain(messages.Retain(command.job, []))

    def _prepare(self, command: events.Prepare) -> None:
        load = command.load
        worker = self._options.identity.id
        self.routes.stop_probing("a job begins here")
        self._is_checked = False
        try:
            self._state_receiver = StateReceiver(
                load,
                load.plan.segments_of(worker),
                self._options.memory_bytes,
                self._options.backend.allocate,
            )
        except GraphError as error:
            self.step(events.Verified(load.key, str(error)))
            return
        self.compute.prepare(load, self._state_receiver, self._limits())
        self.copying.forget_base()
        self.copying.begin(load)
        self.peers.admit(worker, load, self._state_receiver, self.state.admitted)
        if load.version is not None:
            self.spawn(self._restore(load, self._state_receiver))
        elif self._state_receiver.full:
            self.state_arrived()
        self.dialling.begin(load)
        if load.checks:
            self.dialling.expect(self.state.needed, load)
        for peer in command.dial:
            self.spawn(self.dialling.dial(peer, load))

    async def _restore(self, load: Load, receiver: StateReceiver) -> None:
        try:
            is_read, problem = await self.copying.restore(load, receiver), receiver.lacking
        except CopyError as error:
            is_read, problem = True, str(error)
        if not is_read or self.state.load is not load:
            return
        if problem:
            self.step(events.Verified(load.key, problem, lacks=True, begun=self.copying.begun))
        else:
            self.state_arrived()

    def _assist(self, command: events.Assist) -> None:
        """Hold copies of a job in which this worker has no part."""
        load = command.load
        self.compute.warm_up()
        self.copying.begin(load)
        self.copying.change_standbys(command.standbys)
        self.peers.admit(self._options.identity.id, load, None, self.state.admitted)
        self.dialling.begin(load)
        for peer in command.dial:
            self.spawn(self.dialling.dial(peer, load))

    def _change_standbys(self, command: events.ChangeStandbys) -> None:
        load = self.state.load
        assert load is not None
        self.copying.change_standbys(command.standbys)
        self.dialling.also(command.addresses)
        self.peers.admit_also(self.state.admitted)
        for peer in command.dial:
            self.spawn(self.dialling.dial(peer, load))

    def _assist_check(self, check: messages.ServeCheck) -> None:
        """Dial a worker that checks a neighbour's share, to give it what was sent there."""
        load, checker = self.state.load, check.checker
        assert load is not None and checker is not None
        self.peers.part(checker, "it checks a share now")
        self.copying.lost(checker)
        self.peers.replays.serve_check(checker, check)
        self.dialling.also({checker: check.addresses})
        self.peers.admit_also(self.state.admitted)
        if check.donor == self._options.identity.id and check.version is not None:
            self.copying.give(check.version, checker, check.share)
        self.spawn(self.dialling.dial(checker, load, check))

    def _receive(self, attempt: events.Attempt, parcel: Parcel[Coded]) -> None:
        """Take a value or gradient in; on links, which end with it, a check has no number."""
        load = self.state.load
        if load is not None and attempt == (load.job, load.attempt):
            self.compute.receive(load.key, parcel)

    def _end_check(self, checker: str) -> None:
        self.peers.replays.serve_check(checker, None)
        self.peers.part(checker, "the check is over")
        self.copying.lost(checker)
        self.peers.admit_also(self.state.admitted)

    async def _tell_checked(self, load: Load, found: ShareReplayed) -> None:
        checked = await self.copying.checked(load, found)
        self.step(events.CheckEnded(load.key, checked))

    def _regroup(self, command: events.Regroup) -> None:
        load = command.load
        self.peers.dismiss(f"job {load.job} goes on in attempt {load.attempt}")
        self.base.end()
        self._state_receiver = None
        self.compute.regroup(load)
        self.copying.begin(load)
        self.peers.admit(self._options.identity.id, load, None, self.state.admitted)
        self.peers.trust()
        if command.serves and not self.peers.replays.serve(command.replay_from):
            problem = f"it has no longer what it sent in unit {command.replay_from}"
            self.step(events.Verified(load.key, problem))
            return
        self.dialling.begin(load)
        for peer in command.dial:
            self.spawn(self.dialling.dial(peer, load))

    def _log_sent(self, needs_bytes: int) -> None:
        """Log what is sent in half of the memory that is free, if the job makes copies.

        A worker that takes over a lost share needs as much for what it is sent again.
        """
        load = self.state.load
        # A lost member of a job with sums is not replayed: all members go back.
        if load is not None and load.holders and not load.plan.sums:
            on_host = self._options.host_memory_bytes
            free = self._options.memory_bytes - needs_bytes if on_host is None else on_host
            self.peers.replays.log_sent(max(0, free) // 2)

    def _limits(self) -> Limits:
        limits = self.timeouts
        return Limits(
            self.device_watch.device.least_tflops,
            limits.pass_seconds,
            limits.longest_pass_seconds,
            limits.chore_seconds,
        )

    def _post_outcome(self, outcome: Outcome) -> None:
        """Pass an outcome to the event loop; called on the compute thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker is shutting down
            self._loop.call_soon_threadsafe(self._handle_outcome, outcome)

    def _handle_outcome(self, outcome: Outcome) -> None:
        load = self.state.load
        if load is None or outcome.attempt != load.key:
            return
        if isinstance(outcome, OutgoingState):
            self.peers.send_state(
                outcome.segment, outcome.key, outcome.buffer, outcome.sha256, peer=outcome.peer
            )
        elif isinstance(outcome, StateCopied):
            self.copying.made(outcome)
        elif isinstance(outcome, ShareReplayed):
            self._telling = self.spawn(self._tell_checked(load, outcome))
        elif isinstance(outcome, Restored):
            self.peers.begin_replay()
        elif isinstance(outcome, StateGiven):
            log.info("job %s: the state was handed to the submitter", load.job)
        else:
            if isinstance(outcome, events.Verified) and outcome.problem is None:
                self.peers.trust()
                if not load.checks:
                    log.info(
                        "job %s: this worker's part needs %s bytes", load.job, f"{outcome.needs_bytes:,}"
                    )
                self._log_sent(outcome.needs_bytes)
            if isinstance(outcome, events.Filled):
                self.base.keep()
            if isinstance(outcome, events.UnitFinished):
                traffic = self._meter.read(sent.target for sent in outcome.sent)
                traffic = replace(traffic, logged_from=self.peers.replays.logged_from)
                outcome = replace(outcome, traffic=traffic)
                self.peers.watch.ran(outcome.unit, outcome.ran)
            self.step(outcome)

    def state_arrived(self) -> None:
        """Check the whole state, once: the last slice and the end of a fetch may both say that it is here."""
        if self.state.attempt is None or self._state_receiver is None:
            return
        if not self._is_checked:
            self._is_checked = True
            self.compute.check_state(self.state.attempt, self._state_receiver)

    def _cache_beside(self, store: CopyStore | None) -> WeightCache | None:
        """Where base weights are kept; None if nothing is to be kept on this disk."""
        if store is None:
            return None
        limit_bytes = self._options.disk_bytes
        return WeightCache(self._options.identity.folder, limit_bytes, lambda: store.taken_bytes)

    def base_listed(self, peer: str, base: BaseList) -> None:
        load, receiver = self.state.load, self._state_receiver
        if load is None or receiver is None:
            raise ProtocolError(f"{peer} listed base weights, which this worker has already")
        self.base.begin(peer, load, receiver, base)

    def _base_filled(self) -> None:
        if self._state_receiver is not None and self._state_receiver.full:
            self.state_arrived()

    def peer_linked(self, peer: str) -> None:
        self.copying.linked(peer)
        self.step(events.PeerLinked(peer))
        self.routes.report()

    def peer_disconnected(self, peer: str, reason: str) -> None:
        load = self.state.load
        if load is not None:
            log.warning("lost the link to %s (%s)", peer, reason)
            self.spawn(self.dialling.replace(peer, load, reason))

    def peer_lost(self, peer: str, reason: str) -> None:
        self.peers.give_up(peer)
        load = self.state.load
        if load is not None and load.checks and peer in self.state.linked:
            # It may have been dialled for this worker as a standby, and another one comes.
            self.peers.replays.ask_again(peer)
            self.dialling.expect([peer], load)
        else:
            self.copying.lost(peer)
        self.step(events.PeerLost(peer, reason))
        load = self.state.load
        if load is not None and peer in self.state.partners - self.state.needed - {self.state.checker}:
            log.warning("no link to %s, with which copies are exchanged: %s", peer, reason)
            if peer > self._options.identity.id:
                self.spawn(self.dialling.dial_later(peer, load))

    def send(self, message: Message) -> None:
        """Send a message to the broker."""
        if isinstance(message, Copied):
            self.base.copied()
        self._line.send(message)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background; it is cancelled when the worker stops."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
