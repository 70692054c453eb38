"""Which workers can run a model: a plan only places ops where they exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup
from farflung.plans.ability import Ability
from farflung.text import and_more, printable

NAMED = 3
"""How many ops or workers one sentence names."""


@dataclass(frozen=True)
class Needs:
    """What a model asks of whoever runs a part of it: the version of the opset, and which of its ops."""

    opset: int
    ops: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> Needs:
        """What the nodes of a graph ask for."""
        return cls(graph.opset, frozenset(node.op for node in graph.nodes))


def unable(needs: Needs, abilities: Mapping[str, Ability]) -> dict[str, str]:
    """Workers that cannot run the model: for each in words what it lacks, and what its owner can do."""
    found: dict[str, str] = {}
    for worker, ability in abilities.items():
        if ability.opset < needs.opset:
            newer = sorted(op for op in needs.ops if lookup(op).since > ability.opset)
            ops = (
                f"lacks {and_more(newer, NAMED)} (version {needs.opset})"
                if newer
                else f"is below {needs.opset}"
            )
            found[worker] = f"its opset version {ability.opset} {ops}: install a newer farflung there"
        elif missing := sorted(needs.ops.intersection(ability.lacks)):
            framework = printable(ability.framework[:60])
            backend = f"its backend ({framework})" if framework else "its backend"
            found[worker] = f"{backend} has no {and_more(missing, NAMED)}: join it with another --backend"
    return found


def require_able(workers: int, asked: int, found: Mapping[str, str]) -> None:
    """Raise PlanError where of so many `workers` those that can run the model are fewer than `asked`.

    `asked` is 0 where one will do.
    """
    able = workers - len(found)
    if not found or able >= max(asked, 1):
        return
    who = and_more([f"{worker}: {why}" for worker, why in found.items()], NAMED, "; ")
    if not able:
        raise PlanError(f"no worker here can run the model's ops: {who}")
    raise PlanError(
        f"{asked} workers were asked for, {able} of {workers} here can run the model's ops: {who}"
    )
