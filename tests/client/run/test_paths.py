"""What a submitter tells the broker about its links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.links import paired, run

from farflung.client.run.worker_session import WorkerRoutes
from farflung.connectivity.connector import Reached
from farflung.protocol.reachability import Links
from farflung.transport.timeouts import Timeouts


def test_a_submitter_goes_on_reporting_how_its_links_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        told: asyncio.Queue[Links] = asyncio.Queue()
        identity: Any = SimpleNamespace(id="s", role="submitter", broker="", client_context=lambda: None)
        async with paired(tmp_path) as pair:

            async def connect(errand: object, handler: object) -> Reached:
                return Reached(pair.a, "")

            paths = WorkerRoutes(identity, Timeouts(1.0), told.put_nowait, str)  # type: ignore[arg-type]
            monkeypatch.setattr(paths._connector, "connect", connect)
            planned: Any = SimpleNamespace(job="job-1", attempt=1)
            await paths.connect(planned, "b", [], None)  # type: ignore[arg-type]
            for _ in range(2):
                (report,) = (await asyncio.wait_for(told.get(), 60)).reports
                assert report.peer == "b" and report.link is not None
            pair.a._end("it is cut", "it is cut", "network")
            while (await asyncio.wait_for(told.get(), 60)).reports[0].link is not None:
                pass
            pair.a.cause = "closed"
            while (await asyncio.wait_for(told.get(), 60)).reports[0].link is None:
                pass  # the job is over, and its links were well: the doctor has nothing to find
            await paths.close("done")
            while not told.empty():
                told.get_nowait()
            await asyncio.sleep(Timeouts(1.0).suspect_seconds * 1.5)
            assert told.empty()

    run(scene())
