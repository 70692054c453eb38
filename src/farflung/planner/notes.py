"""Notes for the user about a plan: random numbers, and segments that recompute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup
from farflung.plans import Plan
from farflung.text import and_more, printable

NAMED = 3
"""How many workers the sentence names."""


def draws(graph: Graph) -> bool:
    """Whether the model has dropout or another op that draws random numbers while it trains."""
    return any(lookup(node.op).draws(node) for node in graph.nodes)


def draws_notes(graph_draws: bool, workers: Iterable[str], frameworks: Mapping[str, str]) -> list[str]:
    """What to say of a plan's workers: a sentence if some draw on other frameworks than torch.

    `frameworks` say what workers compute with, and its version; who is not in it is not spoken of.
    """
    others = [w for w in workers if frameworks.get(w, "torch").split(" ")[0] not in ("torch", "emulated", "")]
    if not graph_draws or not others:
        return []
    names = and_more(others, NAMED)
    kinds = " and ".join(sorted({frameworks[worker].split(" ")[0] for worker in others}))
    return [
        printable(
            f"dropout and the like draw other numbers on {kinds} ({names}) than on torch, of the same"
            " distribution: losses repeat on this plan, and differ from those of a run on torch alone"
        )
    ]


def recomputing_notes(plan: Plan) -> list[str]:
    """What the user should know of it."""
    numbers = sorted(plan.recomputing())
    if not numbers:
        return []
    if len(numbers) == len(plan.placements):
        who = "all segments run"
    else:
        word = "segments" if len(numbers) > 1 else "segment"
        who = f"{word} {', '.join(map(str, numbers))} {'run' if len(numbers) > 1 else 'runs'}"
    return [f"{who} forward twice in place of keeping what was computed, which takes less memory"]
