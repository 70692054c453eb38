"""A worker's state machine: events in, commands out; no clock, socket, thread or file.

A worker holds one job at a time. Loading is done when the programs are verified, the whole state is here, and
there is a link to every neighbour and to the submitter (which sends the state). A later failure ends the
attempt here with one message to the broker; the broker's `Stop` returns the worker to the pool.

A worker that loses its broker keeps the job, finishes what it can, and says again what a broker that was
restarted cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from farflung.plans import Plan
from farflung.protocol import messages
from farflung.protocol.membership import Released
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
    ServeCheck,
    StandBy,
    Standbys,
    Stop,
    UnitReady,
)
from farflung.protocol.traffic import LinkBytes
from farflung.text import count_of
from farflung.worker import checking, registering
from farflung.worker.events import (
    AdvanceReplay,
    Apply,
    Assist,
    BrokerBack,
    BrokerLost,
    ChangeStandbys,
    CheckEnded,
    Command,
    CopyState,
    Drop,
    EndTraining,
    Event,
    Exit,
    Filled,
    FromBroker,
    GiveState,
    GiveTo,
    Leave,
    LeftBehind,
    Note,
    Orphaned,
    PeerLinked,
    PeerLost,
    Prepare,
    Regroup,
    Retain,
    Start,
    Tell,
    UnitFinished,
    UnitReplayed,
    Verified,
)
from farflung.worker.records import State


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
        return registering.broker_lost(state, event.reason)
    if isinstance(event, Orphaned):
        return registering.orphaned(state, event.seconds)
    if isinstance(event, Leave):
        return registering.leave(state, event.within_seconds)
    if isinstance(event, LeftBehind):
        return state, [Exit("the broker did not release it in time: it leaves with what it has", False)]
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
            return _refuse(state, event.problem, event.lacks, event.begun)
        state = replace(state, verified=True, unprotected=event.unprotected, needs_bytes=event.needs_bytes)
        return _progress(state)
    if isinstance(event, Filled):
        return _progress(replace(state, filled=True))
    if isinstance(event, UnitReplayed):
        return replace(state, unit=event.unit + 1), [AdvanceReplay()]
    if isinstance(event, UnitFinished):
        return _unit_finished(state, event)
    if isinstance(event, CheckEnded):
        return checking.end(state, event.found)
    return _break(replace(state, failure=event.reason, failed_on=event.sender), event.reason)


def _from_broker(state: State, message: Message) -> tuple[State, list[Command]]:
    if isinstance(message, Registered):
        return registering.registered(state, message)
    if isinstance(message, Denied):
        return state, [Note(f"the broker refused what this worker asked for: {message.reason}")]
    if isinstance(message, Load):
        return _start_loading(state, message)
    if isinstance(message, Continue):
        return _regroup(state, message)
    if isinstance(message, messages.Retain):
        return state, [Retain(message)]
    if isinstance(message, Released):
        return state, [Exit(message.reason, message.in_order)]
    if isinstance(message, StandBy):
        return _stand_by(state, message)
    if isinstance(message, ServeCheck):
        return checking.serve(state, message)
    if isinstance(message, Standbys):
        return _change_standbys(state, message)
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
        apply = Apply(message.unit, _scale_of(state, message), message.codecs)
        return replace(state, unit=state.unit + 1, ready=None), [apply, *_copied(state, message)]
    if isinstance(message, SendState) and (
        state.phase == "running" or (state.phase == "loading" and state.announced)
    ):
        return replace(state, phase="collecting"), [EndTraining(), GiveState(message.whole)]
    return state, []


def _scale_of(state: State, decide: Decide) -> float:
    """The scale of this worker's gradients: that of its pipeline, if each has its own."""
    assert state.load is not None
    at = state.load.plan.pipeline_of(min(state.load.plan.segments_of(state.worker)))
    return decide.scales[at] if at < len(decide.scales) else decide.scale


def _copied(state: State, decide: Decide) -> list[Command]:
    """The copy that a decision asks for, or why there is none."""
    load = state.load
    assert load is not None
    keep, copy = (wish and not state.unprotected for wish in (decide.keep, decide.copy))
    commands: list[Command] = [CopyState(decide.unit, keep, copy)] if keep or copy else []
    if decide.copy and not copy:
        share = min(load.plan.segments_of(state.worker))
        commands.append(Tell(Copied(load.job, load.attempt, decide.unit, share, trouble=state.unprotected)))
    return commands


def _start_loading(state: State, load: Load) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    if state.phase == "standby":
        commands.append(Drop(f"it takes part in attempt {load.attempt} of job {load.job}"))
    elif state.load is not None:
        commands.append(Drop(f"superseded by attempt {load.attempt} of job {load.job}"))
    fresh = replace(state.idle, phase="loading", load=load, unit=load.unit)
    if state.worker not in load.plan.workers():
        refused = Refused(load.job, load.attempt, f"the plan has no segment for {state.worker}")
        return state.idle, [*commands, Tell(refused)]
    if load.checks:
        return fresh, [*commands, *checking.begin(fresh, load)]
    dial = _dialled(fresh)
    count = len(load.plan.segments_of(state.worker))
    note = Note(f"job {load.job}: loading {count_of(count, 'segment')}")
    return fresh, [*commands, Prepare(load, dial), note]


