"""A plan as a table: which segment runs where, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from farflung.text import and_more, count_of, format_bytes, format_flops, format_seconds, printable

if TYPE_CHECKING:
    from rich.table import Table

    from farflung.plans import Plan, Prediction
    from farflung.protocol.messages import CodecsChosen, Planned


class PlanRow(NamedTuple):
    """One segment as text; the bytes are what it sends for one microbatch."""

    segment: str
    worker: str
    nodes: int
    parameters: str
    work: str
    share: str
    bytes_out: str


def plan_rows(plan: Plan) -> list[PlanRow]:
    """One row per segment, with its share of the model's FLOPs; each replica has the whole model."""
    placed = [placement for placement in plan.placements if placement.workers]
    total = sum(placement.flops for placement in placed) / len(plan.live_pipelines()) or 1
    rows = []
    for placement in placed:
        bytes_out = sum(edge.bytes for edge in plan.edges if edge.source == placement.segment)
        rows.append(
            PlanRow(
                segment=str(placement.segment),
                worker=printable(placement.worker),
                nodes=placement.nodes,
                parameters=format_bytes(placement.parameter_bytes),
                work=format_flops(placement.flops),
                share=f"{placement.flops / total:.0%}",
                bytes_out=format_bytes(bytes_out),
            )
        )
    return rows


def planned_lines(planned: Planned) -> list[str]:
    """Lines that accompany a plan's table.

    They name the workers that lack ops of the model, the predicted step time, and the plan's caveats.
    """
    out = [printable(f"left out: {worker}: {why}") for worker, why in planned.unable.items()]
    notes = [printable(f"note: {words}") for words in planned.notes]
    is_new = planned.attempt == 1 or planned.prediction is not None  # else the plan of before, with others
    predicted = prediction_lines(planned.prediction) if is_new else []
    return [*out, *replica_lines(planned.plan), *predicted, *notes]


def replica_lines(plan: Plan) -> list[str]:
    """Which segments are which replica of the model, and its part of a step; nothing for one."""
    if not plan.pipelines:
        return []
    found, first = [], 0
    for one in plan.pipelines:
        last = first + one.segments - 1
        where = f"segment {first}" if one.segments == 1 else f"segments {first} to {last}"
        if one.microbatches:
            found.append(f"{where}: {count_of(one.microbatches, 'microbatch', 'microbatches')}")
        first = last + 1
    microbatches = count_of(plan.microbatches, "microbatch", "microbatches")
    if len(found) == 1:
        return [f"one replica is left, which runs the {microbatches} of a step ({found[0]})"]
    lines = [f"{len(found)} replicas share the {microbatches} of a step ({'; '.join(found)})"]
    what = "sums of their gradients" if plan.inner_steps == 1 else "merges"
    if plan.inner_steps > 1:
        lines.append(f"they train apart, and merge after each {plan.inner_steps} steps")
    if plan.has_coded_sums and any(one.crosses(one.owner, one.owner) for one in plan.sums):
        lines.append(f"{what} are written by {plan.sum_codec} between sites")
    return lines


def chosen_lines(chosen: CodecsChosen) -> list[str]:
    """Lines about links whose codec pair changed, the reason, and warnings."""
    changes = [
        printable(f"after step {chosen.step}: {one.source} -> {one.target} uses {one.codec}: {one.reason}")
        for one in chosen.changes
    ]
    return [*changes, *(printable(f"note: {words}") for words in chosen.words)]


def spare_words(spare: Sequence[str], asked: int, brief: bool) -> str:
    """Why these workers have no part in a plan; `asked` is how many it had to use, 0 if the planner chose.

    Of a `brief` step the simulation leaves out so much that it says nothing about them.
    """
    if brief and not asked:
        return f"{and_more(spare)} (--workers N uses exactly N)"
    if asked:
        why = f"{count_of(asked, 'worker')} {'were' if asked > 1 else 'was'} asked for"
    else:
        why = f"a step is shorter without {'them' if len(spare) > 1 else 'it'} (--workers N uses exactly N)"
    return f"{and_more(spare)}: {why}"


def prediction_lines(prediction: Prediction | None) -> list[str]:
    """The predicted step time and bottleneck, in a few lines."""
    if prediction is None:
        return [
            "these workers and their links are not measured yet: each has about the same share of the work,"
            " and no step time is predicted"
        ]
    step = f"{format_seconds(prediction.step_seconds)} a step, limited by {prediction.bottleneck}"
    if prediction.brief:
        step = "no step time is predicted"
    lines = [f"planned by {prediction.scheduler}: {step}"]
    if prediction.left_out:
        lines.append(f"left out: {spare_words(prediction.left_out, prediction.asked, prediction.brief)}")
    return lines + [f"note: {words}" for words in prediction.notes]


HEADINGS = ("segment", "worker", "nodes", "parameters", "work a microbatch", "share", "bytes out")


def plan_table(plan: Plan) -> Table:
    """The plan as a table for a terminal."""
    from rich.table import Table

    table = Table(caption=f"{plan.microbatches} microbatches a step, window {plan.window}", box=None)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "worker" else "right")
    for row in plan_rows(plan):
        table.add_row(*map(str, row))
    return table
