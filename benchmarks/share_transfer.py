"""How fast a lost worker's share reaches its replacement, beside a plain TCP flow over the same line.

A model of which each of two members has about `--megabytes` of state (parameters and AdamW's moments) trains
in a lab whose nodes have 100 Mbit/s up and down. Once a version is stable one member is killed; the third
worker takes its place and gets the share from the one that holds its copies. Seconds count from the
moment when the replacement begins to load until it has all of the share, by the bytes that the lab's
switch delivered to it. One TCP flow of as many bytes is measured in the same lab before.

    python -m benchmarks.share_transfer [--megabytes 200] [--mbps 100] [--json]

It needs Linux and root.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, positive
from benchmarks.chaos.fleet import ChaosFleet
from benchmarks.chaos.place import DESK, HUB, Place
from benchmarks.chaos.run_files import RunFiles, copies_at
from benchmarks.kills.follower import wait_until
from torch import Tensor, nn

import farflung
from farflung.errors import LabError
from farflung.lab.machine import check_machine
from farflung.lab.measure.traffic import bulk_mbps
from farflung.lab.spec import LabSpec, LinkSettings, Node

NAMES = ("w0", "w1", "w2")
LEASE_SECONDS, LATENCY_MS, LONGEST_SECONDS, FLOW_SECONDS, PROMISED = 10.0, 5.0, 900.0, 8.0, 1.15
MEGABYTES = "FARFLUNG_SHARE_MEGABYTES"
BYTES_PER_PARAMETER = 12  # float32, with two moments


class Net(nn.Module):
    """Two layers of equal size, each of which is one member's share."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean square of what both layers make of `x`, float32 [samples, width]."""
        return self.second(torch.tanh(self.first(x))).square().mean()


class Rows:
    """A few rows of numbers."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(0.5)
        return {"x": torch.sin(torch.arange(float(self._width)) + index)}


def job() -> farflung.Job:
    """The job, whose members each have so much state."""
    width = math.isqrt(int(float(os.environ[MEGABYTES]) * 1e6) // BYTES_PER_PARAMETER)
    return farflung.Job(
        model=Net(width), data=Rows(width), optimizer=farflung.AdamW(lr=1e-4), batch=2, microbatches=2,
        steps=100_000,
    )  # fmt: skip


class Result(msgspec.Struct, frozen=True):
    """Of one run of this program; `load` is the machine's over 1 minute, `is_void`: the lab was late."""

    share_mb: float
    mbps: float
    donors: int
    tcp_seconds: float
    transfer_seconds: float
    ratio: float
    load: float
    is_void: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if the promise is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=positive, default=200.0)
    parser.add_argument("--mbps", type=positive, default=100.0)
    parser.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    os.environ[MEGABYTES] = str(given.megabytes)
    try:
        check_machine()
    except LabError as error:
        print(f"share_transfer.py: {error}", file=sys.stderr)
        return 2
    with Place(network(given.mbps), (), given.folder and given.folder.absolute()) as place:
        result = measured(place, given.mbps)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        print(
            f"{result.share_mb:.0f} MB in {result.transfer_seconds:.1f} s, donors: {result.donors}; a flow"
            f" of TCP takes {result.tcp_seconds:.1f} s: {result.ratio:.2f} times as long"
        )
    return 0 if result.ratio <= PROMISED else 1


def network(mbps: float) -> LabSpec:
    """Workers with lines of `mbps`; broker and submitter have faster ones."""
    names = (HUB, DESK, *NAMES)
    nodes = [Node(HUB), Node(DESK), *(Node(name, mbps, mbps) for name in NAMES)]
    line = LinkSettings(latency_ms=LATENCY_MS)
    return LabSpec(tuple(nodes), {(a, b): line for a in names for b in names if a != b})


def measured(place: Place, mbps: float) -> Result:
    """One flow, then one transfer."""
    rate = bulk_mbps(place.network, [(NAMES[0], NAMES[1])], 0, 1.0, FLOW_SECONDS)
    run, folder = RunFiles(place.folder / "run"), place.fleet_folder
    with ChaosFleet(folder, len(NAMES), LEASE_SECONDS, place) as fleet:
        arguments = ["--out", str(run.folder), "--workers", "2"]
        fleet.train(run.folder, *arguments, job=Path(__file__))
        wait_until(lambda: _is_stable(folder), "a version that is stable", LONGEST_SECONDS)
        members = run.members
        victim, (taker,) = members[1], [name for name in NAMES if name not in members]
        size = max(copy.path.stat().st_size for copy in copies_at(folder / victim))
        place.network.stats(reset=True)
        fleet.signal(victim, signal.SIGKILL)
        begin = _moment(place, taker, 100_000)
        end = _moment(place, taker, size)
        stats = place.network.stats()
    run.close()
    donors = sum(link.bytes > size / 10 for link in stats.links if link.target == taker)
    tcp = size * 8 / 1e6 / rate
    return Result(
        size / 1e6, mbps, donors, tcp, end - begin, (end - begin) / tcp, os.getloadavg()[0], stats.void
    )


def _is_stable(folder: Path) -> bool:
    """Whether both members have both shares of one version."""
    found = [copy for name in NAMES for copy in copies_at(folder / name)]
    return any(sum(copy[:2] == other[:2] for copy in found) >= 4 for other in found)


def _moment(place: Place, node: str, size: int) -> float:
    """When the switch has delivered so many bytes to a node."""

    def is_there() -> bool:
        time.sleep(0.02)
        return sum(link.bytes for link in place.network.stats().links if link.target == node) >= size

    wait_until(is_there, f"{size} bytes at {node}", LONGEST_SECONDS)
    return time.monotonic()


if __name__ == "__main__":
    raise SystemExit(main())
