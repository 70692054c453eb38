"""How much the lab's switch carries, and what a packet costs it: one plain TCP flow, then pairs side by side.

Needs root. `--json` prints one document. The switch runs on one core; sender and receiver want the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive

from farflung.lab.measure.traffic import bulk_mbps
from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node

SKIP_SECONDS = 1.5
REPEATS = 3


@dataclass(frozen=True)
class Setting:
    """One lab: so many pairs with the same link, each with one flow at the same time."""

    name: str
    link: LinkSettings
    pairs: int = 1
    offload: bool = False


@dataclass(frozen=True)
class Row:
    """Medians of the repeats. Goodput is payload of all flows, `core_share` the switch's processor time."""

    setting: str
    goodput_mbps: float
    lowest_mbps: float
    highest_mbps: float
    core_share: float
    microseconds_per_packet: float
    late_p50_ms: float
    late_p99_ms: float


SETTINGS = (
    Setting("no limit, no delay", LinkSettings()),
    Setting("1000 Mbit/s, 5 ms", LinkSettings(1000, 5)),
    Setting("5000 Mbit/s, 5 ms, segmentation offload", LinkSettings(5000, 5), offload=True),
    Setting("100 Mbit/s, 20 ms", LinkSettings(100, 20)),
    Setting("8 Mbit/s, 50 ms", LinkSettings(8, 50)),
    Setting("24 pairs of 8 Mbit/s, 50 ms", LinkSettings(8, 50), pairs=24),
)


def lab_of(setting: Setting) -> tuple[LabSpec, list[tuple[str, str]]]:
    """The lab of a setting, and its flows."""
    flows = [(f"from-{number}", f"to-{number}") for number in range(setting.pairs)]
    nodes = tuple(Node(name) for flow in flows for name in flow)
    links = {pair: setting.link for a, b in flows for pair in ((a, b), (b, a))}
    return LabSpec(nodes, links, segmentation_offload=setting.offload), flows


def measure(setting: Setting, seconds: float) -> Row:
    """Run it `REPEATS` times, each in a new lab."""
    spec, flows = lab_of(setting)
    goodputs, stats = [], []
    for _ in range(REPEATS):
        with Network(spec) as network:
            goodputs.append(bulk_mbps(network, flows, 0, SKIP_SECONDS, seconds))
            stats.append(network.stats())
    return Row(
        setting=setting.name,
        goodput_mbps=statistics.median(goodputs),
        lowest_mbps=min(goodputs),
        highest_mbps=max(goodputs),
        core_share=statistics.median(one.cpu_seconds / one.seconds for one in stats),
        microseconds_per_packet=statistics.median(one.cpu_seconds / one.packets * 1e6 for one in stats),
        late_p50_ms=statistics.median(one.late_p50_ms for one in stats),
        late_p99_ms=statistics.median(one.late_p99_ms for one in stats),
    )


def main() -> None:
    """Print a table, or a document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=positive, default=3.0, help="how long each flow is counted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        row = measure(setting, arguments.seconds)
        rows.append(row)
        if not arguments.json:
            print(
                f"{row.setting:<40}{row.goodput_mbps:>8.1f} Mbit/s"
                f" ({row.lowest_mbps:.0f}-{row.highest_mbps:.0f})"
                f"  {row.core_share:>4.0%} of a core, {row.microseconds_per_packet:.0f} us a packet,"
                f" late {row.late_p50_ms:.2f} / {row.late_p99_ms:.2f} ms",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
