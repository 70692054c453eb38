"""Connect to the relay of a circuit."""

from __future__ import annotations

import socket
from functools import partial

from farflung.errors import ConnectionFailed
from farflung.protocol.reachability import Circuit
from farflung.transport.net.happy_eyeballs import AllFailed, race
from farflung.transport.relay.circuits import join
from farflung.transport.timeouts import Timeouts


async def join_circuit(circuit: Circuit, broker: str, timeouts: Timeouts) -> socket.socket:
    """A socket connected to the peer through the relay.

    `broker` (HOST:PORT) is used if the circuit has no addresses.

    Raises
    ------
    ConnectionFailed
        The relay cannot be reached at any of its addresses, or the peer did not connect to it.
    """
    addresses = circuit.addresses or [broker]
    try:
        return await race([partial(join, where, circuit.token, timeouts) for where in addresses], _discard)
    except AllFailed as failed:
        raise ConnectionFailed(str(failed)) from None


async def _discard(connection: socket.socket) -> None:
    connection.close()
