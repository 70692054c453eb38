"""Run the planner in a process of its own, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from farflung.broker.core.events import (
    ConsiderPlan,
    PlanConsidered,
    PlanFailed,
    PlanLacks,
    PlanMade,
    RunPlanner,
)
from farflung.broker.planning.messages import (
    LENGTH_BYTES,
    Answer,
    Impossible,
    Lacking,
    PlanResult,
    Question,
    Searched,
)
from farflung.broker.survey.topology import MeasuredTopology
from farflung.errors import PlanError
from farflung.plans import Topology, arithmetic_of
from farflung.plans.wishes import DATA_SHEET_EFFICIENCY, MEASURED_EFFICIENCY
from farflung.transport.timeouts import Timeouts

PROGRAM = "farflung.broker.planning.process"  # keeps the planner's imports out of the broker

STEERING = "farflung.planner.codecs.tuner"

PROGRESS_SECONDS = 1.0
"""Minimum time between two progress reports that are passed on."""

Clock = Callable[[], float]
_Answer = TypeVar("_Answer")
_log = logging.getLogger("farflung.broker")


def ignore_progress(searched: Searched) -> None:
    """Ignore a progress report."""


async def plan(
    command: RunPlanner,
    graph: bytes,
    measured: MeasuredTopology | None,
    timeouts: Timeouts,
    clock: Clock,
    on_progress: Callable[[Searched], None] = ignore_progress,
) -> PlanMade | PlanFailed | PlanLacks:
    """Plan a job with this OP-DAG. A failure becomes a `PlanFailed` whose reason is shown to the submitter.

    `measured` is the measured topology of the command's workers; a topology that the job brings takes
    precedence. `on_progress` is called with progress reports.
    """
    question = question_for(command, graph, measured, timeouts.search_seconds)
    try:
        answer = await _ask(msgspec.msgpack.encode(question), timeouts.planning_seconds, on_progress)
    except PlanError as error:
        return PlanFailed(clock(), command.job, command.attempt, str(error))
    if isinstance(answer, PlanResult):
        if answer.steering:
            await asyncio.to_thread(import_module, STEERING)  # imports NumPy, which takes a while
        return PlanMade(clock(), command.job, command.attempt, answer)
    if isinstance(answer, Lacking):
        return PlanLacks(clock(), command.job, command.attempt, answer.unable)
    if isinstance(answer, Impossible):
        return PlanFailed(clock(), command.job, command.attempt, answer.reason)
    _log.error("the planner failed on %s\n%s", command.job, answer.traceback)
    reason = f"the planner failed on this job ({answer.error}): see the broker's log"
    return PlanFailed(clock(), command.job, command.attempt, reason)


async def consider(
    command: ConsiderPlan, graph: bytes, measured: MeasuredTopology | None, timeouts: Timeouts, clock: Clock
) -> PlanConsidered:
    """Look for a better plan of a job that runs; see `plan`."""
    if command.wishes.topology is None and measured is None:
        reason = "the links between its workers were not measured"
        return PlanConsidered(clock(), command.job, command.attempt, None, reason=reason)
    found = await plan(command, graph, measured, timeouts, clock)
    if isinstance(found, PlanMade):
        seconds = found.result.current_seconds
        return PlanConsidered(found.now, command.job, command.attempt, found.result, seconds)
    reason = found.reason if isinstance(found, PlanFailed) else "too few workers can run it"
    return PlanConsidered(found.now, command.job, command.attempt, None, reason=reason)


def _slowed(topology: Topology | None, slow: Mapping[str, float]) -> Topology | None:
    """The topology with slow workers as slow as they are."""
    if topology is None or not slow:
        return topology
    workers = [
        msgspec.structs.replace(one, tflops=one.tflops / slow.get(one.id, 1.0)) for one in topology.workers
    ]
    return msgspec.structs.replace(topology, workers=workers)


def question_for(
    command: RunPlanner, graph: bytes, measured: MeasuredTopology | None, search_seconds: float
) -> Question:
    """What the planner is asked; a topology that the job brings takes precedence over the measured one."""
    wishes = command.wishes
    is_own = wishes.topology is not None or measured is None
    topology = wishes.topology if measured is None or is_own else measured.topology
    arithmetic = arithmetic_of(command.training.precision, command.training.deterministic)
    return Question(
        graph=graph,
        training=command.training,
        workers=list(command.workers),
        count=command.count,
        scheduler=wishes.scheduler,
        topology=_slowed(None if topology is None else topology.computing(arithmetic), command.slow),
        efficiency=wishes.efficiency or (DATA_SHEET_EFFICIENCY if is_own else MEASURED_EFFICIENCY),
        recompute=wishes.recompute,
        measured=not is_own,
        assumed=[] if measured is None or is_own else list(measured.assumed),
        search_seconds=search_seconds,
        abilities=dict(command.abilities),
        codecs=wishes.codecs,
        copies=command.copies,
        replicas=wishes.replicas,
        home=wishes.home,
        validation_share=wishes.validation_share,
        current=command.current if isinstance(command, ConsiderPlan) else None,
    )


async def _ask(question: bytes, limit_seconds: float, on_progress: Callable[[Searched], None]) -> Answer:
    kinds: Any = Answer
    found: Answer = await ask_process(PROGRAM, question, kinds, limit_seconds, on_progress)
    return found


async def ask_process(
    program: str,
    question: bytes,
    kind: type[_Answer],
    limit_seconds: float,
    on_progress: Callable[[Searched], None] = ignore_progress,
) -> _Answer:
    """Ask a new process of the module `program`; PlanError if it gives no answer of this kind."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    try:
        async with asyncio.timeout(limit_seconds):
            _, answer, errors = await asyncio.gather(
                _send_question(process.stdin, question),
                _read_answer(process.stdout, kind, on_progress),
                process.stderr.read(),
            )
            code = await process.wait()
    except TimeoutError:
        raise PlanError(
            f"no plan within {limit_seconds:.0f} s: model or fleet are too large for the broker's machine"
        ) from None
    except msgspec.ValidationError as error:  # e.g. a step of 10^15 s on extremely slow devices
        raise PlanError(f"the plan cannot be sent: {error}") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code or answer is None:
        _log.error("the planner's process ended: %s", errors.decode(errors="replace")[-2000:])
        raise PlanError(f"the planner's process {_exit_text(code)}: see the broker's log")
    return answer


async def _send_question(stream: asyncio.StreamWriter, question: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the process ended; its stderr says why
        stream.write(question)
        await stream.drain()
    stream.close()


async def _read_answer(
    stream: asyncio.StreamReader, kind: type[_Answer], on_progress: Callable[[Searched], None]
) -> _Answer | None:
    """Read progress reports up to the answer; None if the stream ends without one."""
    next_report = 0.0
    while True:
        try:
            length = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big")
            body = await stream.readexactly(length)
        except asyncio.IncompleteReadError:
            return None
        message = msgspec.msgpack.decode(body, type=Searched | kind)
        if not isinstance(message, Searched):
            return message
        if time.monotonic() >= next_report:  # limit the rate, whatever the process sends
            next_report = time.monotonic() + PROGRESS_SECONDS
            on_progress(message)


def _exit_text(code: int) -> str:
    return f"was killed by signal {-code} (out of memory?)" if code < 0 else f"exited with code {code}"
