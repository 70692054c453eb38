"""How facts about members that are not trusted change the state."""

from __future__ import annotations

from dataclasses import replace

from farflung.broker.core import facts
from farflung.broker.core.records import State
from farflung.broker.core.trusting.records import Removal


def member_removed(fact: facts.MemberRemoved, state: State) -> State:
    removal = Removal(fact.member, fact.role, fact.at, fact.operator, fact.reason)
    state = replace(state, removed={**state.removed, fact.member: removal})
    worker = state.workers.get(fact.member)
    # Nobody reads from its disk any more.
    return state if worker is None else state.with_worker(replace(worker, held=()))


def member_allowed(fact: facts.MemberAllowed, state: State) -> State:
    removed = {member: one for member, one in state.removed.items() if member != fact.member}
    return replace(state, removed=removed)
