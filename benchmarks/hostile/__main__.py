"""Attack a fleet that trains, by one attacker at a time, and measure what honest members notice.

    python -m benchmarks.hostile [--json] [--only ATTACK,...] [--rounds 3] [--seconds 6] [--cpu 0.2]

Course, anew for each attack: a broker and four workers on the loopback of this machine, over TLS, with
default settings and a lease of 10 s. Two workers train a job whose steps wait for links and the broker. Their
devices are emulated: they sleep as long as a device of so many TFLOP/s would compute. All else is real. So
what training loses is what the broker takes longer, as it would with each process on a machine of its own;
`--job usual` and `brief` compute on the processors that broker and attacker use, too. Windows of `--seconds`
without and with the attack alternate, `--rounds` of the latter. In each attacked round a newcomer joins by a
token; in the last one a second honest job of five steps computes on the other two.

Attackers are processes of their own that together get `--cpu` cores: by cgroup v2 `cpu.max` or v1
`cpu.cfs_quota_us` where this process may make a group, else by nice 19; `cap` says which. They dial the
broker at another address of this machine than the loopback, if it has one, and so come from there.

* Stranger, without a certificate: 400 silent sockets; joins with wrong secrets, 8 at once; one recorded
  ClientHello sent again and again, 32 at once.
* Viewer: 100 links at once; 20 messages at once that lack their last byte; certificate renewals, and status
  questions, without pause.
* Submitter: 100 links; unfinished messages of 64 MiB; 3,000 jobs of 100 KB; three jobs that cannot run before
  an honest one; survey requests without pause.
* Worker: 100 links; unfinished messages of 16 and 64 MiB; renewals; new addresses without pause; the fastest
  worker of all, which refuses every job.

An attack is `held` if training keeps at least 90 % of its speed, the broker stays below 256 MB, no honest job
fails or begins again, and newcomers join within 10 s. Speed goes by the median time of a step; it is the
median of attacked windows, each beside the mean of those before and after it. There are two controls: what
"nothing" loses is the noise of the machine, what "idle loop" loses is the price of the attacker's own CPU.
Exits 1 if an honest job failed; speed depends on the machine, so `ok` alone does not decide. Linux only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.arguments import folder_path, one_of, positive, several, whole
from benchmarks.hostile.attacks import ATTACKS
from benchmarks.hostile.cage import Cage
from benchmarks.hostile.course import BRIEF, EMULATED, USUAL, Course, Setting
from benchmarks.hostile.figures import Result, line

NAMES = tuple(dict.fromkeys(name for name, _ in ATTACKS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if an honest job failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=several(one_of(NAMES)), help="these attacks, with commas between")
    parser.add_argument(
        "--job", choices=(EMULATED, USUAL, BRIEF), default=EMULATED,
        help="on emulated devices, or computed here with steps of some tenths of a second, or with steps so"
        " brief that each waits for the broker: %(default)s",
    )  # fmt: skip
    parser.add_argument("--rounds", type=whole, default=3, help="of each attack: %(default)s")
    parser.add_argument("--seconds", type=positive, default=6.0, help="of a window: %(default)g")
    parser.add_argument("--cpu", type=positive, default=0.2, help="cores of an attacker: %(default)g")
    parser.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="farflung-hostile-") as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        setting = Setting(given.rounds, given.seconds, given.cpu, folder, given.job)
        result = measured(setting, given.only.split(",") if given.only else NAMES)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        for row in result.attacks:
            print(line(row))
        print(f"attackers: {result.cpu:g} cores by {result.cap}; load {result.load:.1f}; ok: {result.ok}")
    return 1 if any(row.honest_failed for row in result.attacks) else 0


def measured(setting: Setting, names: Sequence[str]) -> Result:
    """Measure these attacks, each by every role that can make it; how far it is goes to standard error."""
    with Cage(setting.cpu) as cage:
        cap = cage.kind
    wanted = [(name, role) for name, role in ATTACKS if name in names]
    rows = []
    for number, (name, role) in enumerate(wanted, start=1):
        rows.append(Course(name, role, setting).measure())
        print(f"[{number}/{len(wanted)}] {line(rows[-1])}", file=sys.stderr, flush=True)
    return Result(
        ok=all(row.held for row in rows),
        cap=cap,
        cpu=setting.cpu,
        job=setting.job,
        window_seconds=setting.window_seconds,
        load=os.getloadavg()[2],
        attacks=rows,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the fleet would be left behind
    raise SystemExit(main())
