from __future__ import annotations

import asyncio
import time

import pytest

from farflung.transport.probing import access_line


def test_a_line_is_measured_after_the_process_stood_still_for_as_long_as_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_line, "ACCESS_LINE_SECONDS", 0.3)
    counts = iter(range(0, 2**40, 2**20))

    def total_bytes() -> int:
        if (count := next(counts)) == 0:
            time.sleep(0.4)  # nothing else runs either
        return count

    assert asyncio.run(access_line.watch(total_bytes, 0.001)).bandwidth_mbps > 1


def test_a_process_that_stands_still_again_and_again_does_not_watch_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_line, "ACCESS_LINE_SECONDS", 1.0)
    looks = 0

    def total_bytes() -> int:
        nonlocal looks
        looks += 1
        time.sleep(1.1)
        return 0

    assert asyncio.run(access_line.watch(total_bytes, 0.001)).bandwidth_mbps == 0
    assert looks == 2
