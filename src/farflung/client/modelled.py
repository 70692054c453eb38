"""A job's model as planners see it: captured without computing, with the names of what its nodes own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from farflung.client.job import Job
from farflung.errors import JobError
from farflung.opdag.graph import Graph
from farflung.planner.able import Needs
from farflung.planner.draws import draws
from farflung.workload import Workload, workload_of

MOST_ALTERNATIVES = 6
_MOST_MICROBATCHES = 4096

Microbatches = int | Literal["auto"] | None


@dataclass(frozen=True)
class Model:
    """A model to plan, in a job's number of microbatches and, as `alternatives`, in others.

    `holds` names, for each node, the parameters that it is the first to read; `needs` are its ops,
    and `draws` says that some of them draw random numbers.
    """

    workload: Workload
    alternatives: tuple[Workload, ...]
    holds: tuple[tuple[str, ...], ...]
    needs: Needs
    draws: bool


def number_of(job: Job, microbatches: Microbatches) -> int:
    """Into how many microbatches a batch goes; JobError where it has no such equal parts."""
    count = microbatches if isinstance(microbatches, int) else job.microbatches
    if count < 1 or job.batch % count:
        raise JobError(
            f"a batch of {job.batch} cannot be had in {count} equal microbatches: choose a divisor"
        )
    return count


def model_of(job: Job, microbatches: Microbatches = None, profile: Path | None = None) -> Model:
    """The model of a job, whose own number of microbatches another takes the place of, or "auto" of several.

    With the file of a device profile its nodes count by the time they took there.

    Raises
    ------
    CaptureError
        The model cannot be captured.
    JobError
        The batch has no such equal parts.
    ProfileError
        The profile cannot be read, or is of another model or of microbatches of another size.
    """
    from farflung.client.check import capture_shapes

    if profile is not None and microbatches == "auto":
        raise JobError("a profile is of one size of microbatches: give a number of them, not auto")
    count = number_of(job, microbatches)
    graph = capture_shapes(job).graph
    others = _near(job.batch, count) if microbatches == "auto" else []
    own, *alternatives = (
        workload_of(graph, number, job.batch // number, job.name or "job", job.optimizer.moments)
        for number in (count, *others)
    )
    if profile is not None:
        own, alternatives = _weighed(own, graph, profile), []
    return Model(own, tuple(alternatives), _first_read(graph), Needs.of(graph), draws(graph))


def _weighed(workload: Workload, graph: Graph, path: Path) -> Workload:
    from farflung.workload.profile import read_profile, weighed

    return weighed(workload, graph, read_profile(path))


def _near(batch: int, count: int) -> list[int]:
    """Divisors of a batch other than `count`, those nearest to it in ratio."""
    divisors = [n for n in range(1, min(batch, _MOST_MICROBATCHES) + 1) if batch % n == 0 and n != count]
    return sorted(sorted(divisors, key=lambda n: max(n / count, count / n))[:MOST_ALTERNATIVES])


def _first_read(graph: Graph) -> tuple[tuple[str, ...], ...]:
    names = {entry.value: entry.name for entry in graph.inputs_of("parameter")}
    return tuple(
        tuple(names.pop(value) for value in dict.fromkeys(node.reads()) if value in names)
        for node in graph.nodes
    )
