"""How much may pass by when: a token bucket, without a clock."""

from __future__ import annotations

BURST_SECONDS = 0.05


class Allowance:
    """`bytes_per_second` for all who share it, with what 50 ms would have carried saved up."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")

    def take(self, count: int, now: float) -> float:
        """Take `count` bytes at time `now` (seconds); how many seconds to wait before they pass."""
        self._free_at = max(self._free_at, now - BURST_SECONDS) + count / self._bytes_per_second
        return max(0.0, self._free_at - now)
