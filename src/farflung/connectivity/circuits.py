"""Taking one's end of a circuit, wherever its relay can be reached."""

from __future__ import annotations

import socket
from functools import partial

from farflung.errors import ConnectionFailed
from farflung.protocol.reachability import Circuit
from farflung.transport.circuits import join
from farflung.transport.racing import AllFailed, race
from farflung.transport.timeouts import Timeouts


async def join_circuit(circuit: Circuit, broker: str, timeouts: Timeouts) -> socket.socket:
    """A socket at whose other end the peer is; `broker` (HOST:PORT) is where a circuit without address leads.

    Raises
    ------
    ConnectionFailed
        The relay cannot be reached at any of its addresses, or the peer did not come.
    """
    addresses = circuit.addresses or [broker]
    try:
        return await race([partial(join, where, circuit.token, timeouts) for where in addresses], _discard)
    except AllFailed as failed:
        raise ConnectionFailed(str(failed)) from None


async def _discard(connection: socket.socket) -> None:
    connection.close()
