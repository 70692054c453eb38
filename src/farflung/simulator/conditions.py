"""What a step depends on beside plan and topology."""

from __future__ import annotations

from dataclasses import dataclass

PAYLOAD_SHARE = 0.954
"""Of a line's rate, what is no header of Ethernet, IP and TCP (66 of 1514 bytes), TLS or frame."""


@dataclass(frozen=True)
class Conditions:
    """How devices, links and the runtime behave.

    Parameters
    ----------
    efficiency
        The part of its TFLOP/s that a device reaches.
    split_backward
        Whether gradients of what was received are computed and sent before those of parameters, as the
        runtime does. Without, a backward pass is one task.
    window
        W of the admission rule in place of the plan's.
    payload_share
        The part of a link's rate that is payload; headers take the rest. A topology states the rates of
        lines, headers included, as the lab does and as a probe finds them.
    commit
        Whether a step ends with a round trip to the broker, which stands in `topology.home`.
    update_bytes_per_second
        Parameter bytes that an optimizer updates in a second; None for no time at all.
    codec_speed
        How many times as fast as one core of a CPU devices write and read what codecs declare; inf for no
        time at all. A worker has a codec thread beside the one that computes; it takes one message at a time.
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
