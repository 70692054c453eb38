"""How many validation microbatches evaluations can run in a small share of the time of the steps. Pure.

An evaluation sends activations through the same pipeline as a step, and no gradients back. So it takes no
longer than a step without its backward passes: half of what fills the pipeline, and then for each microbatch
what the busiest device or link takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farflung.schedule import Units
from farflung.simulator import Simulation
from farflung.text import count_of, format_seconds

LEAST_SECONDS = 1.0
"""All evaluations of a run together may take so long, however short the run is."""
FORWARD_SHARE = 1 / 3
"""Of what a device computes for a training microbatch: forward and backward count 1 to 2."""


def affordable_microbatches(
    units: Units, step: Simulation, passes: Sequence[Simulation], share: float
) -> int:
    """Microbatches of each evaluation, at least 1, so that all evaluations take `share` of all steps.

    They may take `LEAST_SECONDS` if that is more. `step` is a simulated step; an evaluation has one pass for
    each of `passes`, over links as in these steps.
    """
    most = max(LEAST_SECONDS, _share_seconds(units, step, share)) / units.evaluations
    each = sum(_each_seconds(one, units.microbatches) for one in passes)
    left = most - sum(map(_fill_seconds, passes))
    asked = units.validation_microbatches
    if left >= each * asked:
        return asked
    return max(1, int(left / each)) if left > 0 else 1


def evaluation_seconds(units: Units, passes: Sequence[Simulation]) -> float:
    """What one evaluation with all validation microbatches takes."""
    each = sum(_each_seconds(one, units.microbatches) for one in passes)
    return sum(map(_fill_seconds, passes)) + units.validation_microbatches * each


def fewer_note(
    units: Units, step: Simulation, passes: Sequence[Simulation], chosen: int, share: float
) -> str:
    """Why an evaluation takes fewer microbatches than it might, and how to get them all."""
    asked, least = units.validation_microbatches, replace(units, validation_microbatches=chosen)
    most, limit = _share_seconds(units, step, share), f"{100 * share:g} % of the time of the steps"
    if most < LEAST_SECONDS:
        most, limit = LEAST_SECONDS, f"{LEAST_SECONDS:g} s in so short a run"
    takes = units.evaluations * evaluation_seconds(least, passes)
    why = f"as all evaluations are to take at most {limit}"
    if takes > most and chosen == 1:
        why = f"the fewest, though all evaluations take about {format_seconds(takes)}, more than {limit}"
    count = f"{chosen} of {count_of(asked, 'microbatch', 'microbatches')}"
    return (
        f"an evaluation takes {count}, {why}: with all {asked} each would take about"
        f" {format_seconds(evaluation_seconds(units, passes))} (Job(validation_batches={asked}))"
    )


def _share_seconds(units: Units, step: Simulation, share: float) -> float:
    """What a share of the time of all steps is."""
    return share * units.steps * step.step_seconds


def _each_seconds(simulation: Simulation, microbatches: int) -> float:
    """What the busiest device, link or access line takes for one microbatch of an evaluation."""
    loads = simulation.loads
    devices = [FORWARD_SHARE * load.share for load in loads if load.kind in ("device", "machine")]
    lines = [load.share for load in loads if load.kind in ("link", "line")]
    busiest = max((*devices, *lines), default=0.0)
    return busiest * simulation.step_seconds / microbatches


def _fill_seconds(simulation: Simulation) -> float:
    """What filling the pipeline takes on the way there: half of what a step takes beside its busiest load."""
    busiest = max((load.share for load in simulation.loads), default=0.0)
    return max(0.0, 1.0 - busiest) * simulation.step_seconds / 2
