"""Has a job planned where that can delay nobody: in a process of its own, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

import msgspec

from farflung.broker.events import PlanFailed, PlanLacks, PlanMade, RunPlanner
from farflung.broker.measured import Measured
from farflung.broker.questions import Answer, Impossible, Lacking, Made, Question
from farflung.errors import PlanError
from farflung.plan.wishes import DATA_SHEET_EFFICIENCY, MEASURED_EFFICIENCY
from farflung.transport.timeouts import Timeouts

PROGRAM = "farflung.broker.planner_process"  # loads what a broker that only keeps members does not need

STEERING = "farflung.planner.compression.steering"

Clock = Callable[[], float]
_log = logging.getLogger("farflung.broker")


async def plan(
    command: RunPlanner, measured: Measured | None, timeouts: Timeouts, clock: Clock
) -> PlanMade | PlanFailed | PlanLacks:
    """Plan a job; what goes wrong becomes the reason that its submitter reads.

    `measured` is what the fleet knows of the command's workers; a topology of the job's own counts more.
    """
    question = _question(command, measured, timeouts.search_seconds)
    try:
        answer = await _ask(msgspec.msgpack.encode(question), timeouts.planning_seconds)
    except PlanError as error:
        return PlanFailed(clock(), command.job, command.attempt, str(error))
    if isinstance(answer, Made):
        made = (answer.plan, answer.programs, answer.owned, answer.prediction, answer.unable, answer.notes)
        if answer.steering:
            await asyncio.to_thread(import_module, STEERING)  # with NumPy, which takes a while
        return PlanMade(clock(), command.job, command.attempt, *made, answer.steering)
    if isinstance(answer, Lacking):
        return PlanLacks(clock(), command.job, command.attempt, answer.unable)
    if isinstance(answer, Impossible):
        return PlanFailed(clock(), command.job, command.attempt, answer.reason)
    _log.error("the planner failed on %s\n%s", command.job, answer.traceback)
    reason = f"the planner broke on this job ({answer.error}): see the broker's log"
    return PlanFailed(clock(), command.job, command.attempt, reason)


def _question(command: RunPlanner, measured: Measured | None, search_seconds: float) -> Question:
    wishes = command.wishes
    is_own = wishes.topology is not None or measured is None
    return Question(
        graph=command.graph,
        training=command.training,
        workers=list(command.workers),
        count=command.count,
        scheduler=wishes.scheduler,
        topology=wishes.topology if measured is None or is_own else measured.topology,
        efficiency=wishes.efficiency or (DATA_SHEET_EFFICIENCY if is_own else MEASURED_EFFICIENCY),
        recompute=wishes.recompute,
        measured=not is_own,
        assumed=[] if measured is None or is_own else list(measured.assumed),
        search_seconds=search_seconds,
        abilities=dict(command.abilities),
        codecs=wishes.codecs,
    )


async def _ask(question: bytes, limit_seconds: float) -> Answer:
    """Put a question to a new process; PlanError if it gives no answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_seconds):
            output, said = await process.communicate(question)
    except TimeoutError:
        raise PlanError(
            f"no plan within {limit_seconds:.0f} s: model or fleet are too large for the broker's machine"
        ) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        _log.error("the planner's process ended: %s", said.decode(errors="replace")[-2000:])
        raise PlanError(f"the planner's process {_how(process.returncode)}: see the broker's log")
    try:
        return msgspec.msgpack.decode(output, type=Answer)
    except msgspec.ValidationError as error:  # of a step of 10^15 s, say, on devices that hardly compute
        raise PlanError(f"no such plan can be told: {error}") from None


def _how(code: int) -> str:
    return f"was killed by signal {-code} (out of memory?)" if code < 0 else f"exited with code {code}"
