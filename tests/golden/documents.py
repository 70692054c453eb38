"""JSON documents that are built where they are printed: their keys, as paths such as `tokens[].id`."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from tests.client.output.test_run_metrics import job
from tests.golden.samples import samples

from farflung.broker.storage.store import Store, TokenRecord
from farflung.cli.commands import topology
from farflung.cli.main import run
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.records import Outcome
from farflung.client.output.run_folder import EVENTS, METRICS, SUMMARY, RunFolder
from farflung.localhost import doctor
from farflung.localhost.findings import Finding
from farflung.plans.plan_file import NAME as PLAN
from farflung.protocol import messages
from farflung.workload.profile import DeviceProfile
from farflung.workload.profile_store import Device, recall, remember

FILE = "documents.json"


def made(folder: Path) -> dict[str, Any]:
    """What today's code prints and writes."""
    return {"keys": keys(folder), "profile store": profile_store(folder / "cache")}


def keys(folder: Path) -> dict[str, list[str]]:
    """Every such document, with its key paths."""
    broker = folder / "broker"
    with Store(broker) as store:
        store.add_token(TokenRecord(bytes(32), "worker", 2, 1, 5.0, 4.0))
    found = {
        "token create --json": _printed("token", "create", "--role", "worker", "--folder", str(broker)),
        "token list --json": _printed("token", "list", "--folder", str(broker)),
        "lab list --json": _printed("lab", "list"),
        "topology show --json": _printed("topology", "show", "two-sites"),
        "topology show --fleet --json": _fleet(),
        "doctor --json": _doctor(folder),
        "--json, an error": _printed("topology", "show", "nowhere"),
    }
    return {name: sorted(key_paths(document)) for name, document in found.items()} | _run(folder / "run")


def key_paths(document: object, before: str = "") -> set[str]:
    """The paths of all keys, however deep."""
    if isinstance(document, list):
        return set().union(*(key_paths(one, f"{before}[]") for one in document)) if document else set()
    if not isinstance(document, dict):
        return set()
    found: set[str] = set()
    for key, value in document.items():
        if " " in key:  # of sample data, as in a mapping of workers to reasons
            continue
        path = f"{before}.{key}" if before else key
        found |= {path} | key_paths(value, path)
    return found


def profile_store(folder: Path) -> dict[str, str]:
    """The name and text of the file in which a device's times are kept."""
    profile = samples(DeviceProfile)[0]
    remember(device(), profile, folder)
    (path,) = folder.iterdir()
    assert len(recall(device(), folder).nodes) == len(profile.times)
    return {"name": path.name, "text": path.read_text()}


def device() -> Device:
    """Whose times are kept."""
    return Device("a processor, 4 cores, oslo", "torch 2.13.0", "7 0011223344556677", 3)


def _printed(*arguments: str) -> Any:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        run([*arguments, "--json"])
    return json.loads(out.getvalue())


def _fleet() -> Any:
    told = samples(messages.FleetTopology)[0]
    with patch.object(topology, "fleet_topology", return_value=(told.topology, told)):
        return _printed("topology", "show", "--fleet")


def _doctor(folder: Path) -> Any:
    async def examine(*_: object) -> list[Finding]:
        return samples(Finding)

    with patch.object(doctor, "examine", examine):
        return _printed("doctor", "--folder", str(folder))


def _run(folder: Path) -> dict[str, list[str]]:
    """The rows of a run's files; of `events.jsonl` those of each event."""
    asyncio.run(_book(folder))
    rows = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    found = {f"{EVENTS}, {row['event']}": row for row in rows}
    found |= {name: json.loads((folder / name).read_text()) for name in (PLAN, SUMMARY)}
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    found[METRICS] = next(row for row in lines if "loss" in row)
    return {name: sorted(key_paths(row)) for name, row in found.items()}


async def _book(folder: Path) -> None:
    books = Recorder(job(), RunFolder.create(folder), Observer())
    await books.submitted("golden", "192.0.2.7:7700")
    await books.accepted(samples(messages.Accepted)[0])
    await books.planned(samples(messages.Planned)[0])
    await books.running(1000)
    for done in _units():
        await books.unit_done(done, 2000)
    await books.codecs_chosen(samples(messages.CodecsChosen)[0])
    await books.collecting(samples(messages.Collecting)[0])
    books.close(Outcome("done", ""))


def _units() -> Iterator[messages.UnitDone]:
    for unit in range(3):
        yield replace(samples(messages.UnitDone)[0], unit=unit, loss=1.5)
