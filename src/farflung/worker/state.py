"""A worker's state machine: events in, commands out; no clock, socket, thread or file.

A worker holds one job at a time. Loading is done when the programs are verified, the whole state is here, and
there is a link to every neighbour and to the submitter (which sends the state). A later failure ends the
attempt here with one message to the broker; the broker's `Stop` returns the worker to the pool.

A worker that loses its broker keeps the job, finishes what it can, and says again what a broker that was
restarted cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from farflung.plans import LinkCodec
from farflung.protocol import messages
from farflung.protocol.messages import (
    Begin,
    Broken,
    Continue,
    Copied,
    Decide,
    Denied,
    Load,
    Loaded,
    Message,
    Refused,
    Registered,
    SendState,
    Stop,
    UnitReady,
)
from farflung.protocol.worker import LinkBytes, LinkRate, Share, Standing
from farflung.runtime.parcel import Sent
from farflung.text import count_of

Attempt = tuple[str, int]  # job and attempt: attempts count from 1 in every job

Phase = Literal["idle", "loading", "running", "collecting", "broken"]


@dataclass(frozen=True)
class State:
    """The worker's job, if any, and what it still needs before it can begin.

    `ready` is what was reported about unit `unit`; it is kept until the broker has decided that unit.
    `broken` is what was reported when the attempt ended here. `failure` says why a segment failed, which
    costs the state. Without a broker the worker is `away`. `generation` and `seal` are those of the newest
    broker that admitted it.
    """

    worker: str
    phase: Phase = "idle"
    load: Load | None = None
    verified: bool = False
    filled: bool = False
    linked: frozenset[str] = field(default_factory=frozenset)
    announced: bool = False
    unit: int = 0
    ready: UnitReady | None = None
    warned: bool = False
    failure: str = ""
    unprotected: str = ""
    needs_bytes: int = 0
    broken: Broken | None = None
    away: bool = False
    generation: int = 0
    seal: bytes = b""

    @property
    def idle(self) -> State:
        """The same worker without a job."""
        return State(self.worker, away=self.away, generation=self.generation, seal=self.seal)

    @property
    def standing(self) -> Standing | None:
        """What to say of the job to a broker that may not know of it."""
        if self.load is None or self.phase == "idle":
            return None
        phase = "loaded" if self.phase == "loading" and self.announced else self.phase
        return Standing(self.load.job, self.load.attempt, self.unit, phase)

    @property
    def attempt(self) -> Attempt | None:
        """The current job and attempt, if any."""
        return (self.load.job, self.load.attempt) if self.load else None

    @property
    def neighbours(self) -> frozenset[str]:
        """The workers with which this one exchanges values in the plan."""
        return frozenset(self.load.plan.neighbours(self.worker)) if self.load else frozenset()

    @property
    def partners(self) -> frozenset[str]:
        """The workers with which this one exchanges copies: its holder, and those that it holds or gives."""
        if self.load is None:
            return frozenset()
        pairs = (*self.load.holders.items(), *self.load.donors.items())
        return frozenset(one for pair in pairs if self.worker in pair for one in pair) - {self.worker}

    @property
    def needed(self) -> frozenset[str]:
        """Ids without whose links the attempt cannot go on: the neighbours, the submitter, and the donor."""
        if self.load is None:
            return frozenset()
        donor = None if self.filled else self.load.donors.get(self.worker)
        return self.neighbours | {self.load.submitter} | ({donor} if donor else frozenset())

    @property
    def admitted(self) -> frozenset[str]:
        """Ids whose data links are accepted now: the neighbours, the partners and the submitter."""
        return self.neighbours | self.partners | {self.load.submitter} if self.load else frozenset()


# events


@dataclass(frozen=True)
class FromBroker:
    """A message of the broker."""

    message: Message


@dataclass(frozen=True)
class BrokerLost:
    """The session with the broker is lost."""

    reason: str


@dataclass(frozen=True)
class BrokerBack:
    """The broker can be reached again; it may have missed what was sent before."""


@dataclass(frozen=True)
class Orphaned:
    """There was no broker for `seconds`, which is as long as a job is kept."""

    seconds: float


@dataclass(frozen=True)
class Verified:
    """The programs of the attempt are verified (`problem` is None) or refused.

    `unprotected` says why the worker can make no copies of its state; empty if it can. Its part needs
    `needs_bytes` of memory.
    """

    attempt: Attempt
    problem: str | None
    unprotected: str = ""
    needs_bytes: int = 0


@dataclass(frozen=True)
class Filled:
    """The whole state has been received and verified."""

    attempt: Attempt


@dataclass(frozen=True)
class PeerLinked:
    """A data link to a neighbour or the submitter is up."""

    peer: str


@dataclass(frozen=True)
class PeerLost:
    """A data link to a neighbour or the submitter is lost, or could not be made."""

    peer: str
    reason: str


@dataclass(frozen=True)
class Traffic:
    """What data links carried since the last unit, as in `UnitReady`; `wire_bytes` are by target."""

    bytes_sent: int = 0
    wire_bytes: Mapping[str, int] = field(default_factory=dict)
    rates: tuple[LinkRate, ...] = ()
    logged_from: int | None = None


@dataclass(frozen=True)
class UnitFinished:
    """Every microbatch of a unit has run here.

    `sent` counts what was encoded for other workers; the tasks took `computing_seconds`.
    """

    attempt: Attempt
    unit: int
    shares: tuple[Share, ...]
    sent: tuple[Sent, ...] = ()
    computing_seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True)
class UnitReplayed:
    """A unit of the load's history is applied again, or passed over."""

    attempt: Attempt
    unit: int


