"""Who is counted: a system's name, and the numbers that it means.

* `dense`, `int8`, `axes3/axes30-dithered`: farflung with that codec pair on every link, cut in four.
* `8=int8`: cut in eight. `four-homes=auto`, `two-sites=adatopk:4`: cut, placed and coded as farflung's
  planner does for a testbed whose devices sustain what its file says.
* `plan:FILE`: cut and coded as the plan of a run (`plan.json`) says.
* `stock-bf16`, `8=stock-int8`: a pipeline of `torch.distributed.pipelining` whose boundaries its user rounds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
from benchmarks.race.counting.boundary import KINDS, Kind
from benchmarks.race.counting.corpus import Corpus
from benchmarks.race.counting.placed import placed
from benchmarks.race.course import Batches, Course

from farflung.errors import PlanError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner import PlannedJob, place, plan_graph
from farflung.planner.assignment import Options
from farflung.planner.codecs.wishes import fixed, require_known, scheduler_for
from farflung.planner.registry import scheduler
from farflung.plans import CodecWishes, Plan, read_plan
from farflung.plans.codec_pair import CODEC_FORMAT, codebook_of
from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed
from farflung.plans.wishes import AUTO
from farflung.simulator import Conditions
from farflung.workload import workload_of

STAGES = 4
STOCK = "stock-"
PLAN_FILE = "plan:"


class Ended(msgspec.Struct, frozen=True):
    """What of a plan changes a number: nodes of each segment, and (source, target, pair) of coded links."""

    nodes: list[int]
    links: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Entrant:
    """A system that is counted: stages of a stock pipeline with `rounding`, or farflung with `planned`."""

    name: str
    stages: int
    rounding: Kind = "dense"
    planned: PlannedJob | None = None
    graph: Graph | None = None
    codebook: tuple[str, ...] = ()

    def key(self, course: Course, text: str, seed: int) -> str:
        """The digest of all that is trained: equal keys mean equal numbers on an equal machine."""
        numbers: object = (self.stages, self.rounding)
        if self.planned is not None:
            numbers = (numbers_of(self.planned.plan), CODEC_FORMAT)
        return _digest((trained(course, seed), text, numbers))

    def links(self) -> list[tuple[int, int, str]]:
        """(source, target, codec pair) of the coded links between segments."""
        return [] if self.planned is None else numbers_of(self.planned.plan).links


def trained(course: Course, seed: int) -> dict[str, object]:
    """What of a course changes a number of a run without replicas, as far as it is not the default.

    So a field that a course gets later changes no key of what was counted before.
    """
    given = msgspec.structs.replace(course, seed=seed, codec="dense", replicas=1, sum_codec="dense")
    usual = msgspec.to_builtins(Course())
    return {name: value for name, value in msgspec.to_builtins(given).items() if value != usual[name]}


def of_plan(plan: Plan, course: Course, corpus: Corpus) -> Entrant:
    """The system that a run's plan means, by the name of its codec pairs."""
    graph = _graph(msgspec.structs.replace(course, codec="dense"), corpus)
    pairs = sorted({link.codec for link in plan.codecs}) or ["dense"]
    planned = placed(graph, plan, course.microbatch_size)
    name = ",".join(pairs).replace("/", "+")
    return Entrant(name, len(plan.placements), planned=planned, graph=graph, codebook=codebook_of(pairs))


def numbers_of(plan: Plan) -> Ended:
    """What of a plan without replicas changes a number."""
    segment = {placement.worker: placement.segment for placement in plan.placements}
    links = sorted((segment[one.source], segment[one.target], one.codec) for one in plan.codecs)
    return Ended([placement.nodes for placement in plan.placements], links)


def entrant(name: str, course: Course, corpus: Corpus) -> Entrant:
    """The system of that name.

    Raises
    ------
    PlanError, CodecError
        There is no such testbed, number of stages or codec; it comes before anything is trained.
    """
    if name.startswith(PLAN_FILE):
        return replace(of_plan(read_plan(Path(name.removeprefix(PLAN_FILE))), course, corpus), name=name)
    where, equals, codec = name.partition("=")
    if not equals:
        where, codec = str(STAGES), name
    if where.isdecimal():
        count = int(where)
        if not 1 <= count <= course.layers:
            raise PlanError(f"{name}: expected 1 to {course.layers} stages, found {count}")
    elif where not in TESTBEDS:
        raise PlanError(f"{name}: expected a number of stages or a testbed ({', '.join(TESTBEDS)})")
    if codec.startswith(STOCK):
        kind = next((kind for kind in KINDS if kind == codec.removeprefix(STOCK)), None)
        if kind is None or not where.isdecimal():
            raise PlanError(f"{name}: expected NUMBER={STOCK} with one of {', '.join(KINDS)}")
        return Entrant(name, int(where), kind)
    wishes = CodecWishes(codec)
    require_known(wishes, [], wishes.codebook)
    graph = _graph(course, corpus)
    planned = _cut(graph, course, int(where), wishes, name) if where.isdecimal() else None
    planned = planned or _planned(graph, course, where, wishes)
    return Entrant(name, len(planned.segments), planned=planned, graph=graph, codebook=wishes.codebook)


@cache
def _graph(course: Course, corpus: Corpus) -> Graph:
    batch = Batches(course, corpus).step(0)
    return capture(
        course.model(), {name: part[: course.microbatch_size] for name, part in batch.items()}
    ).graph


def _cut(graph: Graph, course: Course, count: int, wishes: CodecWishes, name: str) -> PlannedJob:
    """Equal segments, each with the same codec pair on its links."""
    if not wishes.is_fixed:
        raise PlanError(
            f"{name}: {wishes.every} chooses by links: name a testbed, as in four-homes={wishes.every}"
        )
    workers = [f"worker-{number}" for number in range(count)]
    planned = plan_graph(graph, course.microbatches, course.microbatch_size, workers)
    coded = msgspec.structs.replace(planned.plan, codecs=list(fixed(planned.plan, wishes)))
    return PlannedJob(coded, planned.segments)


def _planned(graph: Graph, course: Course, testbed: str, wishes: CodecWishes) -> PlannedJob:
    """As farflung's planner cuts, places and codes for a testbed."""
    conditions = Conditions(efficiency=1.0)
    search = scheduler_for(wishes, scheduler(AUTO), conditions)
    workload = workload_of(graph, course.microbatches, course.microbatch_size)
    schedule = search(load_testbed(testbed), workload, Options(efficiency=1.0))
    return place(graph, schedule.assignment, course.microbatch_size)


def _digest(given: object) -> str:
    return hashlib.sha256(msgspec.json.encode(given)).hexdigest()[:16]
