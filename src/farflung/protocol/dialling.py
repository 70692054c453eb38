"""How every holder of an identity dials the broker that it joined."""

from __future__ import annotations

import ssl

from farflung.errors import AnotherAuthority
from farflung.transport.endpoint import Handler, Hello, Link, Peer, dial
from farflung.transport.identity import Identity
from farflung.transport.names import BROKER_ID
from farflung.transport.timeouts import Timeouts


async def dial_broker(
    identity: Identity, handler: Handler, timeouts: Timeouts, context: ssl.SSLContext | None = None
) -> Link:
    """A control link to the broker that `identity` names; `context` is one of its own that is in use.

    Raises
    ------
    AnotherAuthority
        There is a broker, but not the one that this identity is of.
    ConnectionFailed
        The broker cannot be reached, or refuses.
    """
    hello = Hello(identity.id, identity.role, "control")
    broker = Peer(BROKER_ID, "broker")
    own = context or identity.client_context()
    try:
        return await dial(identity.broker, own, hello, broker, handler, timeouts)
    except AnotherAuthority:
        raise AnotherAuthority(_words(identity)) from None


def _words(identity: Identity) -> str:
    joined = identity.joined_at()
    made = "one that was there before" if joined == identity.broker else f"the one at {joined}"
    return (
        f"the broker at {identity.broker} does not know the identity in {identity.folder}: {identity.role}"
        f" {identity.id} is of another broker, {made}; make a token on the machine of this one (farflung"
        f" token create --role {identity.role}) and add --token, with a --folder of its own to keep both"
    )
