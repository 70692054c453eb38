"""Links written as the user says: one rung for every link, and others for those that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farflung.codec.catalogue import declared
from farflung.errors import CodecError, PlanError
from farflung.plan import CodecWishes, LinkCodec, Plan, Topology, joined_part
from farflung.plan.rung import DENSE, Rung
from farflung.planner.assignment import Options, Schedule, Scheduler
from farflung.planner.compression.planned import compressed
from farflung.planner.compression.policies import traffic
from farflung.simulator import Conditions
from farflung.workload import Workload


def fixed(plan: Plan, wishes: CodecWishes) -> tuple[LinkCodec, ...]:
    """The codec of each link of `plan` that is not dense."""
    own = {(wish.source, wish.target): wish.rung for wish in wishes.links}
    links = traffic(plan)
    chosen = {link: Rung.of(own.get(link, wishes.every)) for link in sorted(links)}
    return tuple(
        LinkCodec(*link, rung.name, max(1.0, links[link].ratio(rung)))
        for link, rung in chosen.items()
        if rung != Rung(DENSE, DENSE)
    )


def scheduler_for(wishes: CodecWishes, scheduler: Scheduler, conditions: Conditions) -> Scheduler:
    """The scheduler, asked with what these codecs will save; itself where they save nothing."""
    if not wishes.codebook:
        return scheduler

    def policy(plan: Plan, topology: Topology) -> tuple[LinkCodec, ...]:
        return fixed(plan, wishes)

    def search(topology: Topology, workload: Workload, options: Options) -> Schedule:
        rung = Rung.of(wishes.every)
        speedups = sorted({1.0, min(declared(name).ratio for name in rung)})
        seconds = None if options.seconds is None else options.seconds / len(speedups)
        joined = joined_part(topology)[0]
        return compressed(
            scheduler, policy, joined, workload, replace(options, seconds=seconds), conditions, speedups
        )

    return search


def require_known(wishes: CodecWishes, workers: Sequence[str], codebook: Sequence[str]) -> None:
    """Refuse what no plan can keep.

    Raises
    ------
    PlanError
        There is no such codec, the job's codebook lacks it, or a link is named that ends at nobody.
    """
    for name in wishes.codebook:
        try:
            declared(name)
        except CodecError as error:
            raise PlanError(str(error)) from None
        if name not in codebook:
            raise PlanError(f"links are to be written with {name}, which is not in the job's codebook")
    for wish in wishes.links:
        for end in (wish.source, wish.target):
            if end not in workers:
                raise PlanError(
                    f"the codec {wish.rung} is for the link {wish.source} -> {wish.target}, and there is no"
                    f" worker {end}: the workers are {', '.join(workers[:8])}"
                )


def unused(plan: Plan, wishes: CodecWishes) -> list[str]:
    """For the user: links that were given a codec and over which this plan sends nothing."""
    links = traffic(plan)
    return [
        f"the plan sends nothing from {wish.source} to {wish.target}: its codec {wish.rung} is not used"
        for wish in wishes.links
        if (wish.source, wish.target) not in links
    ]
