"""Open circuits: draw their tokens and send them to the relay, which may be the broker, and to both ends."""

from __future__ import annotations

import secrets

from farflung.broker.core.events import Command, OpenCircuit, Send
from farflung.broker.network.reachability import to_member
from farflung.protocol.reachability import Circuit, HoldCircuit, NotReached
from farflung.transport.relay.circuits import TOKEN_BYTES
from farflung.transport.relay.relay import Relay
from farflung.transport.security.names import BROKER_ID

NO_RELAY = "no relay is on offer: the broker was started with --relay 0, and no worker joined with --relay"


class Circuits:
    """Opens circuits. `relay` is the broker's own relay; None if the broker does not relay."""

    def __init__(self, relay: Relay | None) -> None:
        self._relay = relay

    def open(self, command: OpenCircuit) -> list[Command]:
        """The messages that open a granted circuit; the relay's comes first."""
        one, other = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
        if command.relay == BROKER_ID and self._relay is None:
            refusal = NotReached(command.number, command.job, command.attempt, command.target, NO_RELAY)
            return [self._to(command, command.dialler, refusal)]
        return [
            *self._hold(command, (one, other)),
            self._to(command, command.target, self._end(command, command.target, other)),
            self._to(command, command.dialler, self._end(command, command.dialler, one)),
        ]

    def _hold(self, command: OpenCircuit, tokens: tuple[bytes, bytes]) -> list[Command]:
        label = f"{command.job}: {command.dialler} - {command.target}"
        if command.relay == BROKER_ID:
            assert self._relay is not None
            self._relay.grant(label, tokens, command.byte_quota)
            return []
        return [Send(command.relay, HoldCircuit(label, tokens, command.byte_quota))]

    def _end(self, command: OpenCircuit, member: str, token: bytes) -> Circuit:
        dials = member == command.dialler
        peer = command.target if dials else command.dialler
        return Circuit(
            command.number,
            command.job,
            command.attempt,
            peer,
            command.relay,
            list(command.addresses.get(member, ())),
            token,
            dials,
        )

    def _to(self, command: OpenCircuit, member: str, message: Circuit | NotReached) -> Command:
        return to_member(command.job, command.submitter, member, message)
