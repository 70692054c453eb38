"""Data that stays at home (`Job(keep_home=)`): what the broker is asked for, and what is never sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farflung.errors import JobError, PlanError
from farflung.opdag.graph import Graph
from farflung.opdag.raw_data import inputs_of_kinds, words_of
from farflung.plans import FEEDER, Plan
from farflung.plans.wishes import NOTHING_AT_HOME, KeepHome
from farflung.text import and_more

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.options.target import Target

NAMED = 3
"""How many workers or inputs a message names at most."""


def require_home(job: Job, target: Target, submitter: str) -> None:
    """Check that a job which keeps data at home has home workers, and that they have something to keep.

    All workers of a local fleet are at home. Raises JobError with what to add.
    """
    home = target.wishes.home.workers
    if target.local:
        return
    if job.keep_home and not home:
        raise JobError(
            "Job(keep_home=) needs a worker at home: add --with-local-worker, or --home with the ids of"
            f" workers that you have joined with `farflung join --home-of {submitter}`"
        )
    if home and not job.keep_home:
        raise JobError(
            f"home workers are named ({and_more(list(home), NAMED)}), but the job keeps nothing at home: set"
            ' Job(keep_home=["inputs", "targets"])'
        )


def kept_by(job: Job, home: KeepHome, is_local: bool) -> KeepHome:
    """What a job keeps at home with these workers; nothing in a local fleet, which is all at home."""
    return NOTHING_AT_HOME if is_local else KeepHome(tuple(job.keep_home), home.workers)


def require_kept(graph: Graph, home: KeepHome) -> None:
    """Raise JobError if a graph has no inputs of the kinds that are to stay at home."""
    try:
        inputs_of_kinds(graph, home.data)
    except PlanError as error:
        raise JobError(str(error)) from None


def require_fed_at_home(plan: Plan, graph: Graph, home: KeepHome) -> None:
    """Refuse a plan that would have this process send what stays at home to another worker.

    The broker checks its plans, too. But this process has the data, so it need not believe that.

    Raises
    ------
    JobError
        The plan has such a worker; nothing was sent to it.
    """
    kept = inputs_of_kinds(graph, home.data)
    fed = {plan.worker_of(edge.target) for edge in plan.edges if edge.source == FEEDER and edge.value in kept}
    if strangers := sorted(fed - set(home.workers)):
        raise JobError(
            f"the broker planned to send {words_of(home.data)} to {and_more(strangers, NAMED)}, not at"
            " home, so nothing was sent: its farflung is too old or not to be trusted, use another broker"
        )
