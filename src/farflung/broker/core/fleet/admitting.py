"""Which workers join the fleet, and which go on with a job that they had a part in."""

from __future__ import annotations

from farflung.broker.core import events, facts
from farflung.broker.core.events import Admit, Reject, Reply, Send
from farflung.broker.core.fleet import draining
from farflung.broker.core.protecting import protection
from farflung.broker.core.records import Worker
from farflung.broker.core.recovering import awaiting, returns
from farflung.broker.core.transition import Transition
from farflung.broker.core.trusting import checking, removing
from farflung.protocol.membership import Released
from farflung.protocol.messages import Registered


def register(event: events.WorkerRegisters, turn: Transition) -> None:
    """Admit the worker, or refuse it because its id is in use or its opset conflicts with the broker's.

    The same process (same boot) may still hold its part of a job from an earlier session: it goes on with it.

    Two live processes with one identity would replace each other for ever. So while the older session
    receives heartbeats, a new process (another boot) is refused, but only for now: its machine may have been
    rebooted between two heartbeats. If the older session missed heartbeats, its machine was probably switched
    off or moved, and the new session replaces it at once, without waiting for the lease. So does a new
    session of the same process (same boot).
    """
    said = event.register
    if trouble := said.device.opset.conflict():
        turn.do(Reject(f"worker {event.worker} cannot take part: {trouble}"))
        return
    known, standing = turn.state.workers.get(event.worker), said.standing
    if known is not None and known.released and known.boot == said.boot:
        turn.do(Reply(Released(known.trouble)))  # the broker was lost before it could say so
        return
    if known is not None and _is_in_use(known, event):
        silent = f"{event.silent_seconds:.1f} s ago"
        turn.do(
            Reject(
                f"a worker with the id {event.worker} is connected already (heard {silent}): "
                "stop that process, or join here with another --folder and --name",
                for_now=True,
            )
        )
        return
    returns_to_job = known is not None and _settle_earlier_session(event, turn, known)
    turn.emit(_admission(event, turn.now, returns_to_job))
    checking.lost(turn, event.worker)
    turn.do(Admit(event.worker, "this worker connected again over a newer link"))
    returns.stop_foreign(turn, event.worker, standing)
    removed = removing.told_on_registration(turn.state, turn.now)
    turn.do(Send(event.worker, Registered(event.worker, event.generation, event.seal, removed)))
    protection.on_registered(turn, event.worker, said.held)
    if returns_to_job:
        returns.take_up(turn, event.worker, standing)
    if said.leaving_seconds is not None:
        draining.begin(turn, event.worker, said.leaving_seconds, draining.OWN_WISH)


def _is_in_use(known: Worker, event: events.WorkerRegisters) -> bool:
    """Whether another live process has the worker's id."""
    if not known.connected or event.silent_seconds is None:
        return False
    return known.boot != event.register.boot and event.silent_seconds < event.suspect_seconds


def _settle_earlier_session(event: events.WorkerRegisters, turn: Transition, known: Worker) -> bool:
    """Decide what the worker's earlier session leaves open; returns whether it goes on with its job."""
    register = event.register
    goes_on = known.job is not None and known.boot == register.boot
    if not known.connected and known.job is None:
        return False
    if awaiting.returns_to(turn.state, event.worker, register.device):
        return True
    if awaiting.awaits(turn.state, event.worker):
        awaiting.end(turn, turn.state.jobs[known.job or ""], "it came back with another device")
        return False
    why = "it connected again" if known.connected else "it was restarted"
    if goes_on:
        why = returns.trouble(turn.state, known, register.standing)
    if why:
        returns.lose(turn, event.worker, why)
        return awaiting.returns_to(turn.state, event.worker, register.device)
    return goes_on


def _admission(event: events.WorkerRegisters, now: float, returns_to_job: bool) -> facts.WorkerAdmitted:
    register, where = event.register, event.where
    return facts.WorkerAdmitted(
        now,
        event.worker,
        register.device,
        register.site,
        list(where.addresses),
        register.boot,
        register.relay_mbps,
        register.line,
        list(where.claims),
        where.seen,
        register.disk_bytes,
        returns_to_job,
        list(register.home_of),
    )
