"""`farflung lab calibrate`: the lab's links as they were asked for, beside what plain traffic finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.output import note, print_json
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.lab.calibration import Calibration, Case, Row


def calibrate(
    topology: Annotated[
        str | None,
        typer.Argument(metavar="[TOPOLOGY]", help="Measure its links. [default: a set of typical ones]"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three links, and a shorter look at each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Measure rate, latency and loss of emulated links with plain TCP, UDP and ping: some 12 s a link.

    The typical ones take about 100 s.
    """
    from farflung.lab.calibration import FULL, QUICK, calibrate
    from farflung.lab.machine import check_machine

    check_machine()
    cases = _cases(topology, quick)
    note(f"measuring {count_of(len(cases), 'link')}; each takes some 12 s")
    found = calibrate(cases, QUICK if quick else FULL, _tell)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found.ok:
        raise typer.Exit(1)


def _cases(topology: str | None, quick: bool) -> list[Case]:
    from farflung.lab.calibration import standard_cases, topology_cases

    if topology is None:
        return standard_cases(quick)
    from farflung.lab.layout import lay_out
    from farflung.plans.testbeds.catalogue import find_topology

    cases = topology_cases(lay_out(find_topology(topology)))
    return cases[:3] if quick else cases


def _tell(row: Row) -> None:
    note(f"{row.link}: {row.measured_mbps:.1f} of {row.asked_mbps:g} Mbit/s")


def _print(found: Calibration) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("link", title="asked / measured")
    for column in ("Mbit/s", "goodput", "latency ms", "ping ms", "loss %", "late ms (99 %)", "within"):
        table.add_column(column, justify="right")
    for row in found.rows:
        table.add_row(
            row.link,
            f"{row.asked_mbps:g} / {row.measured_mbps:.2f}",
            f"{row.goodput_mbps:.2f}",
            f"{row.asked_ms:g} / {row.measured_ms:.2f}",
            f"{row.ping_ms:.1f}",
            f"{row.asked_loss * 100:g} / {row.measured_loss * 100:.2f}",
            f"{row.late_p99_ms:.2f}",
            "ok" if row.ok else "off",
        )
    Console(width=120).print(table)
    note(f"Mbit/s: {found.overhead}")
    if found.void:
        note("void: the switch was too late for these figures to mean anything; this machine is too busy")
