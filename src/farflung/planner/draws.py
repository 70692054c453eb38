"""What a plan says of random numbers, which are not the same ones on every framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup
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
