"""A worker's device, which runs one task at a time in the order of the policy, and its codec thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from farflung.schedule import Needs, Policy, Task, TaskKind
from farflung.simulator.clock import Action, Clock
from farflung.simulator.costs import TaskSeconds

Report = Callable[[Task], None]


class Cores:
    """The cores of one machine. Each task of its workers needs one; the task that waits longest is next."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def acquire(self, run: Callable[[], None]) -> None:
        """Call `run` on a core of its own, now or when one is free; it must `release` the core."""
        if self._free:
            self._free -= 1
            run()
        else:
            self._waiting.append(run)

    def release(self) -> None:
        """Give back the core of a finished task."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


class Device:
    """The segments of one worker. It calls `send` for tasks with results to send, and `ended` for every task.

    `cores` are the cores that it shares with other workers; None if it has its own.
    """

    def __init__(
        self,
        clock: Clock,
        needs: Sequence[Needs],
        seconds: Mapping[int, TaskSeconds],
        microbatches: int,
        window: int,
        send: Report,
        ended: Report,
        cores: Cores | None = None,
    ) -> None:
        self._clock = clock
        self.cores = cores
        self._needs = needs
        self._seconds = seconds
        self._microbatches = microbatches
        self._window = window
        self._send = send
        self._report_ended = ended
        self._is_free = False
        self._policy = Policy((), (), 1)
        self.busy = 0.0
        self.tasks: list[tuple[Task, float, float]] | None = None

    @property
    def segments(self) -> list[int]:
        """Numbers of the segments that run here."""
        return [needs.segment for needs in self._needs]

    def begin(self, seconds: float) -> None:
        """Begin a step at the time `seconds`; messages that arrive earlier wait."""
        self._policy = Policy(self._needs, range(self._microbatches), self._window)
        self._is_free = False
        self._clock.at(seconds, self._freed)

    def arrived(self, segment: int, microbatch: int, gradient: bool) -> None:
        """Count a message that has arrived."""
        self._policy.arrived(segment, microbatch, gradient)
        if self._is_free:
            self._run_next()

    def _freed(self, _: object) -> None:
        self._is_free = True
        self._run_next()

    def _run_next(self) -> None:
        if self._policy.next() is None:
            return
        self._is_free = False
        if self.cores is None:
            self._run()
        else:
            self.cores.acquire(self._run)

    def _run(self) -> None:
        task = self._policy.next()
        assert task is not None, "a ready task stays ready"
        seconds = self._seconds[task.segment].of(task.kind)
        now = self._clock.now
        self.busy += seconds
        if self.tasks is not None:
            self.tasks.append((task, now, now + seconds))
        self._clock.at(now + seconds, self._done, task)

    def _done(self, task: Task) -> None:
        if task.kind is not TaskKind.ACCUMULATE:
            self._send(task)
        self._report_ended(task)
        self._policy.finished(task)
        if self.cores is not None:
            self.cores.release()
        self._freed(None)


class Coder:
    """A worker's codec thread, which handles one message after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0

    def submit(self, seconds: float, action: Action, argument: object) -> None:
        """Run `action(argument)` once a message that takes `seconds` has been coded."""
        self._free_at = max(self._clock.now, self._free_at) + seconds
        self._clock.at(self._free_at, action, argument)
