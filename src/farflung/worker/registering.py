"""What a worker decides when it has registered, has lost its broker, or is to leave."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.membership import Leaving
from farflung.protocol.messages import Loaded, Registered
from farflung.text import duration_words
from farflung.worker.events import Command, Drop, Exit, HangUp, Note, Tell
from farflung.worker.records import State


def registered(state: State, message: Registered) -> tuple[State, list[Command]]:
    """Say again what a broker that admits the worker may not have heard."""
    if message.generation < state.generation:
        why = (
            f"this broker is of generation {message.generation}, but one of generation {state.generation} "
            "has taken over the fleet: stop this one"
        )
        return state, [HangUp(why)]
    state = replace(state, away=False, generation=message.generation, seal=message.seal)
    if state.load is None:
        return state, [Note(f"registered as {message.worker}; idle in the backup pool")]
    if state.phase == "standby" or state.load.checks:
        drop = Drop("the broker counts this worker as a new one")
        return state.idle, [drop, Note(f"registered as {message.worker}; idle in the backup pool")]
    commands: list[Command] = [Note(f"registered as {message.worker}; job {state.load.job} goes on")]
    if state.phase == "loading" and state.announced:
        commands.append(Tell(Loaded(state.load.job, state.load.attempt)))
    elif state.phase == "running" and state.ready:
        commands.append(Tell(state.ready))
    elif state.broken:
        commands.append(Tell(state.broken))
    return state, commands


def broker_lost(state: State, reason: str) -> tuple[State, list[Command]]:
    """Keep the job without a broker; a worker without one that was to leave ends."""
    state = replace(state, away=True)
    if state.load is None or state.phase == "standby":
        return state, _exit_if_leaving(state)
    note = Note(f"job {state.load.job} is kept, and waits for the broker: {reason}")
    return state, [note]


def leave(state: State, within_seconds: int) -> tuple[State, list[Command]]:
    """Ask the broker to hand the worker's share over; without share and broker, end at once."""
    if state.leaving:
        return state, []
    after, again = replace(state, leaving=True), "a second signal ends it at once"
    if state.load is None:
        if state.away:
            return after, _exit_if_leaving(after)
        return after, [Tell(Leaving(within_seconds)), Note(f"leaving; {again}")]
    within = duration_words(within_seconds)
    what = f"its share of {state.load.job} goes to another worker, within {within}"
    lack = ", once the broker is back" if state.away else ""
    return after, [Tell(Leaving(within_seconds)), Note(f"leaving: {what}{lack}; {again}")]


def orphaned(state: State, seconds: float) -> tuple[State, list[Command]]:
    """Drop the job, because no broker has come back for `seconds`."""
    if state.load is None or not state.away:
        return state, []
    why = f"the broker has been away for {seconds:g} s"
    dropped: list[Command] = [Drop(why), Note(f"job {state.load.job} is dropped: {why}")]
    return state.idle, dropped + _exit_if_leaving(state)


def _exit_if_leaving(state: State) -> list[Command]:
    """Without share and broker a worker that leaves has no release to wait for."""
    return [Exit("it held no share of a job")] if state.leaving else []
