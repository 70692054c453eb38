"""How a worker runs: what its owner offers and allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from farflung.protocol.registration import HomeLine
from farflung.runtime.backend import AnyBackend
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts
from farflung.weights.allowed import Allowed


@dataclass(frozen=True)
class WorkerOptions:
    """What its owner wants of a worker.

    `listen` is HOST:PORT for data links; `advertise` are the addresses given to peers (empty: all of this
    machine, and the one that the broker sees). `memory_bytes` is the limit for jobs, `backend` computes them.
    `relay_mbps` is the rate to relay for peers that cannot reach each other, in Mbit/s; `line` is the access
    line as its owner describes it. Copies of jobs' state and base weights may take `disk_bytes` in the
    identity's folder (0: none are kept; None: a fifth of what is free there). Copies leave for other workers
    at `standby_mbps` at most, in Mbit/s (0: any rate). A device with memory of its own may also use
    `host_memory_bytes` of the machine's, for what is copied and logged; None: `memory_bytes` are the
    machine's. Base weights are fetched from the URLs that are allowed as `base`. It is the home worker of the
    submitters `home_of`.
    """

    identity: Identity
    listen: str
    memory_bytes: int
    backend: AnyBackend
    site: str = ""
    advertise: list[str] = field(default_factory=list)
    relay_mbps: float = 0.0
    line: HomeLine = field(default_factory=HomeLine)
    disk_bytes: int | None = 0
    standby_mbps: float = 0.0
    host_memory_bytes: int | None = None
    base: Allowed = field(default_factory=Allowed)
    home_of: tuple[str, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
