"""What a link asks of the kernel: the defaults are for users, other values for tests and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkOptions:
    """Given to `endpoint.dial` and `endpoint.listen`; either side's holds for what that side sends.

    Attributes
    ----------
    congestion_control : The kernel's name of it. Where the kernel has none of this name its own is used;
        `Link.congestion_control` says which it came to.
    """

    congestion_control: str = "bbr"


DEFAULT_OPTIONS = LinkOptions()
