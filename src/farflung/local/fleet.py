"""A whole fleet on this machine, over its loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from farflung.broker.listening import address_in
from farflung.errors import ConnectionFailed, RunFailed
from farflung.local.child import Child
from farflung.local.family import Family
from farflung.local.memory import share_of_memory
from farflung.local.nursery import FRAMEWORKS
from farflung.runtime.backend import EMULATED
from farflung.runtime.frameworks import AUTO, chosen
from farflung.transport.enrolment import enrol
from farflung.transport.identity import Identity
from farflung.transport.tokens import Token

HOST = "127.0.0.1"
SITE = "local"
SUBMITTER: Literal["submitter"] = "submitter"
RETRY_SECONDS = 0.05
NO_SURVEY = ("--no-survey",)  # a machine's loopback is no path worth measuring


class LocalFleet(Family):
    """A broker and `workers` workers on 127.0.0.1, who speak over TLS as machines far apart would.

    Parameters
    ----------
    workers
        How many; they are called worker-0, worker-1, ...
    logs
        Folder for their logs; it is made.
    memory_bytes
        What each worker offers; without it, an equal share of the machine's.
    emulated_tflops
        The workers only emulate devices that sustain so much; without it they compute.
    backends
        What worker-0, worker-1, ... compute with, over again from the first; without any, what each finds.
    """

    def __init__(
        self,
        workers: int,
        logs: Path,
        memory_bytes: int | None = None,
        emulated_tflops: float | None = None,
        backends: Sequence[str] = (),
    ) -> None:
        super().__init__(logs)
        self._count = workers
        self._memory_bytes = share_of_memory(workers) if memory_bytes is None else memory_bytes
        self._emulated_tflops = emulated_tflops
        self._backends = tuple(backends)
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        """With which this process submits jobs to the fleet."""
        assert self._identity is not None
        return self._identity

    def computing(self) -> dict[str, list[str]]:
        """For each of `backends`, the workers who compute with it; nothing where each takes what it finds."""
        found: dict[str, list[str]] = {}
        for number in range(self._count if self._backends else 0):
            found.setdefault(self._backends[number % len(self._backends)], []).append(_name(number))
        return found

    async def _start(self) -> None:
        self._prepare_forks([self._backend(number) for number in range(self._count)])  # it takes longest
        submitter, worker = await asyncio.to_thread(self._tokens, self._count)
        # It finds a port by itself: what is free now could be taken before it listens.
        self._identity = await self._enrolled(await self._start_broker(f"{HOST}:0", NO_SURVEY), submitter)
        arguments = ["--site", SITE, "--listen", f"{HOST}:0", "--memory", f"{self._memory_bytes / 1e9:.3f}"]
        for number in range(self._count):
            backend = self._backend(number)
            options = [*arguments, "--backend", backend, *self._speed()]
            is_forked = chosen(backend) in FRAMEWORKS
            await self._start_worker(_name(number), worker, options, is_forked=is_forked)

    def _backend(self, number: int) -> str:
        if self._emulated_tflops is not None:
            return EMULATED
        return self._backends[number % len(self._backends)] if self._backends else AUTO

    def _speed(self) -> list[str]:
        return [] if self._emulated_tflops is None else ["--tflops", f"{self._emulated_tflops:g}"]

    async def _enrolled(self, broker: Child, token: Token) -> Identity:
        """Join as the submitter as soon as the broker lets it; its early end ends the wait."""
        joining = asyncio.create_task(self._join(token))
        ended = asyncio.create_task(broker.ended())
        try:
            await asyncio.wait(
                {joining, ended}, timeout=self._timeouts.start_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if joining.done():
                return joining.result()
            if ended.done():
                raise RunFailed(f"the local {ended.result()}")
            raise RunFailed(f"the local broker does not let its submitter in: see {broker.log}")
        finally:
            joining.cancel()
            ended.cancel()
            await asyncio.gather(joining, ended, return_exceptions=True)

    async def _join(self, token: Token) -> Identity:
        folder = self._folder / SUBMITTER
        while True:
            self.address = address_in(self._broker_folder) or ""  # once it listens
            with suppress(ConnectionFailed):
                if self.address:
                    return (await enrol(self.address, token, folder, SUBMITTER, SUBMITTER)).identity
            await asyncio.sleep(RETRY_SECONDS)


def _name(number: int) -> str:
    return f"worker-{number}"
