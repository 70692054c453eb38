"""The validation loss of weights that came home, on more microbatches than the fleet evaluated.

Over slow lines the fleet evaluates few microbatches, which say little. The submitter has the data and, in
the end, the weights: where the model fits its machine, it evaluates more in a small share of the run's time.
"""

from __future__ import annotations

import time

from farflung.client.api.evaluations import MOST
from farflung.client.capture.prepared import Prepared
from farflung.client.output.records import HomeLosses
from farflung.client.run.microbatches import Microbatches
from farflung.client.run.result_check import evaluation_of, weights_of
from farflung.client.run.state_collector import ReceivedState
from farflung.errors import FarflungError
from farflung.protocol.messages import Planned
from farflung.runtime.training import Training
from farflung.schedule import Unit
from farflung.transport.timeouts import Timeouts

SHARE_OF_RUN = 0.02


def is_partly_evaluated(prepared: Prepared, training: Training, planned: Planned) -> bool:
    """Whether the fleet evaluates less than the job would have where lines are fast."""
    job = prepared.job
    is_reduced = 0 < planned.validation_microbatches < job.validation_microbatches
    return job.validation_batches == "auto" and (is_reduced or not training.validate_first)


def losses_at_home(
    prepared: Prepared,
    training: Training,
    state: ReceivedState,
    unit: Unit,
    run_seconds: float,
    timeouts: Timeouts,
    is_fresh: bool,
    first_seconds: float = 0.0,
) -> HomeLosses | None:
    """The losses of the weights that came home after evaluation `unit`, and of a fresh run's first weights.

    None if the model does not fit this machine, or no more microbatches than the fleet had can be evaluated
    in `SHARE_OF_RUN` of the run, while the broker, whose `timeouts` these are, waits. Without
    `first_seconds`, what one microbatch took here before, one is evaluated to find that out.
    """
    most_seconds = min(timeouts.comparison_seconds, SHARE_OF_RUN * run_seconds)
    if first_seconds > most_seconds:
        return None
    try:
        return _losses(prepared, training, state, unit, most_seconds, is_fresh)
    except (FarflungError, RuntimeError, MemoryError):  # the run's result does not depend on it
        return None


def _losses(
    prepared: Prepared,
    training: Training,
    state: ReceivedState,
    unit: Unit,
    most_seconds: float,
    is_fresh: bool,
) -> HomeLosses | None:
    from farflung.client.capture.check import unaffordable

    job, graph = prepared.job, prepared.graph
    if job.held_out is None or unaffordable(graph, job.microbatch_size):
        return None
    count = _fitting(prepared, training, state, unit, most_seconds, 1 + is_fresh)
    if count <= unit.microbatches:
        return None
    unit = unit._replace(microbatches=count)
    batches = [one.tensors for one in Microbatches(job, graph, count).load_unit(unit)]
    final = evaluation_of(prepared, training, dict(weights_of(prepared, state)), unit, count)(batches)
    initial = evaluation_of(prepared, training, prepared.state, unit, count)(batches) if is_fresh else None
    return HomeLosses(count, len(job.held_out) // job.microbatch_size, initial, final)


def _fitting(
    prepared: Prepared, training: Training, state: ReceivedState, unit: Unit, most_seconds: float, times: int
) -> int:
    """How many microbatches, at most `MOST`, can be evaluated so many `times` in what is left of the time."""
    job = prepared.job
    assert job.held_out is not None
    loader, one = Microbatches(job, prepared.graph, 1), unit._replace(microbatches=1)
    until = time.monotonic() + most_seconds
    evaluate = evaluation_of(prepared, training, dict(weights_of(prepared, state)), one, 1)
    for _ in range(2):  # the first one also prepares what the others need
        began = time.monotonic()
        evaluate([loader.load_unit(one)[0].tensors])
        ended = time.monotonic()
        if ended >= until:
            return 0
    fitting = int((until - ended) / times / max(ended - began, 1e-9))
    return min(MOST, len(job.held_out) // job.microbatch_size, fitting)