def _stand_by(state: State, message: StandBy) -> tuple[State, list[Command]]:
    """Hold copies for a job, unless this worker takes part in one."""
    standbys = _own_pairs(state.worker, message.plan, message.standbys)
    if state.phase not in ("idle", "standby") or not standbys:
        return state, []
    load = Load(
        message.job,
        message.attempt,
        message.plan,
        message.training,
        programs=[],
        addresses=message.addresses,
        submitter=message.submitter,
    )
    commands: list[Command] = []
    if state.phase == "standby":
        commands.append(Drop(f"attempt {load.attempt} of job {load.job} began"))
    fresh = replace(state.idle, phase="standby", load=load, standbys=standbys)
    owners = ", ".join(sorted(fresh.partners))
    note = Note(f"job {load.job}: standing by for {owners}")
    return fresh, [*commands, Assist(load, standbys, _dialled(fresh)), note]


def _change_standbys(state: State, message: Standbys) -> tuple[State, list[Command]]:
    if state.load is None or state.attempt != (message.job, message.attempt) or state.phase == "broken":
        return state, []
    standbys = _own_pairs(state.worker, state.load.plan, message.standbys)
    if message.standbys and not standbys:
        return state, []
    changed = replace(state, standbys=standbys)
    new = changed.partners - state.partners - state.linked
    dial = tuple(sorted(peer for peer in new if peer > state.worker))
    return changed, [ChangeStandbys(standbys, message.addresses, dial)]


def _own_pairs(worker: str, plan: Plan, standbys: Mapping[str, str]) -> dict[str, str]:
    """The pairs of an owner and its standby that concern a worker, and whose owner has a part in the plan."""
    owners = plan.workers()
    return {owner: by for owner, by in standbys.items() if worker in (owner, by) and owner in owners}


def _regroup(state: State, message: Continue) -> tuple[State, list[Command]]:
    """Go on with the state at hand in another attempt; refuse if it is not that of the next unit."""
    load = state.load
    if load is not None and load.job == message.job and load.attempt >= message.attempt:
        return state, []
    if state.failure and load is not None:
        held = msgspec.structs.replace(load, attempt=message.attempt)  # so that its `Stop` is heard
        return replace(state, load=held), [
            Tell(Broken(message.job, message.attempt, state.failure, sender=state.failed_on))
        ]
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
        state_donors=message.state_donors,
        history=[],
        sources={},
        replayers=message.replayers,
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
    serves = not fresh.neighbours.isdisjoint(message.replayers)
    return fresh, [Regroup(load, dial, serves, message.replay_from), note]


def _dialled(state: State) -> tuple[str, ...]:
    """The peers that this worker dials: of each pair the one with the smaller id does."""
    return tuple(sorted(peer for peer in state.neighbours | state.partners if peer > state.worker))


def _progress(state: State) -> tuple[State, list[Command]]:
    """Give this worker's state to those that lack it, and report to the broker once loading is done."""
    state, commands = _give(state)
    ready = state.verified and state.filled and state.needed <= state.linked
    if state.phase != "loading" or state.load is None or state.announced or not ready:
        return state, commands
    loaded = Loaded(state.load.job, state.load.attempt, state.unprotected, state.needs_bytes)
    return replace(state, announced=True), [*commands, Tell(loaded)]


def _give(state: State) -> tuple[State, list[Command]]:
    """Give the state to each member of another pipeline that gets it from here, once there is a link."""
    if state.load is None or state.phase != "loading" or not (state.verified and state.filled):
        return state, []
    takers = {taker for donor, taker in state.load.state_gifts if donor == state.worker}
    due = sorted((takers & state.linked) - state.given - {state.worker})
    return replace(state, given=state.given | {*due}), [GiveTo(taker) for taker in due]


def _peer_lost(state: State, event: PeerLost) -> tuple[State, list[Command]]:
    was_needed, was_linked = event.peer in state.needed, event.peer in state.linked
    state = replace(state, linked=state.linked - {event.peer})
    if not was_needed or state.load is None or state.phase not in ("loading", "running", "collecting"):
        return state, []
    if state.load.checks and was_linked:
        return state, []  # a link from before, as a standby: another one may come
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
        traffic.copied,
    )
    unfit = [sent.target for sent in event.sent if sent.not_finite]
    if not unfit or state.warned:
        return replace(state, ready=ready), [Tell(ready)]
    note = Note(
        f"job {load.job}: values for {unfit[0]} are not finite; codecs cannot encode them, so they are sent"
        " uncompressed"
    )
    return replace(state, ready=ready, warned=True), [Tell(ready), note]


def _refuse(
    state: State, problem: str, lacks: bool = False, begun: bytes = b""
) -> tuple[State, list[Command]]:
    assert state.load is not None
    if state.load.checks:
        return checking.give_up(state, problem, begun if lacks else b"")
    refused = Refused(state.load.job, state.load.attempt, problem, lacks)
    note = Note(f"job {state.load.job} refused: {problem}")
    return state.idle, [Tell(refused), Drop(problem), note]


def _break(state: State, reason: str, peer: str | None = None) -> tuple[State, list[Command]]:
    """End the attempt here because it cannot go on; memory is freed when the broker says so."""
    assert state.load is not None
    if state.phase not in ("loading", "running", "collecting"):
        return state, []
    if state.load.checks:
        return checking.give_up(state, reason)
    broken = Broken(state.load.job, state.load.attempt, reason, peer, None if peer else state.failed_on)
    note = Note(f"job {state.load.job}: {reason}; waiting for the broker's decision")
    return replace(state, phase="broken", broken=broken), [Tell(broken), note]
