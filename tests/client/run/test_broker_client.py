"""Questions to a real broker: its status, and a fresh certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.links import nowhere

from farflung.broker.security.authority import create_token
from farflung.broker.service import BrokerService
from farflung.broker.storage.store import Store
from farflung.client.run.broker_client import ask_status, renew
from farflung.errors import ConnectionFailed
from farflung.transport.security.enrolment import enrol
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts


def with_broker(tmp_path: Path, scenario: Any) -> Any:
    """Run `scenario(identity)` as a submitter of a broker that serves meanwhile."""

    async def main() -> Any:
        token = create_token(tmp_path / "broker", "submitter")
        with Store(tmp_path / "broker") as store:
            service = BrokerService(tmp_path / "broker", store, Timeouts())
            await service.start("127.0.0.1:0")
            serving = asyncio.create_task(service.run())
            enrolment = await enrol(service.address, token, tmp_path / "me", "submitter", "me")
            try:
                return await scenario(enrolment.identity)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                await service.stop()

    return asyncio.run(main())


def test_a_status_is_told(tmp_path: Path) -> None:
    def scenario(identity: Identity) -> Coroutine[Any, Any, Any]:
        return ask_status(identity)

    status = with_broker(tmp_path, scenario)
    assert (status.workers, status.jobs, status.backup_pool) == ([], [], [])
    assert status.timeouts["lease_seconds"] == 10.0


def test_a_renewed_certificate_is_kept_and_used(tmp_path: Path) -> None:
    async def scenario(identity: Identity) -> None:
        fresh = await renew(identity)
        assert fresh.certificate != identity.certificate
        kept = Identity.load(tmp_path / "me")
        assert (kept.certificate, kept.id) == (fresh.certificate, "me")
        await ask_status(kept)

    with_broker(tmp_path, scenario)


def test_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def scenario(identity: Identity) -> None:
        with pytest.raises(ConnectionFailed, match=f"{nowhere()} refused the connection"):
            await ask_status(replace(identity, broker=nowhere()))

    with_broker(tmp_path, scenario)
