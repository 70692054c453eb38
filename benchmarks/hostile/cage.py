"""A cap on the CPU of attackers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

PERIOD_MICROSECONDS = 100_000
ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))
V1_QUOTA = "cpu.cfs_quota_us"
EMPTY_SECONDS = 5.0


class Cage:
    """Processes of an attacker that together get `share` of one core; ends with the block.

    The kernel bounds them by a cgroup of version 2 (`cpu.max`) or of version 1 (`cpu.cfs_quota_us`) where
    this process may make one. Else they run at nice 19, which bounds nothing on an idle machine. `kind` says
    which, `group` is the group's folder.
    """

    def __init__(self, share: float) -> None:
        self.group: Path | None = None
        self.kind = "nice 19"
        quota = int(share * PERIOD_MICROSECONDS)
        for root in ROOTS:
            with suppress(OSError):
                self._make(root, quota)
            if self.group is not None:
                return

    def __enter__(self) -> Cage:
        return self

    def __exit__(self, *error: object) -> None:
        if self.group is None:
            return
        deadline = time.monotonic() + EMPTY_SECONDS
        while self.group.exists() and time.monotonic() < deadline:
            with suppress(OSError):  # a process that was killed just now is still in it
                self.group.rmdir()
            time.sleep(0.05)

    def hold(self, process: int) -> None:
        """Cap a process from now on."""
        if self.group is None:
            os.setpriority(os.PRIO_PROCESS, process, 19)
        else:
            (self.group / "cgroup.procs").write_text(str(process))

    def _make(self, root: Path, quota: int) -> None:
        group = root / f"farflung-hostile-{os.getpid()}"
        controllers = root / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
            self._fill(group, {"cpu.max": f"{quota} {PERIOD_MICROSECONDS}"})
            self.kind = "cgroup v2 cpu.max"
        elif (root / V1_QUOTA).exists():
            self._fill(group, {"cpu.cfs_period_us": f"{PERIOD_MICROSECONDS}", V1_QUOTA: f"{quota}"})
            self.kind = f"cgroup v1 {V1_QUOTA}"

    def _fill(self, group: Path, limits: dict[str, str]) -> None:
        group.mkdir()
        try:
            for name, value in limits.items():
                with (group / name).open("r+") as file:  # the kernel has made it, if this is a group
                    file.write(value)
        except OSError:
            group.rmdir()
            raise
        self.group = group
