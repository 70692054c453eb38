"""A worker's process: the real state machine, with a modelled compute thread and data links.

It does what `worker.driver` and `worker.linking.peers` do: carry out the machine's commands, and turn what
happens to links and to the compute thread into its events.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import msgspec
from tests.broker.scenario import DEVICE
from tests.simulation.compute import Compute
from tests.simulation.disk import BASE_BYTES, Disk, base_of, digest_of
from tests.simulation.ends import End
from tests.simulation.model import share_of
from tests.simulation.parcels import Chain, Copy, Parcel, State
from tests.simulation.world import LEASE_SECONDS, Process, World

from farflung.broker.core.trusting.events import AllowAsked
from farflung.protocol.checks import CheckedUnit
from farflung.protocol.copies import Copied, CopyLost, Retain, StateVersion
from farflung.protocol.fields import shutting_down
from farflung.protocol.messages import (
    AskReverse,
    Begin,
    Checked,
    Claim,
    Decide,
    Denied,
    Load,
    Measured,
    Moved,
    PeerMoved,
    Register,
    Registered,
    SendState,
    Stop,
    Welcome,
)
from farflung.protocol.reachability import DialBack, NotReached
from farflung.transport.timeouts import Timeouts
from farflung.worker import events, records
from farflung.worker import state as machine

TIMEOUTS = Timeouts(LEASE_SECONDS)
LINK_SECONDS = 6 * LEASE_SECONDS
DIAL_SECONDS = 2 * LEASE_SECONDS
ALIKE = msgspec.structs.replace(DEVICE, kernels="the same kernels")
"""For reaching a peer over any route, before it counts as lost."""


class WorkerProcess(Process):
    """One worker. `trouble` is what goes wrong next in its computation: "refuse" or "nan"."""

    role = "worker"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.trouble = ""
        self.disk = Disk()
        self.overflows = world.random("logs").choice([0.0, 0.0, 0.01, 0.2])
        self._has_disk = self.random.random() < 0.95
        self.begin()

    def begin(self) -> None:
        """Start with an empty memory, and register."""
        self.state = records.State(self.name)
        self.compute = Compute(self)
        self.logged_from: int | None = None
        self._awaited: set[int] = set()
        self.control: End | None = None
        self._denied: Denied | None = None
        self.registered = self._asked_again = False
        self._pause = 1.0
        self._links: dict[str, End] = {}
        self._sessions: dict[str, End] = {}
        self._dialled: dict[End, Load] = {}
        self._pending: dict[End, Claim] = {}
        self._owners: set[str] = set()
        self._moves = self._since_lost = 0
        self._leaves_at: float | None = None
        self._away_seconds = 0.0
        self._heard: deque[Any] = deque(maxlen=20)
        self.after(self.random.uniform(0, 1), self._register)

    def leave(self) -> None:
        """Shut down in order, and start again after a while."""
        self.note("leaves")
        if self.control is not None:
            self.control.close(shutting_down(self.name))
        for link in self._links.values():
            link.close(shutting_down(self.name))
        self.die(silently=False)

    def drain(self, within_seconds: int, away_seconds: float) -> None:
        """The owner stops it in good order, and starts it again a while after its end."""
        if self._leaves_at is None:
            self._leaves_at, self._away_seconds = self.world.now + within_seconds, away_seconds
            self.after(within_seconds + LEASE_SECONDS, lambda: self._step(events.LeftBehind()))
            self._step(events.Leave(within_seconds))

    def _exit(self, reason: str) -> None:
        self.world.laws.on_exit(self, reason)
        self.world.laws.log.has_losses |= "did not release it" in reason  # it counts as lost
        self.leave()
        self.world.schedule(self._away_seconds, self.world.weather, self.start)

    def hang(self, seconds: float) -> None:
        """An operation does not end: after its deadline this process gives its device up."""
        if not self.compute.idle:
            self.compute.hang()
            self.after(LINK_SECONDS, lambda: self._give_up_device(seconds))

    def _give_up_device(self, seconds: float) -> None:
        self.leave()
        self.world.schedule(seconds, self.world.weather, self.start)

    # The broker

    def _register(self) -> None:
        broker = self.world.processes["broker"]
        end = self.world.network.dial(self, broker, "worker", "control", self)
        if end is None:
            self.after(self._pause, self._register)
            longest = 1.0 if self.state.load is not None else LEASE_SECONDS
            self._pause = min(2 * self._pause, longest)
            return
        self.control, self._pause = end, 1.0
        where, size = [f"192.0.2.9:{7000 + self.life}"], 10**9 if self._has_disk else 0
        state, boot = self.state, f"boot-{self.life}"
        device = ALIKE if self.world.alike else msgspec.structs.replace(ALIKE, kernels=self.name)
        register = Register(device, "lab", where, boot, held=self.disk.held(), disk_bytes=size)
        newest = {"standing": state.standing, "generation": state.generation, "seal": state.seal}
        left = None if self._leaves_at is None else max(0, round(self._leaves_at - self.world.now))
        end.send(msgspec.structs.replace(register, **newest, leaving_seconds=left))

    def on_message(self, end: End, message: Any) -> None:
        if end.kind == "data":
            self._on_data(end, message)
        elif end is not self.control:
            self.world.fail(f"{self.name} heard {message} in a session that it had given up")
        elif isinstance(message, Denied):
            self._denied = message
        elif isinstance(message, DialBack):
            end.send(NotReached(message.number, message.job, message.attempt, message.peer, "no route"))
        elif not isinstance(message, PeerMoved | NotReached):
            self.registered = self.registered or isinstance(message, Registered)
            if isinstance(message, Begin | Decide | SendState | Stop):
                self._heard.append(message)
            self._step(events.FromBroker(message))

    def on_back(self, end: End) -> None:
        if end is self.control:
            self._moves += 1
            end.send(Moved([f"192.0.2.9:{7000 + self._moves % 3}"]))
            end.send(Measured(1.0 + self._moves % 3, None))
            self._step(events.BrokerBack())
        elif self._links.get(end.other.process.name) is end:
            self._step(events.PeerLinked(end.other.process.name))

    def on_end(self, end: End, reason: str) -> None:
        if end.kind == "data":
            self._on_data_end(end, reason)
            return
        self.control, self.registered = None, False
        denied, self._denied = self._denied, None
        if denied is None:
            self._asked_again = False
            self._since_lost += 1
            lost, seconds = self._since_lost, TIMEOUTS.orphan_seconds
            self.after(seconds, lambda: self._orphan(lost, seconds))
            self.after(1.0, self._register)
            self._step(events.BrokerLost(f"lost the broker: {reason}"))
        elif denied.reason.startswith(f"worker {self.name} was removed"):
            self.die(silently=False)
            if self.world.calm_since is not None:  # no fault of the campaign will allow it again
                self.world.laws.broker.ask(AllowAsked(self.world.now, self.name, "olga"))
                self.world.schedule(1.0, self.world.weather, self.start)
        elif self._asked_again or not denied.for_now:
            self.world.fail(f"{self.name} is refused for good: {denied.reason}")
        else:
            self._asked_again = True
            self.after(0.3 * LEASE_SECONDS, self._register)

    def _orphan(self, lost: int, seconds: float) -> None:
        if self._since_lost == lost:
            self._step(events.Orphaned(seconds))

    # The state machine

    def hear_an_echo(self) -> None:
        """A message of an attempt that is over arrives again: nothing may change."""
        late = [one for one in self._heard if (one.job, one.attempt) != self.state.attempt]
        if not late:
            return
        message = self.random.choice(late)
        state, commands = machine.step(self.state, events.FromBroker(message))
        assert state == self.state and not commands, f"{self.name} obeys {message} of an attempt that is over"

    def _step(self, event: events.Event) -> None:
        self.note("hears", event)
        load = self.state.load
        self._stood_by = self.state.phase == "standby" or (load is not None and load.checks)
        self.state, commands = machine.step(self.state, event)
        for command in commands:
            if not isinstance(command, events.Note):
                self.note("does", command)
            self._carry_out(command)

    def _carry_out(self, command: events.Command) -> None:
        attempt = self.state.attempt
        match command:
            case events.Tell(message):
                if self.control is not None:
                    self.control.send(message)
            case events.HangUp(reason):
                self.world.fail(f"{self.name} refuses its broker: {reason}")
            case events.Exit(reason):
                self._exit(reason)
            case events.Prepare(load) if load.checks:
                self._check(load)
            case events.Prepare(load):
                self.world.laws.on_prepare(self, load)
                self._prepare(command)
            case events.Regroup():
                self._regroup(command)
            case events.Assist() | events.ChangeStandbys():
                self._change_standbys(command)
            case events.Drop(reason, job, over):
                if not self._stood_by:
                    self.world.laws.on_drop(self, reason)
                self._dismiss(reason)
                self.compute.drop()
                if over:
                    self.disk.retain(Retain(job, []))
            case events.Retain(message):
                self.disk.retain(message)
                load, kept = self.state.load, [version.unit + 1 for version in message.versions]
                if load is not None and load.job == message.job and kept and self.logged_from is not None:
                    self.logged_from = max(self.logged_from, min(kept))
            case events.Start() if attempt:
                self.compute.begin(attempt)
            case events.Apply(unit, scale, codecs) if attempt:
                self.world.laws.on_apply(self, attempt, unit, scale, codecs)
                self.compute.decide(attempt, unit, scale)
            case events.EndTraining() if attempt:
                self.compute.end_training(attempt)
            case events.CopyState(unit, keep, copy) if attempt:
                if keep:
                    self.compute.give(attempt, unit)
                if copy:
                    self.compute.copy(attempt, unit)
            case events.GiveTo(taker) if attempt:
                self.world.laws.counts["a state given to another replica"] += 1
                self.compute.give_to(attempt, taker)
            case events.GiveState() if attempt:
                self.compute.give(attempt, None)

    def on_outcome(
        self,
        outcome: events.Verified | events.Filled | events.UnitFinished | events.ComputeFailed,
    ) -> None:
        """The compute thread has something to say; an outcome of an attempt that is over is dropped."""
        if outcome.attempt == self.state.attempt:
            self._step(outcome)

    # Data links

    def to_submitter(self, parcel: Parcel) -> None:
        """Send to the submitter, if the attempt lasts."""
        if self.state.load is not None and parcel.attempt == self.state.attempt:
            self.to_peer(self.state.load.submitter, parcel)

    def to_peer(self, peer: str, parcel: Parcel) -> None:
        """Send to another member of the plan, if the attempt lasts."""
        session = self._sessions.get(peer)
        if session is not None and parcel.attempt == self.state.attempt:
            session.send(parcel)

    def has_link(self, peer: str) -> bool:
        """Whether there is a link to another member of the plan."""
        return peer in self._sessions

    def run_again(self, attempt: events.Attempt, unit: int, scale: float) -> None:
        """The compute thread has run a past unit again."""
        if attempt == self.state.attempt:
            self.world.laws.on_run_again(self, attempt, unit, scale)
            self._step(events.UnitReplayed(attempt, unit))

    def _regroup(self, command: events.Regroup) -> None:
        load = command.load
        self.world.laws.on_regroup(self, load)
        self._dismiss(f"{load.job} goes on in attempt {load.attempt}")
        self.compute.regroup(load)
        lacks = self.logged_from is None or self.logged_from > command.replay_from
        if command.serves and lacks and command.replay_from < load.unit:
            self._step(events.Verified((load.job, load.attempt), "it has no longer what it sent"))
        else:
            self._link_up(command)

    def _prepare(self, command: events.Prepare) -> None:
        self.logged_from = command.load.unit if command.load.holders else None
        self.compute.prepare(command.load)
        self._link_up(command)
        load = command.load
        self._awaited = {share for _, taker, share in load.gifts if taker == self.name}
        if load.version is not None and not self._awaited:
            self.after(self.random.expovariate(1), lambda: self._restore(load))

    def _check(self, load: Load) -> None:
        """Run another member's share again, without links: what it is given is what was sent."""
        self.world.laws.counts["a share is checked"] += 1
        attempt, share = (load.job, load.attempt, load.check), min(load.plan.segments_of(self.name))

        def end() -> None:
            if self.state.load is load:
                self._step(events.CheckEnded(attempt, found))

        chain, units = self.world.laws.expected_chain(load), list[CheckedUnit]()
        begun = b"" if load.version is None else digest_of(chain)
        for number, past in enumerate(load.history, load.unit):
            unit = load.training.units().at(number)
            assert unit is not None
            parts = load.plan.segments_of(self.name) if unit.train else []
            graph = load.programs[0].program
            digests = {one: share_of(graph, chain, unit, one, load.plan, True).digest for one in parts}
            units += [CheckedUnit(number, digests, {one: {} for one in parts})] if parts else []
            chain = (*chain, (number, past.scale))
        found = Checked(*attempt, share, units, begun, digest_of(chain))
        if self.random.random() < 0.1:
            found = Checked(*attempt, share, trouble="a neighbour did not dial")
        self.after(self.random.expovariate(0.3), end)

    # Copies

    def copied(self, attempt: events.Attempt, unit: int, chain: Chain) -> None:
        """The compute thread has copied the state: write it to disk, then send it to the holder."""
        load = self.state.load
        if load is None or attempt != self.state.attempt:
            return
        version, share = StateVersion(load.attempt, unit), min(load.plan.segments_of(self.name))
        copy = Copy(attempt, version, share, chain, _owned(load, self.name))

        def send() -> None:
            if self._store(load, copy):
                holder = self.state.standbys.get(self.name) or load.holders[self.name]
                self._send_copy(load, holder, copy, self.world.now + LINK_SECONDS)

        self.after(self.random.expovariate(2), send)

    def _send_copy(self, load: Load, peer: str, copy: Copy, until: float) -> None:
        """Send a copy as soon as there is a link; say so if none comes in time."""
        if self.state.load is not load:
            return
        if peer in self._sessions:
            self.to_peer(peer, copy)
        elif self.world.now < until:
            self.after(1.0, lambda: self._send_copy(load, peer, copy, until))
        elif copy.version != load.version:
            self._tell(Copied(load.job, load.attempt, copy.version.unit, copy.share, trouble="no link"))

    def _store(self, load: Load, copy: Copy) -> bool:
        """Write a copy to disk and say so, or why not."""
        if self.state.load is not load:
            return False
        found = (load.job, load.attempt, copy.version.unit, copy.share)
        if self.disk.full:
            self._tell(Copied(*found, trouble="the disk is full"))
            return False
        self.disk.keep(load.job, copy)
        if not self.disk.mute:
            base = base_of(load.job, copy.share)
            self._tell(Copied(*found, digest_of(copy.chain), 100, base=base, base_bytes=BASE_BYTES))
        return True

    def _take_copy(self, peer: str, copy: Copy) -> None:
        """A copy comes from a member whose copies this worker holds, or from one that gives it its share."""
        load = self.state.load
        if load is None or copy.attempt != self.state.attempt:
            return
        if (peer, self.name, copy.share) in load.gifts and copy.version == load.version:
            self.disk.keep(load.job, copy)
            self._awaited.discard(copy.share)
            if not self._awaited:
                self.after(self.random.expovariate(1), lambda: self._restore(load))
            return
        is_holder = load.holders.get(peer) == self.name or peer in self._owners
        assert is_holder, f"{peer} sends {copy}, which is not for {self.name}"
        self.after(self.random.expovariate(1), lambda: self._store(load, copy))

    def _restore(self, load: Load) -> None:
        """Load the state from copies on this disk, if they are still there."""
        if self.state.load is not load:
            return
        read = [self._read(load, share) for share in load.shares_for(self.name)]
        found = [copy for copy in read if copy is not None]
        if len(found) < len(read):
            return
        names = frozenset[str]().union(*(copy.names for copy in found))
        assert names >= _owned(load, self.name), f"{self.name} lacks some of its state: it has {names}"
        chains = {copy.chain for copy in found} or {self.world.laws.expected_chain(load)}
        assert len(chains) == 1, f"{self.name} reads copies of different states: {chains}"
        attempt = (load.job, load.attempt)
        self.compute.fill(attempt, State(attempt, chains.pop()))

    def _give(self, load: Load, peer: str, share: int) -> None:
        if self.state.load is load and (copy := self._read(load, share)) is not None:
            self._send_copy(load, peer, copy, self.world.now)

    def _read(self, load: Load, share: int) -> Copy | None:
        assert load.version is not None
        key = (load.job, load.version, share)
        if key not in self.disk.copies:
            self._tell(CopyLost(load.job, load.attempt, load.version, share, "the disk lacks it"))
            return None
        attempt = (load.job, load.attempt)
        return Copy(attempt, load.version, share, self.disk.copies[key], self.disk.names[key])

    def _tell(self, message: Any) -> None:
        if self.control is not None:
            self.control.send(message)

    # Links

    def _change_standbys(self, command: events.Assist | events.ChangeStandbys) -> None:
        if isinstance(command, events.Assist):
            self._owners = set()
            self.world.laws.counts["a worker stands by"] += 1
        self._owners |= {owner for owner, standby in command.standbys.items() if standby == self.name}
        load = self.state.load
        assert load is not None
        for end in list(self._pending):
            self._welcome_if_due(end)
        for peer in command.dial:
            self._dial(peer, load, self.world.now + DIAL_SECONDS)

    def _link_up(self, command: events.Prepare | events.Regroup) -> None:
        load, self._owners = command.load, set()
        for end in list(self._pending):
            self._welcome_if_due(end)
        for peer in command.dial:
            self._dial(peer, load, self.world.now + DIAL_SECONDS)

    def _dial(self, peer: str, load: Load, until: float) -> None:
        known = (*self._links.values(), *self._dialled)
        if self.state.load is not load or any(end.other.process.name == peer for end in known):
            return
        end = self.world.network.dial(self, self.world.processes[peer], "worker", "data", self)
        if end is not None:
            self._dialled[end] = load
            end.send(Claim(load.job, load.attempt))
            self.after(LINK_SECONDS, lambda: self._require_link(peer, load))
        elif self.world.now < until:
            if self.control is not None:
                self.control.send(AskReverse(self._moves, load.job, load.attempt, peer, 7000))
            self.after(self.random.uniform(1, 4), lambda: self._dial(peer, load, until))
        else:
            self._lose(peer, "it cannot be reached")

    def _require_link(self, peer: str, load: Load) -> None:
        if self.state.load is load and peer not in self.state.linked:
            self._lose(peer, f"it did not welcome the link within {LINK_SECONDS:g} s")

    def _on_data(self, end: End, message: Any) -> None:
        peer = end.other.process.name
        if isinstance(message, Claim):
            self._pending[end] = message
            self._welcome_if_due(end)
        elif isinstance(message, Welcome):
            load = self._dialled.pop(end, None)
            if load is not None and self.state.load is load:
                self._attach(peer, end)
        elif self._links.get(peer) is end:
            if isinstance(message, Copy):
                self._take_copy(peer, message)
            elif isinstance(message, State):
                load = self.state.load
                is_due = load is not None and (not load.state_donors or (peer, self.name) in load.state_gifts)
                assert is_due, f"{peer} sends a state, which {self.name} has or gets from another"
                self.compute.fill(message.attempt, message)
            else:
                self.compute.receive(peer, message)

    def _welcome_if_due(self, end: End) -> None:
        claim, load, peer = self._pending[end], self.state.load, end.other.process.name
        if load is None or (claim.job, claim.attempt) != (load.job, load.attempt):
            return
        if peer not in self.state.admitted:  # it may have heard of a change of standbys before this worker
            is_member = self.state.phase != "standby" and peer in load.plan.workers()
            assert not is_member, f"{peer} has no part in {load.job}, but claims a link"
            return
        del self._pending[end]
        end.send(Welcome(claim.job, claim.attempt))
        self._attach(peer, end)

    def _attach(self, peer: str, end: End) -> None:
        self._links[peer] = self._sessions[peer] = end
        load = self.state.load
        for donor, taker, share in [] if load is None else load.gifts:
            if (donor, taker) == (self.name, peer):
                self.after(self.random.expovariate(1), partial(self._give, load, peer, share))
        self.compute.ask()
        self._step(events.PeerLinked(peer))

    def _on_data_end(self, end: End, reason: str) -> None:
        self._pending.pop(end, None)
        peer, load = end.other.process.name, self._dialled.pop(end, None)
        if self._links.get(peer) is end or (load is not None and load is self.state.load):
            self._lose(peer, reason)

    def _lose(self, peer: str, reason: str) -> None:
        self._links.pop(peer, None)
        self._sessions.pop(peer, None)
        for end in [end for end in self._dialled if end.other.process.name == peer]:
            del self._dialled[end]
            end.close("it was given up")
        self._step(events.PeerLost(peer, reason))
        load = self.state.load
        if load is not None and peer in self.state.partners - self.state.needed and peer > self.name:
            self.after(LEASE_SECONDS, lambda: self._dial(peer, load, self.world.now + DIAL_SECONDS))

    def _dismiss(self, reason: str) -> None:
        over = [*self._links.values(), *self._dialled]
        self._links, self._sessions, self._dialled = {}, {}, {}
        for end in over:
            end.close(reason)


def _owned(load: Load, worker: str) -> frozenset[str]:
    """The names of all that a member's segments own."""
    parts = load.plan.segments_of(worker)
    return frozenset(name for one in load.programs if one.segment in parts for name in one.owned)
