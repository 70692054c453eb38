"""Find the workers that can run a model: plans place ops on workers that support them and their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import PlanError
from farflung.opdag.buckets import BUCKETS
from farflung.opdag.graph import Graph
from farflung.opdag.opset import lookup
from farflung.plans.ability import Ability
from farflung.text import and_more, printable

NAMED = 3
"""How many ops or workers a message names."""


@dataclass(frozen=True)
class Needs:
    """What a model needs of its workers: opset version, ops and element types, and whether it has buckets."""

    opset: int
    ops: frozenset[str]
    types: frozenset[str] = frozenset()
    buckets: bool = False

    @classmethod
    def of(cls, graph: Graph) -> Needs:
        """What the nodes and values of a graph need."""
        types = frozenset(kind.dtype for kind in graph.values)
        return cls(graph.opset, frozenset(node.op for node in graph.nodes), types, bool(graph.buckets))

    @property
    def of_backend(self) -> frozenset[str]:
        """What a backend may lack, as it says so."""
        return self.ops | {BUCKETS} if self.buckets else self.ops


def unable(needs: Needs, abilities: Mapping[str, Ability]) -> dict[str, str]:
    """Workers that cannot run the model, each with a message on what it lacks and what its owner can do."""
    unable: dict[str, str] = {}
    for worker, ability in abilities.items():
        if ability.opset < needs.opset:
            newer = sorted(op for op in needs.ops if lookup(op).since > ability.opset)
            ops = (
                f"lacks {and_more(newer, NAMED)} (version {needs.opset})"
                if newer
                else f"is below {needs.opset}"
            )
            unable[worker] = f"its opset version {ability.opset} {ops}: install a newer farflung there"
        elif missing := sorted(needs.of_backend.intersection(ability.lacks)):
            framework = printable(ability.framework[:60])
            backend = f"its backend ({framework})" if framework else "its backend"
            unable[worker] = f"{backend} has no {and_more(missing, NAMED)}: join it with another --backend"
        elif missing := sorted(needs.types.intersection(ability.lacks)):
            unable[worker] = f"its device has no {and_more(missing, NAMED)}: train in float32, or without it"
    return unable


def require_able(workers: int, requested: int, unable: Mapping[str, str]) -> None:
    """Raise PlanError if fewer than `requested` of the `workers` can run the model (0: at least one must)."""
    able = workers - len(unable)
    if not unable or able >= max(requested, 1):
        return
    who = and_more([f"{worker}: {why}" for worker, why in unable.items()], NAMED, "; ")
    if not able:
        raise PlanError(f"no worker here can run the model's ops: {who}")
    raise PlanError(
        f"{requested} workers were asked for, {able} of {workers} here can run the model's ops: {who}"
    )
