"""What the event loop and the compute thread hand each other about a device that is held."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.worker.loads import fresh, limits, load

from farflung.errors import DeviceFailed, DeviceHeld
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.transport.timeouts import Timeouts
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.outcomes import Outcome
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.computing.task_deadlines import Doing, of_state
from farflung.worker.device_watch import DeviceWatch
from farflung.worker.events import Attempt, ComputeFailed
from farflung.worker.records import State

LENT_FOR_EVER = Doing("the forward pass", float("inf"))


class AtAPass:
    """A compute thread inside an op that does not end, of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.stopwatch = self
        self.doing = LENT_FOR_EVER
        self.failure: DeviceFailed | None = None


async def watched(thread: AtAPass, wanted: State) -> None:
    """The watch over that thread, without a port or a broker."""
    timeouts = Timeouts(0.01)
    watch = DeviceWatch(cast(Any, thread), lambda: wanted, lambda message: None, lambda: timeouts)
    await watch.watch()


@pytest.mark.parametrize("wanted", [State("b"), State("b", load=load(attempt=6))])
def test_a_device_that_is_held_for_a_job_that_is_over_is_given_up(wanted: State) -> None:
    with pytest.raises(DeviceHeld, match="the forward pass has taken over 0 s, for a job that is over"):
        asyncio.run(asyncio.wait_for(watched(AtAPass(("job-1", 5)), wanted), 60))


def test_a_device_that_failed_ends_the_worker() -> None:
    async def failed() -> None:
        thread = AtAPass(("job-1", 5))
        thread.failure = DeviceFailed("the device failed: it fell off; restart farflung join")
        await watched(thread, State("b", load=load()))

    with pytest.raises(DeviceFailed, match="it fell off"):
        asyncio.run(asyncio.wait_for(failed(), 60))


def test_verifying_copying_and_handing_out_are_given_time_by_the_size_of_the_parameters() -> None:
    outcomes: list[Outcome] = []
    seen: list[Doing | None] = []
    thread = ComputeThread("b", 10**9, EmulatedBackend(1.0), outcomes.append, lambda parcel: None)

    class Watched(StateReceiver):
        def verify(self) -> str:
            seen.append(thread.stopwatch.doing)
            return "it stops here"

    receiver = Watched(load(), [1], 10**6, fresh)
    thread.prepare(load(), receiver, limits(chore_seconds=0.0))
    next(thread._pending(wait=True))  # its program is empty

    def look(*arguments: object) -> None:
        seen.append(thread.stopwatch.doing)

    job = SimpleNamespace(give_state=look, copy_state=look)
    thread._attempt, thread._job = ("job-1", 5), cast(Any, job)
    thread.check_state(("job-1", 5), receiver)
    thread.copy_state(("job-1", 5), 3, keep=True, copy=False)
    thread.give_state(("job-1", 5))
    thread.close()
    thread.run()
    assert outcomes == [ComputeFailed(("job-1", 5), "it stops here")]
    allowed = of_state("", 16, 0.0).allowed_seconds
    assert allowed > 0
    assert [(doing.what, doing.allowed_seconds) for doing in seen if doing] == [
        ("verifying the parameters", allowed),
        ("copying the parameters", allowed),
        ("handing out the parameters", allowed),
    ]
