"""The replicas of a segment add up their gradients, as DT-FM has it: every pair exchanges shards, twice.

arXiv 2206.01288, section 3.3: worker i takes sum over j of 2 (latency_ij + gradients / (R bandwidth_ij)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farflung.simulator.clock import Clock
from farflung.simulator.network import Message, Priority
from farflung.simulator.wiring import Wiring


class Sync:
    """One segment's exchange in one step: begins when all replicas have said `ended`, ends with `done`.

    Each worker sends one shard after the other, the next when the last has come, beginning with the worker
    after it, so that at no time two of them send to a third unless some are slower.
    """

    def __init__(
        self,
        clock: Clock,
        wiring: Wiring,
        workers: Sequence[int],
        gradient_bytes: float,
        done: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._wiring = wiring
        self._workers = workers
        self._shard = gradient_bytes / len(workers)
        self._done = done
        self._running = len(workers)
        self._sending = len(workers)

    def ended(self) -> None:
        """The segment has run its last microbatch in one replica."""
        self._running -= 1
        if not self._running:
            for replica in range(len(self._workers)):
                self._send((replica, 0))

    def _send(self, turn: tuple[int, int]) -> None:
        replica, sent = turn
        count = len(self._workers)
        if sent == 2 * (count - 1):
            self._sending -= 1
            if not self._sending:
                self._done()
            return
        other = self._workers[(replica + 1 + sent % (count - 1)) % count]
        link = self._wiring.link(self._workers[replica], other)
        assert link is not None
        link.post(Message(self._shard, Priority.STATE, self._send, (replica, sent + 1)))
