"""Send each worker of an attempt its state: base weights that it lacks, and all that training changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set

from farflung.client.capture.prepared import Prepared
from farflung.client.output.progress import Observer
from farflung.client.output.records import NO_BASE
from farflung.client.run.base_transfer import LEAST_BYTES, BaseRequests, base_list
from farflung.client.run.start import Start
from farflung.client.run.state_transfer import Outgoing, send_coders, send_state
from farflung.client.run.worker_session import WorkerSession
from farflung.opdag.form import Form
from farflung.protocol.messages import Planned
from farflung.runtime.state import StateKey
from farflung.text import printable
from farflung.transport.wire.headers import DataHeader

MOVED_BYTES = 2**16
"""Fewer bytes in the time that a worker may stall are heartbeats, and no progress."""


class StateSender:
    """Sends the state with which an attempt starts, and tells `observer` how far that is.

    Base weights are sent only to workers that have them neither on disk nor from the URLs that the job names.
    """

    def __init__(self, prepared: Prepared, planned: Planned, start: Start, observer: Observer) -> None:
        self._prepared, self._planned, self._start, self._observer = prepared, planned, start, observer
        graph, batch = prepared.graph, start.training.microbatch_size
        entries = [entry for entry in graph.inputs if entry.kind in ("parameter", "buffer")]
        self._forms = {entry.name: Form.of(graph.values[entry.value], batch) for entry in entries}
        self._total = self._total_bytes()
        self._done = 0
        self._troubles: set[str] = set()
        self.base_bytes = NO_BASE
        """Where the base weights of the workers that have them all came from."""
        self.owing: set[str] = set()
        """The workers for which something waits to be sent, and those which were sent everything."""

    async def send(self, worker: str, session: WorkerSession) -> None:
        """Send one worker what its segments own.

        Raises
        ------
        ConnectionFailed
            The worker is lost.
        RunFailed
            Stored weights are not what they were when the job began.
        """
        planned, start = self._planned, self._start
        owned = {segment: planned.owned[segment] for segment in planned.plan.segments_of(worker)}
        base = {segment: [name for name in names if self._is_base(name)] for segment, names in owned.items()}
        digests = await asyncio.to_thread(self._prepared.digests.of, [n for of in base.values() for n in of])
        requests = await self._list_base(session, base, digests)
        rest = {segment: [*{*names} - {*base[segment]}] for segment, names in owned.items()}
        link = _Owing(session, worker, self.owing)
        await send_state(planned.job, planned.attempt, rest, start.state, link, self._progress)
        if start.training.codecs and start.unit:
            coders = start.coders_of(planned.plan, min(owned))
            await send_coders(planned.job, planned.attempt, min(owned), coders, link)
        if requests is not None:
            await self._send_base(worker, link, requests, digests)
        self.owing.add(worker)

    async def _list_base(
        self, session: WorkerSession, names: Mapping[int, Sequence[str]], digests: Mapping[str, bytes]
    ) -> BaseRequests | None:
        """Tell a worker of the base weights that it owns; None if there are none."""
        if not digests:
            return None
        stored = self._prepared.stored
        places = {} if stored is None else await asyncio.to_thread(stored.places, digests)
        files = [] if stored is None else stored.files
        listed = base_list(self._planned.job, self._planned.attempt, names, digests, places, files)
        return session.list_base(listed, {name: self._forms[name].nbytes for name in digests})

    async def _send_base(
        self, worker: str, link: Outgoing, requests: BaseRequests, digests: Mapping[str, bytes]
    ) -> None:
        """Send the base weights that a worker asks for, until it has said that these are all."""
        is_last = False
        while not is_last:
            lacking = await requests.next()
            asked: dict[int, list[str]] = {}
            for segment, name in lacking.pieces:
                asked.setdefault(segment, []).append(name)
            is_last = lacking.last
            if is_last:
                self._need_not_send(requests.bytes.cached + requests.bytes.fetched)
                self.base_bytes += requests.bytes
                self._say(worker, lacking.troubles)
            await send_state(
                self._planned.job,
                self._planned.attempt,
                asked,
                self._start.state,
                link,
                self._progress,
                digests,
            )

    def _say(self, worker: str, troubles: Iterable[str]) -> None:
        """Say once why base weights are sent from here that workers were to fetch."""
        for trouble in troubles:
            if trouble not in self._troubles:
                self._troubles.add(trouble)
                self._observer.noted(f"worker {worker} gets base weights from here: {printable(trouble)}")

    def _is_base(self, name: str) -> bool:
        return name not in self._prepared.changed and self._forms[name].nbytes >= LEAST_BYTES

    def _need_not_send(self, size: int) -> None:
        """So many bytes are with the workers already."""
        self._total -= size
        self._observer.loading(self._done, self._total)

    def _progress(self, size: int) -> None:
        self._done += size
        self._observer.loading(self._done, self._total)

    def _total_bytes(self) -> int:
        """The bytes of all state that is to reach workers; no parameter is read for that."""
        state = self._start.state
        keys: dict[str, list[StateKey]] = {}
        for key in state:
            keys.setdefault(key.name, []).append(key)
        return sum(
            state[key].nbytes if key.slot else self._forms[name].nbytes
            for owned in self._planned.owned
            for name in owned
            for key in keys.get(name, ())
        )


class LoadingWatch:
    """Which workers get no further while an attempt loads. Pure; times are in seconds of any clock.

    All workers share the submitter's line, so slices may take long though each worker reads as fast as it
    can. What counts are the bytes that leave for a worker while something waits to be sent to it, or after
    all was.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, int]] = {}

    def look(self, now: float, sent: Mapping[str, int], owing: Set[str]) -> dict[str, float]:
        """For each worker in `owing`, how long it has taken nothing of what it is sent.

        Parameters
        ----------
        sent
            Bytes that have left for each worker so far.
        owing
            The workers for which something waits to be sent, or which have all and should soon be ready.
        """
        found = {}
        for worker, count in sent.items():
            since, before = self._marks.get(worker, (now, count))
            if worker not in owing or count - before >= MOVED_BYTES:
                since, before = now, count
            self._marks[worker] = since, before
            if worker in owing:
                found[worker] = now - since
        return found


class _Owing:
    """A worker's link that is in `owing` while something waits to be sent over it."""

    def __init__(self, link: Outgoing, worker: str, owing: set[str]) -> None:
        self._link, self._worker, self._owing = link, worker, owing

    async def send(self, header: DataHeader, buffer: memoryview) -> None:
        self._owing.add(self._worker)
        try:
            await self._link.send(header, buffer)
        finally:
            self._owing.discard(self._worker)