@dataclass(frozen=True)
class ComputeFailed:
    """A segment raised an error."""

    attempt: Attempt
    reason: str


Event = (
    FromBroker
    | BrokerLost
    | BrokerBack
    | Orphaned
    | Verified
    | Filled
    | PeerLinked
    | PeerLost
    | UnitFinished
    | UnitReplayed
    | ComputeFailed
)


# commands


@dataclass(frozen=True)
class Tell:
    """Send a message to the broker."""

    message: Message


@dataclass(frozen=True)
class Prepare:
    """Allocate memory for the state, verify the programs on the compute thread, dial the peers in `dial`."""

    load: Load
    dial: tuple[str, ...]


@dataclass(frozen=True)
class Regroup:
    """Keep the state, drop the unit in flight and the links, and dial the peers in `dial`.

    Answered by `Filled`. `load` is that of the job with what is new in the attempt. The `replayer`, if there
    is one, runs the units from `replay_from` on again, with what this worker sent then.
    """

    load: Load
    dial: tuple[str, ...]
    replayer: str = ""
    replay_from: int = 0


@dataclass(frozen=True)
class Start:
    """Run the first unit, and each further one when the one before it is decided."""


@dataclass(frozen=True)
class Apply:
    """End a unit with gradients times `scale`; `codecs`, if given, are the links' new codec pairs."""

    unit: int
    scale: float
    codecs: tuple[LinkCodec, ...] | None = None


@dataclass(frozen=True)
class AdvanceReplay:
    """Go on to the next unit of the load's history."""


@dataclass(frozen=True)
class EndTraining:
    """Drop the unit in flight and run no other: its memory is needed for copies of the state."""


@dataclass(frozen=True)
class CopyState:
    """Copy the state, as unit `unit` has just left it, while training goes on.

    The copy is to `keep` at the submitter, or to `copy` to this worker's disk and its holder's.
    """

    unit: int
    keep: bool = False
    copy: bool = False


@dataclass(frozen=True)
class Retain:
    """Delete copies from the disk as this message says."""

    message: messages.Retain


@dataclass(frozen=True)
class GiveState:
    """Send the state of the owned tensors to the submitter; if `whole`, with optimizer and coders."""

    whole: bool = False


@dataclass(frozen=True)
class Drop:
    """Drop the job: its memory, tapes and data links; if it is `over`, also copies of its state on disk."""

    reason: str
    job: str = ""
    over: bool = False


@dataclass(frozen=True)
class HangUp:
    """End the session with the broker, and dial again."""

    reason: str


@dataclass(frozen=True)
class Note:
    """One line for the worker's owner."""

    text: str


Command = (
    Tell
    | Prepare
    | Regroup
    | Start
    | Apply
    | AdvanceReplay
    | CopyState
    | Retain
    | EndTraining
    | GiveState
    | Drop
    | HangUp
    | Note
)


def step(state: State, event: Event) -> tuple[State, list[Command]]:
    """Return the next state and the commands to carry out for one event.

    Without a broker nothing is said. What is said to it then is kept, and follows once it has admitted the
    worker again: until then it may not know the job.
    """
    after, commands = _step(state, event)
    if after.away:
        commands = [command for command in commands if not isinstance(command, Tell)]
    return after, commands


def _step(state: State, event: Event) -> tuple[State, list[Command]]:
    if isinstance(event, FromBroker):
        return _from_broker(state, event.message)
    if isinstance(event, BrokerLost):
        return _broker_lost(state, event.reason)
    if isinstance(event, Orphaned):
        return _orphaned(state, event.seconds)
    if isinstance(event, BrokerBack):
        return state, [Tell(state.ready)] if state.ready and state.phase == "running" else []
    if isinstance(event, PeerLinked):
        return _progress(replace(state, linked=state.linked | {event.peer}))
    if isinstance(event, PeerLost):
        return _peer_lost(state, event)
    if event.attempt != state.attempt:
        return state, []  # of an attempt that is over
    if isinstance(event, Verified):
        if event.problem is not None:
            return _refuse(state, event.problem)
        state = replace(state, verified=True, unprotected=event.unprotected, needs_bytes=event.needs_bytes)
        return _progress(state)
    if isinstance(event, Filled):
        return _progress(replace(state, filled=True))
    if isinstance(event, UnitReplayed):
        return replace(state, unit=event.unit + 1), [AdvanceReplay()]
    if isinstance(event, UnitFinished):
        return _unit_finished(state, event)
    return _break(replace(state, failure=event.reason), event.reason)


