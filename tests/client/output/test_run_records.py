"""What the submitter is told of a run while it goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
from tests.client.output.test_run_metrics import done, job

from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.run_folder import RunFolder
from farflung.protocol.messages import Accepted
from farflung.protocol.traffic import LinkTraffic


class Listener(Observer):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def warned(self, words: str) -> None:
        """See `Observer`."""
        self.words.append(words)


def test_values_that_no_codec_writes_are_told_once_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    folder, listener = RunFolder.create(tmp_path / "run"), Listener()
    books = Recorder(job(), folder, listener)
    fine, spoilt = LinkTraffic("a", "b", 400, 100), LinkTraffic("b", "a", 400, 400, 2)

    async def run() -> None:
        await books.running(0)
        for unit, links in enumerate([[fine], [fine, spoilt], [spoilt]]):
            await books.unit_done(msgspec.structs.replace(done(unit, 1.0, 400), links=links), 0)

    asyncio.run(run())
    (words,) = listener.words
    assert words.startswith("values on b -> a are not finite") and "\n" not in words
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [event["links"] for event in events if event["event"] == "not finite"] == [["b -> a"]]
    assert books.metrics.steps == 2


def test_how_far_a_search_is_is_shown_and_not_kept(tmp_path: Path) -> None:
    class Watching(Observer):
        def waiting(self, words: str) -> None:
            """See `Observer`."""
            shown.append(words)

    shown: list[str] = []
    folder = RunFolder.create(tmp_path / "run")
    books = Recorder(job(), folder, Watching())
    words = ["waiting", "planning", "planning: 10 plans", "planning: 20 plans", "waiting", "planning"]

    async def run() -> None:
        for state in words:
            await books.accepted(Accepted("job-1", state))

    asyncio.run(run())
    assert shown == words
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [event["state"] for event in events] == ["waiting", "planning", "waiting", "planning"]
