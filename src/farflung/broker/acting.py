"""What somebody may do who has no connection of its own, but shows a token: a browser on the fleet's page.

An operator's token may do what operators do, as long as it could let one join: who finds a spent one can do
nothing with it. A submitter's may end the jobs of those who joined with it. A token that was revoked or has
expired may do nothing, nor may one with which a removed member joined.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from farflung.broker.arrivals import Arrival
from farflung.broker.dispatcher import Dispatcher
from farflung.broker.operators import Operators
from farflung.broker.security.tokens import lets_in, token_id
from farflung.broker.sessions import Caller
from farflung.broker.storage.contract import BrokerStore
from farflung.errors import FarflungError, IdentityError
from farflung.protocol.membership import Drain, Draining
from farflung.protocol.messages import (
    AllowMember,
    CancelJob,
    Denied,
    JobCancelled,
    MemberChanged,
    RemoveMember,
)
from farflung.text import kind_of
from farflung.transport.security.peer import Peer
from farflung.transport.security.tokens import Token

Action = CancelJob | Drain | RemoveMember | AllowMember
ANSWER_SECONDS = 20.0
_log = logging.getLogger("farflung.broker")


class ActionRefused(FarflungError):
    """An action that may not be, or that failed; says why."""


class Acting:
    """Carries out actions of those who show a token, one answer each."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        operators: Operators,
        store: BrokerStore,
        clock: Callable[[], float],
        connected: Callable[[], Collection[str]],
    ) -> None:
        self._dispatcher = dispatcher
        self._operators = operators
        self._store = store
        self._clock = clock
        self._connected = connected

    async def act(self, shown: str, action: Action) -> str:
        """Carry an action out; returns what came of it, in words.

        Raises
        ------
        ActionRefused
            The token may not do this, or it cannot be done.
        IdentityError
            What is shown is no token.
        """
        try:
            token = Token.parse(shown)
        except IdentityError as error:
            _log.warning("what was shown on the page is no token (%s): %s", type(action).__name__, error)
            raise
        who, what = f"token {token_id(token.digest)}", type(action).__name__
        try:
            caller = Caller(await self._peer_of(token, action))
        except ActionRefused as error:
            _log.warning("%s may not do this on the page (%s): %s", who, what, error)
            raise
        _log.info("%s asks on the page, as %s: %s %s", who, caller.peer, what, _target(action))
        if isinstance(action, Drain):
            self._dispatcher.put(Arrival(caller, action))
        else:
            await self._operators.handle(caller, action, self._connected())
        try:
            answer = await asyncio.wait_for(caller.answer, ANSWER_SECONDS)
        except TimeoutError:
            raise ActionRefused("the broker has not carried this out yet: look at its log") from None
        if isinstance(answer, Denied):
            raise ActionRefused(answer.reason)
        return _words(answer)

    async def _peer_of(self, token: Token, action: Action) -> Peer:
        """In whose name an action is carried out."""
        record = await asyncio.to_thread(self._store.token, token.digest)
        if record is None or record.role != token.role or self._clock() >= record.expires_at:
            raise ActionRefused(
                "this token is not known here, or has expired: `farflung token create --role operator` makes"
                " one"
            )
        joined = await asyncio.to_thread(self._store.joined_with, token.digest)
        state = self._dispatcher.state
        if removed := [one for one in joined if one in state.removed]:
            raise ActionRefused(f"{removed[0]}, who joined with this token, was removed")
        if token.role == "operator":
            if not lets_in(record, self._clock()):
                raise ActionRefused(
                    "this token is used up: `farflung token create --role operator` makes one"
                )
            return Peer(f"token-{token_id(token.digest)}", "operator")
        job = state.jobs.get(action.job) if isinstance(action, CancelJob) else None
        if token.role == "submitter" and job is not None and job.submitter in joined:
            return Peer(job.submitter, "submitter")
        if token.role == "submitter":
            raise ActionRefused("a submitter's token may end only jobs of those who joined with it")
        raise ActionRefused(f"a {token.role}'s token may do nothing here: an operator's may")


def _target(action: Action) -> str:
    match action:
        case CancelJob(job):
            return job
        case Drain(worker):
            return worker
        case RemoveMember(member) | AllowMember(member):
            return member


def _words(answer: Any) -> str:
    match answer:
        case MemberChanged(member, _, words):
            return f"{member}: {words}"
        case JobCancelled(job, words):
            return f"{job} ends: {words}" if words else f"{job} is over"
        case Draining(worker, words):
            return f"{worker} leaves: {words}" if words else f"{worker} may go"
    raise ActionRefused(f"the broker answered with {kind_of(answer)}")
