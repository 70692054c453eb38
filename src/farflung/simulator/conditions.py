"""The conditions of a simulation besides plan and topology."""

from __future__ import annotations

from dataclasses import dataclass

PAYLOAD_SHARE = 0.954
"""Fraction of a link's rate without headers of Ethernet, IP and TCP (66 of 1514 bytes), TLS and frames."""


@dataclass(frozen=True)
class Conditions:
    """How devices, links and the runtime behave.

    Parameters
    ----------
    efficiency
        The fraction of its TFLOP/s that a device sustains.
    split_backward
        Whether gradients of received values are computed and sent before those of parameters, as in the
        runtime. If false, a backward pass is one task.
    window
        W of the admission rule; None uses the plan's.
    payload_share
        The fraction of a link's rate that is payload; headers use the rest. A topology states rates with
        headers, as the lab emulates and probes measure them.
    commit
        Whether a step ends with a round trip to the broker, which is in `topology.home`.
    update_bytes_per_second
        Parameter bytes that an optimizer updates in a second; None if updates take no time.
    codec_speed
        The speed of codecs relative to what they declare for one CPU core; inf if they take no time. Each
        worker has one codec thread besides its compute thread; it handles one message at a time.
    """

    efficiency: float = 1.0
    split_backward: bool = True
    window: int | None = None
    payload_share: float = PAYLOAD_SHARE
    commit: bool = True
    update_bytes_per_second: float | None = None
    codec_speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency must be above 0 and at most 1, found {self.efficiency:g}")
        if not 0 < self.payload_share <= 1:
            raise ValueError(f"payload_share must be above 0 and at most 1, found {self.payload_share:g}")
        if not self.codec_speed > 0:
            raise ValueError(f"codec_speed must be above 0, found {self.codec_speed:g}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, found {self.window}")