def _from_broker(state: State, message: Message) -> tuple[State, list[Command]]:
    if isinstance(message, Registered):
        return _registered(state, message)
    if isinstance(message, Denied):
        return state, [Note(f"the broker refused: {message.reason}")]
    if isinstance(message, Load):
        return _start_loading(state, message)
    if isinstance(message, Continue):
        return _regroup(state, message)
    if isinstance(message, messages.Retain):
        return state, [Retain(message)]
    if state.load is None or not isinstance(message, Begin | Decide | SendState | Stop):
        return state, []
    held = state.load
    if isinstance(message, Stop) and message.job == held.job and message.attempt >= held.attempt:
        # Also of a later attempt, in which this worker could not go on.
        drop = Drop(message.reason, message.job, message.over)
        return state.idle, [drop, Note(f"job {message.job}: {message.reason}; idle")]
    if (message.job, message.attempt) != (held.job, held.attempt):
        return state, []
    if isinstance(message, Begin) and state.phase == "loading":
        return replace(state, phase="running"), [Start(), Note(f"job {message.job}: running")]
    if isinstance(message, Decide) and state.ready is not None and message.unit == state.unit:
        apply = Apply(message.unit, message.scale, message.codecs)
        return replace(state, unit=state.unit + 1, ready=None), [apply, *_copied(state, message)]
    if isinstance(message, SendState) and (
        state.phase == "running" or (state.phase == "loading" and state.announced)
    ):
        return replace(state, phase="collecting"), [EndTraining(), GiveState(message.whole)]
    return state, []


def _copied(state: State, decide: Decide) -> list[Command]:
    """The copy that a decision asks for, or why there is none."""
    load = state.load
    assert load is not None
    keep, copy = decide.keep and load.training.copies > 0, decide.copy and not state.unprotected
    commands: list[Command] = [CopyState(decide.unit, keep, copy)] if keep or copy else []
    if decide.copy and not copy:
        share = min(load.plan.segments_of(state.worker))
        commands.append(Tell(Copied(load.job, load.attempt, decide.unit, share, trouble=state.unprotected)))
    return commands


def _start_loading(state: State, load: Load) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    if state.load is not None:
        commands.append(Drop(f"superseded by attempt {load.attempt} of job {load.job}"))
    fresh = replace(state.idle, phase="loading", load=load, unit=load.unit)
    if state.worker not in load.plan.workers():
        refused = Refused(load.job, load.attempt, f"the plan has no segment for {state.worker}")
        return state.idle, [*commands, Tell(refused)]
    dial = _dialled(fresh)
    count = len(load.plan.segments_of(state.worker))
    note = Note(f"job {load.job}: loading {count_of(count, 'segment')}")
    return fresh, [*commands, Prepare(load, dial), note]


def _regroup(state: State, message: Continue) -> tuple[State, list[Command]]:
    """Go on with the state at hand in another attempt; refuse if it is not that of the next unit."""
    load = state.load
    if load is not None and load.job == message.job and load.attempt >= message.attempt:
        return state, []
    if state.failure and load is not None:
        held = msgspec.structs.replace(load, attempt=message.attempt)  # so that its `Stop` is heard
        return replace(state, load=held), [Tell(Broken(message.job, message.attempt, state.failure))]
    if load is None or load.job != message.job or not state.verified or state.unit != message.unit:
        problem = f"it does not hold the state with which unit {message.unit} begins"
        refused = Tell(Refused(message.job, message.attempt, problem))
        return state.idle, [refused, *([Drop(problem)] if load else [])]
    load = msgspec.structs.replace(
        load,
        attempt=message.attempt,
        unit=message.unit,
        addresses=message.addresses,
        plan=message.plan or load.plan,
        holders=load.holders if message.holders is None else message.holders,
        version=message.version,
        donors=message.donors,
        history=[],
    )
    fresh = replace(
        state.idle,
        phase="loading",
        load=load,
        verified=True,
        unit=state.unit,
        warned=state.warned,
        unprotected=state.unprotected,
        needs_bytes=state.needs_bytes,
    )
    dial = _dialled(fresh)
    note = Note(f"job {load.job}: linking up again, the state stays ({message.reason})")
    return fresh, [Regroup(load, dial, message.replayer or "", message.replay_from), note]


