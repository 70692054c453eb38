"""What a worker decides about checks: one that it makes of another's share, and those that it serves."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.messages import CheckBegun, Checked, Load, ServeCheck
from farflung.worker.events import AssistCheck, Command, Drop, EndCheck, Note, Prepare, Tell
from farflung.worker.records import State


def begin(state: State, load: Load) -> list[Command]:
    """Load another member's share to check it: its neighbours dial once they have heard of it."""
    begun = CheckBegun(load.job, load.attempt, load.check, min(load.plan.segments_of(state.worker)))
    return [Prepare(load, ()), Tell(begun)]


def end(state: State, found: Checked) -> tuple[State, list[Command]]:
    """Say what a check has found, and drop all."""
    what = "ran a share of another worker again to check it"
    if found.trouble:
        what = f"a share of another worker could not be checked here: {found.trouble}"
    note = Note(f"job {found.job}: {what}; idle")
    return state.idle, [Tell(found), Drop("the check is over"), note]


def give_up(state: State, why: str, unfit: bytes = b"") -> tuple[State, list[Command]]:
    """Say why the share cannot be checked here; no attempt fails by that.

    `unfit` is the SHA-256 of the copy with which the check was to begin, if that is to blame.
    """
    load = state.load
    assert load is not None
    share = min(load.plan.segments_of(state.worker))
    found = Checked(
        load.job, load.attempt, load.check, share, begun=unfit, trouble=why, unfit=bool(unfit)
    )  # fmt: skip
    return end(state, found)


def serve(state: State, message: ServeCheck) -> tuple[State, list[Command]]:
    """Let an idle worker check a neighbour's share, or no longer."""
    if state.attempt != (message.job, message.attempt) or state.phase in ("broken", "standby"):
        return state, []
    before: list[Command] = [] if state.checker is None else [EndCheck(state.checker)]
    # Links with both are closed from here, which no event reports: one that stands by next is dialled anew.
    left = replace(state, check=message, linked=state.linked - {state.checker, message.checker})
    if message.checker is None:
        return replace(left, check=None), before
    return left, [*before, AssistCheck(message)]
