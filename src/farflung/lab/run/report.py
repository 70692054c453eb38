"""Write what a lab did during a run to `lab.json` in the run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from farflung.client.output.run_folder import EVENTS, LOGS, disk_failure
from farflung.files import write_atomically
from farflung.lab.run.emulation import Emulation
from farflung.lab.switch.stats import VOID_ABOVE_MS, Stats
from farflung.plans import Scale, Topology

REPORT = "lab.json"


class LabReport(msgspec.Struct, frozen=True):
    """The lab's topology by name, and the switch's counters. Keys are only ever added.

    `void` says that the machine was too busy for valid times. `emulation` describes emulated devices; None if
    devices computed.
    """

    topology: str
    title: str
    scale: Scale | None
    segmentation_offload: bool
    void: bool
    stats: Stats
    emulation: Emulation | None = None

    @classmethod
    def of(cls, topology: Topology, stats: Stats, emulation: Emulation | None) -> LabReport:
        """The report on a run."""
        return cls(
            topology=topology.name,
            title=topology.title,
            scale=topology.scale,
            segmentation_offload=topology.segmentation_offload,
            void=stats.void,
            stats=stats,
            emulation=emulation,
        )

    def lines(self) -> list[str]:
        """The report as lines for the user."""
        stats = self.stats
        megabytes = sum(link.bytes for link in stats.links) / 1e6
        lost = sum(link.queue_drops + link.loss_drops + link.cut_drops for link in stats.links)
        lost += stats.unread_packets
        lines = [
            f"the lab carried {megabytes:.1f} MB in {stats.packets} packets and dropped {lost};"
            f" 99 % were at most {stats.late_p99_ms:.2f} ms late ({stats.priority})"
        ]
        if self.void:
            lines.append(
                f"void: the switch was more than {VOID_ABOVE_MS:g} ms late, because the machine was too busy;"
                " do not use the times of this run (use fewer workers, or lower rates with --scale)"
            )
        return lines


def run_in(folder: Path) -> tuple[int, int] | None:
    """An identifier of the run that a run folder holds; None if it holds none."""
    try:
        status = (folder / EVENTS).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def keep(folder: Path, logs: Path, report: LabReport | None) -> None:
    """Add the report, if there is one, and the fleet's logs to a run folder.

    Raises
    ------
    RunFailed
        The files cannot be written.
    """
    try:
        shutil.copytree(logs, folder / LOGS, dirs_exist_ok=True)
        if report is not None:
            write_atomically(folder / REPORT, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    except OSError as error:
        raise disk_failure(folder, error.strerror or str(error)) from error
