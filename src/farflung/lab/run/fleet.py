"""Run the broker and the workers of a topology, each in a node of a lab."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from farflung.errors import RunFailed
from farflung.lab.network import RunningLab
from farflung.lab.run.layout import BROKER
from farflung.lab.switch.tun import NAMESPACES
from farflung.localhost.child_process import ChildProcess
from farflung.localhost.devices import share_of_memory
from farflung.localhost.fleet import FleetProcesses
from farflung.plans import WorkerSpec
from farflung.runtime.frameworks import AUTO, chosen
from farflung.transport.net.addresses import DEFAULT_PORT
from farflung.transport.security.tokens import Token

_LISTEN = "0A"


def listens(process_id: int, port: int) -> bool:
    """Whether this process itself listens on TCP `port` in its network namespace.

    Other listeners do not count: before the process has entered its namespace it is in the host's, where
    another broker may use the same port.
    """
    listening = _listening(process_id, port)
    return bool(listening) and not listening.isdisjoint(_open_files(process_id))


def _listening(process_id: int, port: int) -> set[str]:
    """The sockets that listen on `port` in a process's namespace, named as in /proc/PID/fd."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, _, _, inode = line.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{inode}]")
    return found


def _open_files(process_id: int) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for file in Path(f"/proc/{process_id}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(str(file.readlink()))
    return found


LOOK_SECONDS = 0.05


class LabFleet(FleetProcesses):
    """A broker in the node `broker`, and workers in nodes with their names in the topology.

    They run as they would at home: `farflung broker`, and `farflung join` with the broker's address. Entering
    the block only starts the broker, so that a submitter can already prepare its job.

    Parameters
    ----------
    network
        The lab that `lay_out` describes.
    workers
        The workers to start. Each offers its memory, at most an equal share of this machine's.
    emulated_tflops
        The speed that each worker's emulated device sustains; emulated devices offer the memory of the real
        ones. None: the workers compute.
    """

    def __init__(
        self,
        network: RunningLab,
        workers: Sequence[WorkerSpec],
        emulated_tflops: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(logs=None)
        self._network = network
        self._specs = workers
        self._emulated_tflops = emulated_tflops
        self.token: Token
        self._worker_token: Token

    @property
    def submitter_folder(self) -> Path:
        """The folder of the submitter's identity; removed with the fleet."""
        return self._folder / "submitter"

    def keep(self, name: str, content: bytes) -> Path:
        """Write a file for the submitter into the fleet's folder, which is removed with the fleet."""
        path = self._folder / name
        path.write_bytes(content)
        return path

    async def _start(self) -> None:
        if self._emulated_tflops is None:
            self._prepare_forks([AUTO] * len(self._specs))
        self.token, self._worker_token = await asyncio.to_thread(self._tokens, len(self._specs))
        self.address = f"{self._network.address(BROKER)}:{DEFAULT_PORT}"
        await self._listening(await self._start_broker(f"[::]:{DEFAULT_PORT}", prefix=self._prefix(BROKER)))

    async def start_workers(self) -> None:
        """Start the workers."""
        for spec in self._specs:
            prefix = self._prefix(spec.id)
            namespace = str(NAMESPACES / self._network.namespace(spec.id))
            await self._start_worker(
                spec.id,
                self._worker_token,
                self._offer(spec),
                prefix,
                self._fork_server is not None,
                namespace,
            )

    def _offer(self, spec: WorkerSpec) -> list[str]:
        """The options of `farflung join` with which a worker's owner would offer it."""
        if self._emulated_tflops is not None:
            device = ["--backend", "emulated", "--tflops", repr(self._emulated_tflops[spec.id])]
            return ["--site", spec.site, "--memory", repr(spec.memory_gb), *device]
        memory_gb = min(spec.memory_gb, share_of_memory(len(self._specs)) / 1e9)
        device = ["--device", "cpu"] if chosen(AUTO) == "torch" else []  # a lab's workers are all alike
        return ["--site", spec.site, "--memory", f"{memory_gb:.3f}", *device]

    def _prefix(self, node: str) -> list[str]:
        return self._network.command(node, [])

    async def _listening(self, broker: ChildProcess) -> None:
        ended = asyncio.create_task(broker.ended())
        try:
            async with asyncio.timeout(self._timeouts.start_seconds):
                while not listens(await broker.process_id(), DEFAULT_PORT):
                    if ended.done():
                        raise RunFailed(f"the lab's {ended.result()}")
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise RunFailed(f"the lab's broker did not start: {broker.log.read_text()[-500:]}") from None
        finally:
            ended.cancel()
