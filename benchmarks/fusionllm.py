"""FusionLLM's comparison on a fleet like its own: schedulers x compressors, two models, simulated.

48 devices in 19 places with links of 8 Mbit/s to 10 Gbit/s (the testbed fusionllm-48, at full speed).
The paper's own links, batches and cards are not known; its 1.45-9.39x are over baselines of its own.

    python benchmarks/fusionllm.py [--json] [--picture FILE] [--models gpt2-xl resnet-101] [--budget 400]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import picture_file, whole
from benchmarks.models import library
from benchmarks.testbeds.fusionllm import FACTOR, fusionllm_48

from farflung.codec import catalogue
from farflung.pictures.figure import BLUE, GREY, check_picture, new_figure, style, write_picture
from farflung.planner.assignment import Assignment, Options
from farflung.planner.codecs.policies import Policy, adatopk, compressed, dense, uniform_topk
from farflung.planner.registry import SCHEDULERS
from farflung.plans import Topology
from farflung.plans.codec_policy import topk
from farflung.simulator import Conditions
from farflung.text import format_number
from farflung.workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIO = 100.0
EFFICIENCY = 0.5
CODEC_SPEED = 50.0
UNIFORM, SLOWEST = (catalogue.declared(topk(kept).activation).ratio for kept in (RATIO, 3 * RATIO))
"""Of bytes: where one element of `RATIO` is kept, and on the link that AdaTopK compresses most."""

NAMES = ("equal-count", "equal-compute", "op-fence", "op-fence-plus", "auto")
POLICIES: dict[str, tuple[Policy, tuple[float, ...]]] = {
    "dense": (dense, (1.0,)),
    "uniform TopK": (uniform_topk(RATIO), (1.0, UNIFORM)),
    "AdaTopK": (adatopk(RATIO), (1.0, UNIFORM, SLOWEST)),
}
"""Each with how much faster its codecs may make lines: every scheduler is asked once for each."""

MODELS = {"gpt2-xl": (32, 1), "resnet-101": (32, 8)}
"""Microbatches of a step, and their samples."""


@dataclass(frozen=True)
class Cell:
    """One scheduler with one compressor: seconds of a step, and who does it."""

    model: str
    scheduler: str
    compressor: str
    step_seconds: float
    samples_per_second: float
    workers: int
    window: int
    lower_bound_seconds: float
    cpu_seconds: float


def full_speed() -> Topology:
    """The testbed's fleet without the scale that emulation needs."""
    fleet = fusionllm_48().slower(FACTOR, "nothing")
    workers = tuple(msgspec.structs.replace(w, tflops=w.tflops / FACTOR) for w in fleet.workers)
    return msgspec.structs.replace(fleet, workers=workers, scale=None)


def measure(model: str, budget: int) -> list[Cell]:
    """Every scheduler with every compressor."""
    fleet = full_speed()
    workload = library.workload(model, *MODELS[model])
    conditions = Conditions(efficiency=EFFICIENCY, codec_speed=CODEC_SPEED)
    cells = []
    for compressor, (policy, speedups) in POLICIES.items():
        fence: Assignment | None = None
        for name in NAMES:
            options = Options(efficiency=EFFICIENCY, budget=budget)
            if name == "auto":
                options = replace(options, incumbent=fence)
            begin = time.process_time()
            found = compressed(SCHEDULERS[name], policy, fleet, workload, options, conditions, speedups)
            if name == "op-fence-plus":
                fence = replace(found.assignment, codecs=())
            cells.append(
                Cell(
                    model=model,
                    scheduler=name,
                    compressor=compressor,
                    step_seconds=found.step_seconds,
                    samples_per_second=samples(workload) / found.step_seconds,
                    workers=len(found.plan.workers()),
                    window=found.plan.window,
                    lower_bound_seconds=found.lower_bound_seconds,
                    cpu_seconds=time.process_time() - begin,
                )
            )
    return cells


def samples(workload: Workload) -> int:
    """Of a step."""
    return workload.microbatches * workload.microbatch_size


def ahead(cells: Sequence[Cell], rival: str) -> list[tuple[str, str, float]]:
    """For each model and compressor, how many times as fast auto is as `rival`."""
    by_key = {(cell.model, cell.compressor, cell.scheduler): cell for cell in cells}
    return [
        (model, compressor, by_key[model, compressor, rival].step_seconds / cell.step_seconds)
        for (model, compressor, name), cell in by_key.items()
        if name == "auto"
    ]


def show(cells: Sequence[Cell]) -> None:
    """Seconds of a step as a table for each model."""
    for model in dict.fromkeys(cell.model for cell in cells):
        mine = [cell for cell in cells if cell.model == model]
        print(f"\n{model}: seconds of a step (workers used)")
        print(f"{'':15s}" + "".join(f"{compressor:>20s}" for compressor in POLICIES))
        for name in NAMES:
            row = [cell for cell in mine if cell.scheduler == name]
            print(f"{name:15s}" + "".join(f"{c.step_seconds:14.4g} ({c.workers:3d})" for c in row))
    for rival in NAMES[:-1]:
        factors = ", ".join(f"{factor:.4g}x {model} {codec}" for model, codec, factor in ahead(cells, rival))
        print(f"\nauto ahead of {rival}: {factors}")


COLOURS = {"dense": GREY, "uniform TopK": "#6baed6", "AdaTopK": BLUE}


@style()
def picture(cells: Sequence[Cell]) -> Figure:
    """Draw bars of samples a second on a logarithmic scale: the longer the better."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    figure = new_figure(720, 60 + 240 * len(models))
    figure.suptitle("48 devices, 8 Mbit/s to 10 Gbit/s: samples a second", fontsize=12)
    figure.set_layout_engine("constrained")
    for axes, model in zip(figure.subplots(len(models), squeeze=False)[:, 0], models, strict=True):
        mine = [cell for cell in cells if cell.model == model]
        names = [name for name in NAMES if any(cell.scheduler == name for cell in mine)]
        for number, (compressor, colour) in enumerate(COLOURS.items()):
            own = [cell for cell in mine if cell.compressor == compressor]
            rates = [cell.samples_per_second for cell in own]
            places = [names.index(cell.scheduler) + 0.28 * (number - 1) for cell in own]
            bars = axes.barh(places, rates, 0.25, color=colour, label=compressor)
            axes.bar_label(bars, [format_number(rate) for rate in rates], padding=4, fontsize=7.5)
        axes.set_xscale("log")
        rates = [cell.samples_per_second for cell in mine]
        axes.set_xlim(min(rates) / 2, 2 * max(rates))
        axes.xaxis.set_major_formatter(lambda rate, _: format_number(rate))
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_title(model, loc="left")
        axes.grid(axis="x")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def main() -> int:
    """Measure, print, draw; 1 if auto is behind either OP-Fence anywhere, or nowhere 1.3 times as fast."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=picture_file, metavar="FILE")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--budget", type=whole, default=400, help="plans that each search may evaluate")
    arguments = parser.parse_args()
    if arguments.picture:
        check_picture(arguments.picture)
    cells = [cell for model in arguments.models for cell in measure(model, arguments.budget)]
    plain, plus = ([factor for *_, factor in ahead(cells, name)] for name in ("op-fence", "op-fence-plus"))
    ok = min(*plain, *plus) >= 1.0 and max(plus) >= 1.3
    if arguments.picture:
        write_picture(picture(cells), arguments.picture)
    if arguments.json:
        print(json.dumps({"ok": ok, "cells": [asdict(cell) for cell in cells]}, indent=1))
    else:
        show(cells)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
