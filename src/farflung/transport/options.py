"""Options of a link. The defaults are for users, other values for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.transport.net.sockets import PathState
from farflung.transport.striping.controller import MAXIMUM_CONNECTIONS, StripeController, fills_alone


@dataclass(frozen=True)
class LinkOptions:
    """Passed to `endpoint.dial` and `endpoint.listen`; each side's options apply to what it sends.

    Attributes
    ----------
    congestion_control : The kernel's name for it. A kernel without it uses its default, which
        `Link.congestion_control` shows.
    connections : Number of TCP connections that carry a link's data, 1 to 16. None: one under BBR, otherwise
        as many as measurements show to be useful. The dialling side opens them.
    """

    congestion_control: str = "bbr"
    connections: int | None = None

    def __post_init__(self) -> None:
        if self.connections is not None and not 1 <= self.connections <= MAXIMUM_CONNECTIONS:
            raise ValueError(f"a link uses 1 to {MAXIMUM_CONNECTIONS} connections, found {self.connections}")

    def controller(
        self, congestion_control: str, path: Callable[[], PathState | None] = lambda: None
    ) -> StripeController:
        """A controller of the number of connections, for the congestion control in use."""
        if self.connections is not None:
            return StripeController(self.connections, self.connections)
        return StripeController(1, 1 if fills_alone(congestion_control) else MAXIMUM_CONNECTIONS, path)


DEFAULT_OPTIONS = LinkOptions()