def _dialled(state: State) -> tuple[str, ...]:
    """The peers that this worker dials: of each pair the one with the smaller id does."""
    return tuple(sorted(peer for peer in state.neighbours | state.partners if peer > state.worker))


def _progress(state: State) -> tuple[State, list[Command]]:
    """Report to the broker once loading is done."""
    ready = state.verified and state.filled and state.needed <= state.linked
    if state.phase != "loading" or state.load is None or state.announced or not ready:
        return state, []
    loaded = Loaded(state.load.job, state.load.attempt, state.unprotected, state.needs_bytes)
    return replace(state, announced=True), [Tell(loaded)]


def _peer_lost(state: State, event: PeerLost) -> tuple[State, list[Command]]:
    was_needed = event.peer in state.needed
    state = replace(state, linked=state.linked - {event.peer})
    if not was_needed or state.load is None or state.phase not in ("loading", "running", "collecting"):
        return state, []
    is_submitter = event.peer == state.load.submitter
    if is_submitter and state.phase != "loading":
        reason = f"job {state.load.job}: lost the link to the submitter ({event.reason}); waiting for it"
        return state, [Note(reason)]
    if state.phase == "collecting":
        return state, []
    who = "the submitter" if is_submitter else f"worker {event.peer}"
    return _break(state, f"lost the link to {who}: {event.reason}", event.peer)


def _unit_finished(state: State, event: UnitFinished) -> tuple[State, list[Command]]:
    if state.phase != "running" or event.unit != state.unit or state.load is None:
        return state, []
    load, traffic = state.load, event.traffic
    links = [
        LinkBytes(
            sent.target,
            sent.tensor_bytes,
            traffic.wire_bytes.get(sent.target, 0),
            sent.not_finite,
            sent.payload_bytes,
            sent.coding_seconds,
            list(sent.samples),
        )
        for sent in event.sent
    ]
    ready = UnitReady(
        load.job,
        load.attempt,
        event.unit,
        list(event.shares),
        traffic.bytes_sent,
        links,
        list(traffic.rates),
        event.computing_seconds,
        traffic.logged_from,
    )
    unfit = [sent.target for sent in event.sent if sent.not_finite]
    if not unfit or state.warned:
        return replace(state, ready=ready), [Tell(ready)]
    note = Note(
        f"job {load.job}: values for {unfit[0]} are not finite; codecs cannot encode them, so they are sent"
        " uncompressed"
    )
    return replace(state, ready=ready, warned=True), [Tell(ready), note]


def _refuse(state: State, problem: str) -> tuple[State, list[Command]]:
    assert state.load is not None
    refused = Refused(state.load.job, state.load.attempt, problem)
    note = Note(f"job {state.load.job} refused: {problem}")
    return state.idle, [Tell(refused), Drop(problem), note]


def _break(state: State, reason: str, peer: str | None = None) -> tuple[State, list[Command]]:
    """End the attempt here because it cannot go on; memory is freed when the broker says so."""
    assert state.load is not None
    if state.phase not in ("loading", "running", "collecting"):
        return state, []
    broken = Broken(state.load.job, state.load.attempt, reason, peer)
    note = Note(f"job {state.load.job}: {reason}; waiting for the broker's decision")
    return replace(state, phase="broken", broken=broken), [Tell(broken), note]


def _registered(state: State, message: Registered) -> tuple[State, list[Command]]:
    if message.generation < state.generation:
        why = (
            f"this broker is of generation {message.generation}, but one of generation {state.generation} "
            "has taken over the fleet: stop this one"
        )
        return state, [HangUp(why)]
    state = replace(state, away=False, generation=message.generation, seal=message.seal)
    if state.load is None:
        return state, [Note(f"registered as {message.worker}; idle in the backup pool")]
    commands: list[Command] = [Note(f"registered as {message.worker}; job {state.load.job} goes on")]
    if state.phase == "loading" and state.announced:
        commands.append(Tell(Loaded(state.load.job, state.load.attempt)))
    elif state.phase == "running" and state.ready:
        commands.append(Tell(state.ready))
    elif state.broken:
        commands.append(Tell(state.broken))
    return state, commands


def _broker_lost(state: State, reason: str) -> tuple[State, list[Command]]:
    state = replace(state, away=True)
    if state.load is None:
        return state, []
    note = Note(f"job {state.load.job} is kept, and waits for the broker: {reason}")
    return state, [note]


def _orphaned(state: State, seconds: float) -> tuple[State, list[Command]]:
    if state.load is None or not state.away:
        return state, []
    why = f"the broker has been away for {seconds:g} s"
    return state.idle, [Drop(why), Note(f"job {state.load.job} is dropped: {why}")]
