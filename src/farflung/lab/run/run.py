"""Run a training in a lab: network, fleet and submitter, for as long as the run lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import LabError, RunFailed
from farflung.lab.network import Network
from farflung.lab.run.emulation import EmulatedJob
from farflung.lab.run.fleet import LabFleet
from farflung.lab.run.layout import SUBMITTER, on_this_machine
from farflung.lab.run.report import LabReport, keep, run_in
from farflung.lab.run.submitter import LabSubmitter
from farflung.opdag.graph import Precision
from farflung.plans import Topology, encode_topology, subtopology
from farflung.plans.wishes import AUTO
from farflung.transport.timeouts import Timeouts


@dataclass(frozen=True)
class Request:
    """What to train, and on which workers.

    The first `workers` workers of the topology take part. `out` is the run folder. `steps`, `text` and
    `precision` are as for `farflung train`. With `as_json` the submitter ends with a JSON document, which
    `Outcome` then holds. With `emulated`, devices are emulated and `topology` is slowed down for them.
    `scheduler` plans on the topology, whose devices then sustain all of their TFLOP/s; `codecs`, `sum_codec`,
    `replicas` and `inner_steps` are as for `farflung train`.
    """

    job: Path
    topology: Topology
    workers: int
    out: Path
    steps: int | None = None
    text: Path | None = None
    precision: Precision | None = None
    as_json: bool = False
    emulated: EmulatedJob | None = None
    scheduler: str = AUTO
    codecs: tuple[str, ...] = ()
    replicas: str | None = None
    inner_steps: int | None = None
    sum_codec: str | None = None

    def known(self) -> Topology:
        """The topology of the workers that take part, as the planner gets it."""
        part = subtopology(self.topology, list(range(self.workers)))
        return on_this_machine(part) if self.emulated is None else self.emulated.emulation.sustained_by(part)


@dataclass(frozen=True)
class Outcome:
    """The submitter's exit code, its standard output if captured, and the lab's report."""

    exit_code: int
    output: bytes
    report: LabReport


class LabRun:
    """One run in a lab that is laid out. `tell` takes lines for the user."""

    def __init__(self, network: Network, request: Request, tell: Callable[[str], None]) -> None:
        self._network = network
        self._request = request
        self._reply = tell
        self._fleet: LabFleet | None = None
        self._submitter: LabSubmitter | None = None
        self._task: asyncio.Task[Outcome] | None = None
        self._lost = ""

    async def run(self) -> Outcome:
        """Train until the run ends in any state; afterwards no process of the fleet is left.

        If the submitter made a run folder, it also gets `lab.json` and the fleet's logs in `logs`.

        Raises
        ------
        RunFailed
            The fleet could not start, or lost a process without the submitter noticing.
        LabError
            The lab ended before the run.
        """
        self._task = asyncio.create_task(self._train())
        ended = asyncio.create_task(self._network.ended())
        try:
            await asyncio.wait((self._task, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await self._drop()
                raise LabError(f"lab {self._network.name} {ended.result()} while the run lasted")
            return await self._task
        finally:
            ended.cancel()

    def interrupt(self) -> None:
        """Stop the run for the user: by the submitter, or at once if it has not begun."""
        if self._submitter is not None:
            self._submitter.interrupt()
        elif self._task is not None:
            self._task.cancel()

    async def _drop(self) -> None:
        """Kill the fleet when the network is gone, because no process can then end in order."""
        assert self._task is not None
        if self._submitter is not None:
            self._submitter.kill()
        if self._fleet is not None:
            self._fleet.kill()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _train(self) -> Outcome:
        request, report = self._request, None
        before = run_in(request.out)
        specs = request.topology.workers[: request.workers]
        emulation = request.emulated.emulation if request.emulated else None
        async with LabFleet(self._network, specs, emulation.tflops if emulation else None) as fleet:
            self._fleet = fleet
            try:
                code, output = await self._submit(fleet)
                report = LabReport.of(request.topology, self._network.stats(), emulation)
            finally:
                if not (has_run := run_in(request.out) not in (None, before)):
                    fleet.kill()  # no process has anything left to finish
                await fleet.stop()
                if has_run:
                    keep(request.out, fleet.logs, report)
        if self._lost:
            raise RunFailed(self._lost)
        return Outcome(code, output, report)

    async def _submit(self, fleet: LabFleet) -> tuple[int, bytes]:
        submitter = await LabSubmitter.start(
            self._network.command(SUBMITTER, []),
            self._arguments(fleet),
            fleet.token.text,
            captured=self._request.as_json,
        )
        self._submitter = submitter
        watching = None
        try:
            await fleet.start_workers()
            watching = asyncio.create_task(self._watch(fleet, submitter))
            return await submitter.ended(), await submitter.output()
        finally:
            if watching is not None:
                watching.cancel()
            await submitter.stop()

    def _arguments(self, fleet: LabFleet) -> list[str]:
        request = self._request
        known = request.known()
        arguments = [str(request.job), "--broker", fleet.address, "--folder", str(fleet.submitter_folder)]
        arguments += ["--workers", str(request.workers), "--wait", "--out", str(request.out)]
        file = fleet.keep("topology.json", encode_topology(known))
        arguments += ["--topology", str(file), "--scheduler", request.scheduler, "--efficiency", "1"]
        arguments += [] if request.steps is None else ["--steps", str(request.steps)]
        arguments += [] if request.text is None else ["--text", str(request.text)]
        arguments += [] if request.precision is None else ["--precision", request.precision]
        arguments += [] if request.replicas is None else ["--replicas", request.replicas]
        arguments += [] if request.inner_steps is None else ["--inner-steps", str(request.inner_steps)]
        arguments += [] if request.sum_codec is None else ["--sum-codec", request.sum_codec]
        for codec in request.codecs:
            arguments += ["--codec", codec]
        if request.emulated is not None:
            arguments += ["--emulated", str(fleet.keep("program", request.emulated.program))]
        return arguments + ["--json"] * request.as_json

    async def _watch(self, fleet: LabFleet, submitter: LabSubmitter) -> None:
        """Handle the loss of a process; the submitter first gets time to receive the broker's reason."""
        lost: list[str] = []
        await fleet.watch(lost.append)
        self._reply(lost[0])
        await asyncio.sleep(Timeouts().suspect_seconds)
        self._lost = lost[0]
        await submitter.stop()
