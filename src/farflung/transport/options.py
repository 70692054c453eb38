"""What a link asks of the kernel: the defaults are for users, other values for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.transport.net.sockets import PathState
from farflung.transport.striping.controller import MAXIMUM_CONNECTIONS, StripeController, fills_alone


@dataclass(frozen=True)
class LinkOptions:
    """Given to `endpoint.dial` and `endpoint.listen`; either side's holds for what that side sends.

    Attributes
    ----------
    congestion_control : The kernel's name of it. Where the kernel has none of this name its own is used;
        `Link.congestion_control` says which it came to.
    connections : Over how many the data of one link is spread, 1 to 16; None for one under BBR, and otherwise
        as many as are found to be worth it. The dialler opens them.
    """

    congestion_control: str = "bbr"
    connections: int | None = None

    def __post_init__(self) -> None:
        if self.connections is not None and not 1 <= self.connections <= MAXIMUM_CONNECTIONS:
            raise ValueError(f"a link of {self.connections} connections, 1 to {MAXIMUM_CONNECTIONS} may be")

    def controller(
        self, congestion_control: str, path: Callable[[], PathState | None] = lambda: None
    ) -> StripeController:
        """What decides on the number of connections, under the congestion control that is in use."""
        if self.connections is not None:
            return StripeController(self.connections, self.connections)
        return StripeController(1, 1 if fills_alone(congestion_control) else MAXIMUM_CONNECTIONS, path)


DEFAULT_OPTIONS = LinkOptions()
