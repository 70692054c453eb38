"""What is computed, reduced to what matters: numbers that follow from the state alone, at any cut.

A state is the chain of units that were applied to it. Each gradient and each loss follows from that chain, so
one wrong unit changes every scale after it. `undisturbed` says what a fleet without faults would compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from tests.simulation.parcels import Chain

from farflung.plans import Plan
from farflung.protocol.worker import Share
from farflung.runtime.training import Training
from farflung.schedule import Unit

PARAMETERS = 8
"""Of each model; the segments of a plan share them."""


@dataclass(frozen=True)
class Outcome:
    """What must be decided of a unit."""

    scale: float
    loss: float
    norm: float


def parameters_of(segment: int, plan: Plan) -> list[int]:
    """The parameters that a segment updates; each pipeline has all of them."""
    count = len(plan.placements) // max(1, len(plan.pipelines))
    return [one for one in range(PARAMETERS) if one * count // PARAMETERS == segment % count]


def share_of(graph: bytes, chain: Chain, unit: Unit, segment: int, plan: Plan, finite: bool) -> Share:
    """What a segment reports of a unit that begins with the state `chain`; the last one has the loss."""
    squares = {one: _number(graph, chain, one) for one in parameters_of(segment, plan)} if unit.train else {}
    loss = _number(graph, chain, -1) if segment == plan.live_segments()[-1] else 0.0
    return Share(segment, finite, loss, squares)


def undisturbed(graph: bytes, training: Training) -> list[Outcome]:
    """The outcome of each unit of a job whose graph has this digest, without a cut and without faults."""
    outcomes: list[Outcome] = []
    chain: Chain = ()
    while (unit := training.units().at(len(outcomes))) is not None:
        total = 0.0
        for one in range(PARAMETERS if unit.train else 0):
            total += _number(graph, chain, one)
        norm, scale = math.sqrt(total), 1.0
        if unit.train and training.clip is not None:
            scale = min(1.0, training.clip / (norm + 1e-6))
        outcomes.append(Outcome(scale, _number(graph, chain, -1), norm))
        chain = (*chain, (unit.number, scale))
    return outcomes


def chain_of(outcomes: list[Outcome], units: int) -> Chain:
    """The state after so many units."""
    return tuple((number, outcome.scale) for number, outcome in enumerate(outcomes[:units]))


@lru_cache(maxsize=4096)
def _number(graph: bytes, chain: Chain, what: int) -> float:
    text = f"({what}, {_written(chain)})"  # most of the time went into writing chains
    digest = blake2b(text.encode(), digest_size=6, key=graph).digest()
    return 3 * int.from_bytes(digest) / 2**48


@lru_cache(maxsize=1024)
def _written(chain: Chain) -> str:
    return repr(chain)
