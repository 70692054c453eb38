"""Notes for the user about a plan: random numbers, segments that recompute, and what checks cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup
from farflung.plans import Plan
from farflung.runtime.backend import REPEATABLE
from farflung.simulator import Simulation
from farflung.text import and_more, format_seconds, printable

NAMED = 3
"""How many workers a note names."""


def draws(graph: Graph) -> bool:
    """Whether the model has dropout or another op that draws random numbers while it trains."""
    return any(lookup(node.op).draws(node) for node in graph.nodes)


def draws_notes(graph_draws: bool, workers: Iterable[str], frameworks: Mapping[str, str]) -> list[str]:
    """A note if the model draws random numbers and some of the workers use another framework than torch.

    `frameworks` holds the workers' frameworks with versions; workers without an entry are left out.
    """
    others = [w for w in workers if frameworks.get(w, "torch").split(" ")[0] not in ("torch", "emulated", "")]
    if not graph_draws or not others:
        return []
    names = and_more(others, NAMED)
    kinds = " and ".join(sorted({frameworks[worker].split(" ")[0] for worker in others}))
    return [
        printable(
            f"dropout and similar ops draw different random numbers on {kinds} ({names}) than on torch, with"
            " the same distribution: losses repeat with this plan, but differ from a run on torch alone"
        )
    ]


def mode_notes(
    workers: Iterable[str], kinds: Mapping[str, str], deterministic: bool, compiled: bool = False
) -> list[str]:
    """A note on how the GPUs among the workers compute; `kinds` are those of the workers' devices."""
    gpus = [worker for worker in workers if kinds.get(worker, "") not in REPEATABLE]
    if not gpus:
        return []
    if deterministic:
        how = "deterministic kernels without TF32: bits repeat on GPUs of one model, steps take longer"
    else:
        how = "the fastest kernels, and TF32 if they have it: bits may differ from run to run"
    if compiled:
        how = f"compiled, so they load longer; {how}"
    return [printable(f"{and_more(gpus, NAMED)}: {how} (Job's `deterministic` says which)")]


def length_notes(lengths: Sequence[int]) -> list[str]:
    """A note on which of several lengths of batches is planned for."""
    if not lengths:
        return []
    return [f"planned for batches of length {lengths[-1]}, the longest; shorter ones take less time"]


def home_noise_notes(plan: Plan, level: float) -> list[str]:
    """A note on the noise on what leaves home, if there is any."""
    if not (level and plan.leaves_home()):
        return []
    home = and_more(sorted(plan.at_home()), NAMED)
    return [
        printable(
            f"noise of {level:g} times the root mean square of each row on values that leave home ({home})"
        )
    ]


def recomputing_notes(plan: Plan) -> list[str]:
    """A note on the segments that recompute."""
    numbers = sorted(plan.recomputing())
    if not numbers:
        return []
    if len(numbers) == len(plan.placements):
        who = "all segments recompute"
    else:
        word = "segments" if len(numbers) > 1 else "segment"
        who = f"{word} {', '.join(map(str, numbers))} {'recompute' if len(numbers) > 1 else 'recomputes'}"
    return [f"{who} activations instead of storing them, which needs less memory and more time"]


def window_notes(plan: Plan) -> list[str]:
    """A note on pipelines that keep unlike numbers of microbatches in flight."""
    windows = [plan.pipelines[at].window or plan.window for at in plan.live_pipelines() if plan.pipelines]
    if len({*windows}) < 2:
        return []
    return [f"the replicas have windows of their own: {', '.join(map(str, windows))}"]


def check_notes(plan: Plan, simulation: Simulation, verify: float) -> list[str]:
    """A note on what the checks of a job with this `verify` cost, if it has any.

    One idle worker, as fast as the owner, computes what is drawn of each share once more, a share at a time.
    Where that takes longer than a step, training waits for it.
    """
    if not verify:
        return []
    called = f"verify={verify:g}"
    if len(plan.workers()) < 2:
        return [f"{called}: nothing is checked, because one worker alone has all of the model"]
    if plan.sums or plan.replicas > 1:
        return [f"{called}: nothing is checked, because replicas add up their gradients"]
    step = simulation.step_seconds
    again = verify * step * sum(load.share for load in simulation.loads if load.kind == "device")
    takes = f"{called}: for each step an idle worker computes for {format_seconds(again)} to check it"
    if again <= step:
        return [f"{takes}, beside training"]
    return [f"{takes}, longer than a step: training waits, and a step takes as long as that"]
