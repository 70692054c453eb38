"""What `farflung doctor` says of this machine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.broker_fleet import broker, joined_earlier

from farflung.localhost import doctor


@pytest.mark.parametrize(
    ("role", "id", "words"),
    [
        ("broker", "broker", "broker, good for 2.0 more days"),
        ("worker", "a", "worker a, good for 2.0 more days"),
    ],
)
def test_a_certificate_is_named_once(role: str, id: str, words: str) -> None:
    ends = time.time() + 2 * 86_400
    identity: Any = SimpleNamespace(role=role, id=id, expires_at=ends, has_ended=False)
    assert doctor._certificate(identity).found == words


@pytest.mark.parametrize(("days_ago", "words"), [(0.25, "good for 18 more hours"), (3.0, "ended 20")])
def test_a_worker_that_was_off_for_days_is_admitted(tmp_path: Path, days_ago: float, words: str) -> None:
    hub = tmp_path / "hub"

    async def scene() -> None:
        own = joined_earlier(hub, tmp_path / "a", days_ago)
        async with broker(hub) as service:
            findings = await doctor.examine([own.folder], service.address)
        found = {finding.check: finding for finding in findings}
        assert words in found["certificate"].found and found["certificate"].ok
        assert "a is admitted" in found["broker"].found, found["broker"]

    asyncio.run(scene())
