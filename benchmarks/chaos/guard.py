"""A process that owns the mounts of a chaos run, and removes all of it when its standard input ends.

    unshare --mount --propagation private -- python guard.py FOLDER KEEP|REMOVE DISK...

Each DISK becomes a small file system in memory, so that it can be full. It is seen only in the mount
namespace of this process, which the processes of the run enter. So whatever ends the run, a SIGKILL too, this
process finds and kills all of them, and the mounts go with the last one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

DISK_BYTES = 4 * 2**20


def others() -> list[int]:
    """The other processes in this mount namespace."""
    own, found = Path("/proc/self/ns/mnt").stat().st_ino, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if (entry / "ns/mnt").stat().st_ino == own:
                    found.append(int(entry.name))
    return found


def main() -> int:
    """Mount, say so, wait for the end of standard input, and remove."""
    folder, keeps, disks = Path(sys.argv[1]), sys.argv[2] == "KEEP", sys.argv[3:]
    for disk in disks:
        Path(disk).mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "farflung-chaos", disk], check=True
        )
    print("mounted", flush=True)
    sys.stdin.buffer.read()
    while found := others():
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for disk in disks:
        subprocess.run(["umount", "--lazy", disk], check=False)
    if not keeps:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
