"""From which bandwidth and with which codec 50 RTX 3080 in homes do the work of 4 H100 (FusionAI's claim).

Both fleets run the best plan of the same step that there is for devices that are all alike; a simulator that
knows tensors, lines, latencies and memory says how long it takes. What is assumed is printed.

    python benchmarks/consumer_vs_datacentre.py [--json] [--picture FILE] [--tasks bert-large gpt3-24]
        [--enough 0.9] [--efficiency 0.4] [--codec-speed 50] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import picture_file, positive
from benchmarks.consumer.chart import chart
from benchmarks.consumer.claim import LATENCIES_MS, RATES_MBPS, RUNGS, TASKS, Assumptions, Comparison, Point
from benchmarks.consumer.devices import H100_PCIE, RTX_3080

from farflung.pictures.figure import check_picture, write_picture

SHOWN_MS = 20.0


@dataclass(frozen=True)
class Claim:
    """From which rate the homes do enough (None: from none up to the fastest), and the most that they do."""

    task: str
    codec: str
    latency_ms: float
    from_mbps: float | None
    most: float
    bottleneck: str


@dataclass(frozen=True)
class Result:
    """Everything that was found."""

    enough: float
    assumptions: Assumptions
    claims: list[Claim]
    points: dict[str, list[Point]]
    server_samples_per_second: dict[str, float]


def measure(arguments: argparse.Namespace) -> Result:
    """Sweep the rates, latencies and codecs of each task."""
    assumptions = Assumptions(arguments.efficiency, arguments.codec_speed)
    rates = RATES_MBPS[::3] if arguments.quick else RATES_MBPS
    latencies = (SHOWN_MS,) if arguments.quick else LATENCIES_MS
    result = Result(arguments.enough, assumptions, [], {}, {})
    for name in arguments.tasks:
        comparison = Comparison(TASKS[name], assumptions, rates)
        result.points[name] = []
        for rung in RUNGS:
            for latency_ms in latencies:
                curve = comparison.curve(rung, latency_ms)
                from_mbps = comparison.holds_from(curve, rung, arguments.enough)
                best = max(curve, key=lambda point: point.ratio)
                claim = Claim(name, rung, latency_ms, from_mbps, best.ratio, best.bottleneck)
                result.claims.append(claim)
                result.points[name] += curve
        seconds = comparison.server.simulation.step_seconds
        result.server_samples_per_second[name] = TASKS[name].samples / seconds
    return result


def sentences(result: Result) -> list[str]:
    """The conclusion for each task."""
    found = []
    for name in result.points:
        claims = [claim for claim in result.claims if claim.task == name]
        holding = [claim for claim in claims if claim.from_mbps is not None]
        most = max(claims, key=lambda claim: claim.most)
        if holding:
            first = min(holding, key=lambda claim: claim.from_mbps or 0.0)
            found.append(
                f"{name}: 50 RTX 3080 do {result.enough:.0%} of the work of 4 H100 from lines of "
                f"{first.from_mbps:,.0f} Mbit/s on, with {first.codec} at {first.latency_ms:g} ms."
            )
        else:
            fastest = max(point.mbps for point in result.points[name]) / 1000
            found.append(
                f"{name}: 50 RTX 3080 do not do {result.enough:.0%} of the work of 4 H100 on any line up to "
                f"{fastest:g} Gbit/s: {most.most:.0%} at most, with {most.codec} at {most.latency_ms:g} ms, "
                f"where the busiest is {most.bottleneck}."
            )
    return found


def show(result: Result) -> None:
    """Print what was assumed, the tables and the conclusion."""
    for card in (RTX_3080, H100_PCIE):
        memory = f"{card.memory_gb:.0f} GB"
        print(f"{card.name:10s} {card.tflops:.1f} TFLOP/s fp16, {memory}, {card.watts} W: {card.source}")
    print(
        f"assumed for both: {result.assumptions.efficiency:.0%} of the peak; codecs "
        f"{result.assumptions.codec_speed:g} times as fast as on a CPU core"
    )
    for name, points in result.points.items():
        print(f"\n{name}: 4 H100 do {result.server_samples_per_second[name]:.0f} samples a second;")
        print(f"what part of that 50 RTX 3080 do at {SHOWN_MS:g} ms one way, by codec and line")
        rates = sorted({point.mbps for point in points})
        print(f"{'codec':24s}" + "".join(f"{rate:>9,.0f}" for rate in rates) + "  Mbit/s")
        for codec in dict.fromkeys(point.codec for point in points):
            row = _row(points, codec)
            print(f"{codec:24s}" + "".join(f"{point.ratio:>9.0%}" for point in row))
        print(f"{result.enough:.0%} from" + "".join(f"{ms:>9g} ms" for ms in _latencies(points)))
        for codec in dict.fromkeys(point.codec for point in points):
            cells = [c for c in result.claims if c.task == name and c.codec == codec]
            print(f"{codec:24s}" + "".join(_cell(claim) for claim in cells))
    print()
    print("\n".join(sentences(result)))


def _row(points: Sequence[Point], codec: str) -> list[Point]:
    return [point for point in points if point.codec == codec and point.latency_ms == SHOWN_MS]


def _latencies(points: Sequence[Point]) -> list[float]:
    return sorted({point.latency_ms for point in points})


def _cell(claim: Claim) -> str:
    if claim.from_mbps is None:
        return f"  never ({claim.most:.0%})"
    return f"  {claim.from_mbps:,.0f}"


def main() -> None:
    """Measure, print, and draw if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=picture_file, metavar="FILE")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["bert-large", "gpt3-24"])
    parser.add_argument("--enough", type=positive, default=0.9)
    parser.add_argument("--efficiency", type=positive, default=Assumptions.efficiency)
    parser.add_argument("--codec-speed", type=positive, default=Assumptions.codec_speed)
    parser.add_argument("--quick", action="store_true", help="three rates and one latency")
    arguments = parser.parse_args()
    if arguments.picture:
        check_picture(arguments.picture)
    result = measure(arguments)
    if arguments.picture:
        panels = {
            name: {rung: _row(points, rung) for rung in RUNGS} for name, points in result.points.items()
        }
        title = "50 RTX 3080 in homes beside 4 H100, 20 ms one way: part of their samples a second"
        write_picture(chart(title, panels, result.enough), arguments.picture)
    if arguments.json:
        print(json.dumps(asdict(result) | {"sentences": sentences(result)}, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
