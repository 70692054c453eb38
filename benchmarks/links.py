"""What links make of emulated lines, beside a plain TCP socket and a ping on the same lines.

Two nodes of a lab (`farflung.lab`, so this needs root), one line after the other. On each, sides alternating:

* flow: messages of one size without a pause over one link, against a plain socket without TLS under the same
  congestion control, after a warm-up;
* urgent: commits over a control link and gradients over a link that is full of 32 MiB messages, against a
  ping at the same time (no limit where packets are lost: what is lost is late);
* bursts: 1 MiB after two seconds of silence, as at the start of a step, against the plain socket.

Exits 1 if a limit of the project is missed, 2 if the emulation was late (void).

    python benchmarks/links.py [--line NAME] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.transport.link.rate_estimator import MINIMUM_CHUNK_BYTES
from farflung.transport.timeouts import CHUNK_SECONDS
from link_ends import Bursts, Flow, Orders, Setting, Urgent
from transport import KIBIBYTE, MEBIBYTE, answer_of, make_identities

ENDS = Path(__file__).with_name("link_ends.py")
GRADIENT_BYTES = 64 * KIBIBYTE
LEAST_OF_PLAIN = 0.95
LEAST_OF_LOSSY_LINE = {"bbr": 0.6, "cubic": 0.3}
SLACK_MS = 20.0


@dataclass(frozen=True)
class Line:
    """One emulated line, the same in both directions, and how long flows warm up on it."""

    name: str
    mbps: float
    latency_ms: float
    loss: float = 0.0
    offload: bool = False
    warm_up: float = 2.0

    @property
    def spec(self) -> LabSpec:
        """The lab of it."""
        settings = LinkSettings(self.mbps, self.latency_ms, loss=self.loss)
        links = {("a", "b"): settings, ("b", "a"): settings}
        return LabSpec((Node("a"), Node("b")), links, segmentation_offload=self.offload)

    @property
    def chunk_ms(self) -> float:
        """What one chunk takes on it."""
        return max(CHUNK_SECONDS * 1e3, MINIMUM_CHUNK_BYTES * 8 / self.mbps / 1e3)


LINES = [
    Line("home", 8, 50, warm_up=3.0),
    Line("wan", 100, 25),
    Line("fast", 1000, 5, offload=True),
    Line("lossy", 100, 25, loss=0.01, warm_up=6.0),
]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int
    seconds: float
    sizes: tuple[int, ...]
    controls: tuple[str, ...]
    urgent: int
    bursts: int


FULL = Effort(3, 5.0, (16 * KIBIBYTE, MEBIBYTE, 32 * MEBIBYTE), ("bbr", "cubic"), 24, 5)
QUICK = Effort(1, 3.0, (16 * KIBIBYTE, 32 * MEBIBYTE), ("bbr", "cubic"), 12, 3)


class System:
    """One system's two processes, each in its node."""

    def __init__(self, network: Network, name: str, folder: Path, setting: Setting) -> None:
        self._children: list[subprocess.Popen[str]] = []
        for side, node in (("receiver", "b"), ("sender", "a")):
            command = [
                sys.executable,
                str(ENDS),
                name,
                side,
                str(folder),
                msgspec.json.encode(setting).decode(),
            ]
            child = network.popen(node, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._children.append(child)
            answer_of(child)

    def do(self, order: Orders) -> dict[str, Any]:
        """Give both sides an order; what they found."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(order).decode() + "\n")
            child.stdin.flush()
        return {name: value for child in self._children for name, value in answer_of(child).items()}

    def stop(self) -> None:
        """End both."""
        for child in self._children:
            child.terminate()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()


@contextmanager
def systems(network: Network, folder: Path, control: str) -> Iterator[dict[str, System]]:
    """A link and a plain socket under one congestion control."""
    setting = Setting(network.address("b"), control)
    both: dict[str, System] = {}
    try:
        for name in ("plain", "link"):
            both[name] = System(network, name, folder, setting)
        yield both
    finally:
        for system in both.values():
            system.stop()


def measure_flow(
    line: Line, control: str, size: int, both: dict[str, System], effort: Effort
) -> dict[str, Any]:
    """Both systems in turn; medians, and the median of the ratios of neighbours in time."""
    order = Flow(size, line.warm_up, effort.seconds)
    rates: dict[str, list[float]] = {name: [] for name in both}
    told: dict[str, Any] = {}
    for repeat in range(effort.repeats):
        for name in list(both) if repeat % 2 else reversed(both):
            found = both[name].do(order)
            rates[name].append(found["bytes_per_second"] * found.get("payload_share", 1.0) * 8 / 1e6)
            told = found if name == "link" else told
    ratio = statistics.median(a / b for a, b in zip(rates["link"], rates["plain"], strict=True))
    of_line = statistics.median(rates["link"]) / line.mbps
    ok = of_line >= LEAST_OF_LOSSY_LINE[control] if line.loss else ratio >= LEAST_OF_PLAIN
    return {
        "line": line.name, "kind": "flow", "congestion_control": told["congestion_control"],
        "message_bytes": size, "link_mbps": round(statistics.median(rates["link"]), 2),
        "plain_mbps": round(statistics.median(rates["plain"]), 2), "ratio": round(ratio, 3),
        "spread": [round(a / b, 3) for a, b in zip(rates["link"], rates["plain"], strict=True)],
        "of_line": round(of_line, 3), "connections": told["connections"], "ok": ok,
    }  # fmt: skip


def measure_urgent(
    line: Line, control: str, network: Network, link: System, effort: Effort
) -> dict[str, Any]:
    """Commits, gradients and pings under a full flow."""
    interval = 0.25
    count = round(line.warm_up / interval) + effort.urgent
    command = ["ping", "-i", str(interval), "-c", str(count), network.address("b")]
    ping = network.popen("a", command, stdout=subprocess.PIPE, text=True)
    found = link.do(Urgent(GRADIENT_BYTES, effort.urgent, line.warm_up))
    said, _ = ping.communicate()
    pings = [float(time) for time in re.findall(r"time=([\d.]+)", said)][round(line.warm_up / interval) :]
    commits = [seconds * 1e3 for seconds in found["round_trips"]]
    gradients = [(at - then) * 1e3 for at, then in zip(found["arrived"], found["posted"], strict=True)]
    allowed = statistics.median(pings) + 3 * line.chunk_ms + SLACK_MS
    own = GRADIENT_BYTES * 8 / line.mbps / 1e3
    commit, gradient = statistics.median(commits), statistics.median(gradients)
    return {
        "line": line.name, "kind": "urgent", "congestion_control": found["congestion_control"],
        "ping_ms": spread(pings), "commit_ms": spread(commits), "gradient_ms": spread(gradients),
        "commits_resent": found["commits_resent"], "echoes_resent": found["echoes_resent"],
        "commit_allowed_ms": round(allowed, 1), "gradient_allowed_ms": round(allowed + own, 1),
        "connections": found["connections"],
        "ok": bool(line.loss) or (commit <= allowed and gradient <= allowed + own),
    }  # fmt: skip


def measure_bursts(line: Line, control: str, both: dict[str, System], effort: Effort) -> dict[str, Any]:
    """The first MiB after an idle while; the very first burst, of a new connection, apart."""
    times: dict[str, list[float]] = {}
    for name, system in both.items():
        found = system.do(Bursts(MEBIBYTE, 2.0, effort.bursts))
        times[name] = [(at - then) * 1e3 for at, then in zip(found["arrived"], found["posted"], strict=True)]
    return {
        "line": line.name, "kind": "bursts", "congestion_control": control,
        "new_ms": {name: round(found[0], 1) for name, found in times.items()},
        "idle_ms": {name: spread(found[1:]) for name, found in times.items()},
        "ideal_ms": round(MEBIBYTE * 8 / line.mbps / 1e3 + line.latency_ms, 1), "ok": True,
    }  # fmt: skip


def spread(found: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {
        "median": round(statistics.median(found), 1),
        "least": round(min(found), 1),
        "most": round(max(found), 1),
    }


def measure(line: Line, folder: Path, effort: Effort) -> list[dict[str, Any]]:
    """All rows of one line."""
    rows: list[dict[str, Any]] = []
    with Network(line.spec) as network:
        for control in effort.controls:
            with systems(network, folder, control) as both:
                found = [measure_flow(line, control, size, both, effort) for size in effort.sizes]
                found.append(measure_urgent(line, control, network, both["link"], effort))
                found.append(measure_bursts(line, control, both, effort))
            stats = network.stats(reset=True)
            rows += [{**row, "void": stats.void, "late_p99_ms": stats.late_p99_ms} for row in found]
    return rows


def main() -> int:
    """Run the benchmark; 0 if every limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--line", choices=[line.name for line in LINES], help="measure one line only")
    parser.add_argument("--quick", action="store_true", help="one short repeat instead of three")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        make_identities(Path(name))
        for line in LINES:
            if options.line in (None, line.name):
                rows += measure(line, Path(name), effort)
                if not options.json:
                    print(
                        "\n".join(map(_told, rows[-sum(row["line"] == line.name for row in rows) :])),
                        flush=True,
                    )
    if options.json:
        print(json.dumps({"lines": [asdict(line) for line in LINES], "rows": rows}, indent=2))
    if any(row["void"] for row in rows):
        return 2
    return 0 if all(row["ok"] for row in rows) else 1


def _told(row: dict[str, Any]) -> str:
    verdict = ("ok" if row["ok"] else "MISSED") + (" VOID" if row["void"] else "")
    start = f"{row['line']:6s} {row['congestion_control']:6s}"
    if row["kind"] == "flow":
        return (
            f"{start} {row['message_bytes'] // KIBIBYTE:6d} KiB: link {row['link_mbps']:7.2f} Mbit/s, plain "
            f"{row['plain_mbps']:7.2f}, ratio {row['ratio']:.3f} {row['spread']}, {row['of_line']:.2f} of "
            f"the line, {row['connections']} connections  {verdict}"
        )
    if row["kind"] == "urgent":
        words = ", ".join(
            f"{what} {row[f'{what}_ms']['median']:.0f} (to {row[f'{what}_ms']['most']:.0f})"
            for what in ("ping", "commit", "gradient")
        )
        return (
            f"{start} under load, ms: {words}; allowed {row['commit_allowed_ms']:.0f} and "
            f"{row['gradient_allowed_ms']:.0f}  {verdict}"
        )
    idle = ", ".join(f"{name} {found['median']:.0f}" for name, found in row["idle_ms"].items())
    return f"{start} 1 MiB after 2 s of silence, ms: {idle}; ideal {row['ideal_ms']:.0f}  {verdict}"


if __name__ == "__main__":
    sys.exit(main())
