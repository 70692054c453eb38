"""Where a fleet is broken: a lab in which each process is at home in a network and on a disk of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from farflung.lab.network import Network
from farflung.lab.spec import LabSpec
from farflung.lab.switch.tun import NAMESPACES

HUB, DESK = "hub", "desk"


class Place:
    """The lab of `spec`: broker at `HUB`, submitter at `DESK`, workers elsewhere; ends with the block.

    Workers in `disks` get a small disk each. Nothing of it is left when this process ends, however it does:
    the lab's switch removes the networks, and `guard.py` the processes, the mounts and, unless a `folder` is
    given, the files.
    """

    def __init__(self, spec: LabSpec, disks: Sequence[str], folder: Path | None) -> None:
        self._spec = spec
        self._disks = disks
        self._given = folder
        self._stack = ExitStack()
        self.behind_nat = [node.name for node in spec.nodes if node.behind_nat]

    def __enter__(self) -> Place:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network(self._spec))
            given = self._given
            self.folder = given if given is not None else Path(tempfile.mkdtemp(prefix="farflung-chaos-"))
            self.fleet_folder = self.folder / "fleet"
            self._guard = self._start_guard(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def prefix(self, node: str) -> list[str]:
        """Before a command that is to run at a node; it replaces itself by the command."""
        network = NAMESPACES / self.network.namespace(node)
        mounts = f"/proc/{self._guard.pid}/ns/mnt"
        return ["nsenter", f"--net={network}", f"--mount={mounts}", f"--wd={self.folder}", "--"]

    def home(self, worker: str) -> Path:
        """The path under which this process finds the folder of a worker."""
        return Path(f"/proc/{self._guard.pid}/root{self.fleet_folder / worker}")

    def _start_guard(self, stack: ExitStack) -> subprocess.Popen[bytes]:
        program = ["unshare", "--mount", "--propagation", "private", "--", sys.executable, "-P"]
        program += [str(Path(__file__).with_name("guard.py")), str(self.folder)]
        program += ["KEEP" if self._given is not None else "REMOVE"]
        program += [str(self.fleet_folder / worker) for worker in self._disks]
        guard = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert guard.stdin is not None and guard.stdout is not None
        stack.callback(guard.wait)
        stack.callback(guard.stdin.close)
        if guard.stdout.readline() != b"mounted\n":
            raise SystemExit("chaos.py: the disks of the workers cannot be mounted: it needs root")
        return guard
