"""`farflung lab`: emulate slow, lossy, NATed networks on this machine.

`list` shows the shipped testbeds and the running labs. `up` lays out a network of namespaces and keeps it for
as long as the command runs; `down` removes one. `calibrate` compares emulated links with what plain traffic
measures. `set`, `cut`, `heal`, `stats` and `exec` act on a running lab.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.commands import lab_run
from farflung.cli.commands.lab_run import ScaleOption, scaled
from farflung.cli.render.output import JsonOption, note, print_json
from farflung.text import count_of, format_bytes

if TYPE_CHECKING:
    from farflung.lab.measure.calibration import Calibration, Case, Row
    from farflung.lab.network import Network
    from farflung.lab.switch.stats import Stats


def list_testbeds(
    as_json: JsonOption = False,
) -> None:
    """List the testbeds, whose names you can use for topology files, and the labs that are up."""
    from farflung.lab import registry
    from farflung.plans.testbeds.catalogue import TESTBEDS, load_testbed

    testbeds = [load_testbed(name) for name in TESTBEDS]
    if as_json:
        rows = [
            {"name": bed.name, "title": bed.title, "workers": len(bed.workers), "scale": bed.scale}
            for bed in testbeds
        ]
        print_json({"testbeds": rows, "labs": registry.names()})
        return
    for bed in testbeds:
        scaled = f" (rates x {bed.scale.factor:g})" if bed.scale else ""
        typer.echo(f"{bed.name:<14}{len(bed.workers):>3} workers  {bed.title}{scaled}")
    for name in registry.names():
        note(f"lab {name} runs: farflung lab stats --name {name}")


LabName = Annotated[
    str, typer.Option("--name", help="Name of the lab; several can be up under different names.")
]
RunningName = Annotated[
    str | None, typer.Option("--name", help="Name of the lab. [default: lab, else the only one that is up]")
]
DEFAULT_NAME = "lab"
INTERRUPTED = 130


def up(
    topology: Annotated[
        str, typer.Argument(metavar="TOPOLOGY", help="A topology file, or a testbed (farflung lab list).")
    ],
    scale: ScaleOption = 1.0,
    name: LabName = DEFAULT_NAME,
    as_json: Annotated[bool, typer.Option("--json", help="Print the nodes as a JSON document.")] = False,
) -> None:
    """Set up the network of a topology and keep it until Ctrl-C, SIGTERM or `farflung lab down`."""
    from farflung.lab.network import Network
    from farflung.lab.run.layout import lay_out

    spec = lay_out(scaled(topology, scale))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with Network(spec, name) as network:
            _announce(network, as_json)
            network.wait()
        note(f"lab {name} was taken down")
    except typer.Exit:
        note(f"lab {name} is down")
        raise


def down(name: RunningName = None) -> None:
    """Stop a lab and all programs in it; also remove the remains of labs that were killed."""
    from farflung.lab.machine import check_machine
    from farflung.lab.registry import clean_stale
    from farflung.lab.running_lab import find

    check_machine()
    cleaned = clean_stale()
    if killed := [lab for lab in cleaned if name in (None, lab)]:
        note(f"lab {', '.join(killed)} had been killed; its remains were removed")
        return
    lab = find(name)
    lab.down()
    note(f"lab {lab.name} is down")


def _leave(number: int, frame: FrameType | None) -> None:
    raise typer.Exit(INTERRUPTED if number == signal.SIGINT else 0)


def _announce(network: Network, as_json: bool) -> None:
    nodes = network.nodes
    if as_json:
        rows = [
            {
                "name": node,
                "namespace": network.namespace(node),
                "address": network.address(node),
                "address6": network.address6(node),
                "local_address": network.local_address(node),
            }
            for node in nodes
        ]
        print_json({"lab": network.name, "nodes": rows})
        return
    width = max(map(len, nodes))
    for node in nodes:
        hidden = "" if network.local_address(node) == network.address(node) else "  behind NAT"
        typer.echo(f"{node:<{width}}  {network.address(node):<15}  {network.address6(node)}{hidden}")
    option = "" if network.name == DEFAULT_NAME else f"--name {shlex.quote(network.name)} "
    note(f"up; run a command in a node with: farflung lab exec {option}{nodes[0]} -- COMMAND")
    note("Ctrl-C takes it down")


def calibrate(
    topology: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPOLOGY]", help="Measure the links of this topology. [default: a set of typical links]"
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure three links only, and each for a shorter time.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure rate, latency and loss of emulated links with TCP, UDP and ping, about 12 s for each link.

    The typical links take about 100 s.
    """
    from farflung.lab.machine import check_machine
    from farflung.lab.measure.calibration import FULL, QUICK, calibrate

    check_machine()
    cases = _cases(topology, quick)
    note(f"measuring {count_of(len(cases), 'link')}; each takes about 12 s")
    found = calibrate(cases, QUICK if quick else FULL, _tell)
    if as_json:
        print_json(found)
    else:
        _print_calibration(found)
    if not found.ok:
        raise typer.Exit(1)


def _cases(topology: str | None, quick: bool) -> list[Case]:
    from farflung.lab.measure.calibration import standard_cases, topology_cases

    if topology is None:
        return standard_cases(quick)
    from farflung.lab.run.layout import lay_out
    from farflung.plans.testbeds.catalogue import find_topology

    cases = topology_cases(lay_out(find_topology(topology)))
    return cases[:3] if quick else cases


def _tell(row: Row) -> None:
    note(f"{row.link}: {row.measured_mbps:.1f} of {row.asked_mbps:g} Mbit/s")


def _print_calibration(found: Calibration) -> None:
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
        note("void: this machine was too busy, so these figures mean nothing")


NOT_FOUND = 127
"""The exit code of shells for a command that does not exist."""

Rate = Annotated[float | None, typer.Option("--mbps", help="Rate in Mbit/s.")]
Source = Annotated[str, typer.Argument(metavar="A", help="A node.")]
Other = Annotated[str | None, typer.Argument(metavar="[B]", help="Another node. [default: all]")]


def change(
    first: Source,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another node.")] = None,
    mbps: Rate = None,
    ms: Annotated[float | None, typer.Option("--ms", help="Latency in ms, one way.")] = None,
    jitter_ms: Annotated[
        float | None, typer.Option("--jitter-ms", help="Random additional latency, up to this.")
    ] = None,
    loss: Annotated[
        float | None, typer.Option("--loss", help="Share of packets that are lost, 0 to 1.")
    ] = None,
    queue_ms: Annotated[float | None, typer.Option("--queue-ms", help="Length of the queue in ms.")] = None,
    both: Annotated[bool, typer.Option("--both", help="Change both directions.")] = False,
    up_mbps: Annotated[float | None, typer.Option("--up-mbps", help="Upload rate of A; without B.")] = None,
    down_mbps: Annotated[
        float | None, typer.Option("--down-mbps", help="Download rate of A; without B.")
    ] = None,
    name: RunningName = None,
) -> None:
    """Change the link from A to B while a lab runs, or the access line of A; other settings stay."""
    from msgspec import UNSET

    from farflung.lab.running_lab import find

    link, line = (mbps, ms, jitter_ms, loss, queue_ms), (up_mbps, down_mbps)
    if second is None:
        if line == (None, None) or both or any(value is not None for value in link):
            raise typer.BadParameter(
                "one node takes --up-mbps and --down-mbps; name two nodes for the other options"
            )
        up, down = (UNSET if value is None else value for value in line)
        note(find(name).set_node(first, up_mbps=up, down_mbps=down))
        return
    if line != (None, None) or all(value is None for value in link):
        raise typer.BadParameter(
            "a pair takes --mbps, --ms, --jitter-ms, --loss and --queue-ms; name one node for the others"
        )
    rate, latency, jitter, lost, queue = (UNSET if value is None else value for value in link)
    lab = find(name)
    for a, b in ((first, second), (second, first))[: 1 + both]:
        note(
            lab.set(
                a, b, bandwidth_mbps=rate, latency_ms=latency, jitter_ms=jitter, loss=lost, queue_ms=queue
            )
        )


def cut(first: Source, second: Other = None, name: RunningName = None) -> None:
    """Drop all packets between A and B; without B, between A and all other nodes."""
    from farflung.lab.running_lab import find

    note(f"cut: {_pairs(find(name).cut(first, second)) or 'everything was cut before'}")


def heal(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help="A node. [default: all]")] = None,
    second: Other = None,
    name: RunningName = None,
) -> None:
    """Undo cuts: between A and B, of A, or all of them."""
    from farflung.lab.running_lab import find

    note(f"healed: {_pairs(find(name).heal(first, second)) or 'nothing was cut'}")


def stats(
    name: RunningName = None,
    reset: Annotated[bool, typer.Option("--reset", help="Reset the counters afterwards.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show traffic, drops and settings of each pair, and how late the switch was."""
    from farflung.lab.running_lab import find

    found = find(name).stats(reset=reset)
    if as_json:
        print_json(found)
    else:
        _print_stats(found)


def execute(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Node to run it in.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command with its arguments.")],
    name: RunningName = None,
) -> None:
    """Run a command in a node of a running lab."""
    from farflung.lab.running_lab import find

    argv = find(name).command(node, command)
    if shutil.which(command[0]) is None:
        note(f"error: no command {command[0]!r} on this machine: give its path")
        raise typer.Exit(NOT_FOUND)
    os.execvp(argv[0], argv)  # so signals reach the command, and its exit code is ours


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{first} - {second}" for first, second in pairs)


def _print_stats(stats: Stats) -> None:
    typer.echo(f"{'pair':<32}{'carried':>12}{'packets':>10}{'queue':>8}{'loss':>8}{'cut':>8}  now")
    for link in stats.links:
        drops = f"{link.queue_drops:>8}{link.loss_drops:>8}{link.cut_drops:>8}"
        pair = f"{link.source} -> {link.target}"
        now = f"cut; {link.settings}" if link.is_cut else link.settings
        typer.echo(f"{pair:<32}{format_bytes(link.bytes):>12}{link.packets:>10}{drops}  {now}")
    late = f"late by {stats.late_p50_ms:.2f} ms (median), {stats.late_p99_ms:.2f} ms (99 %)"
    share = stats.cpu_seconds / max(stats.seconds, 1e-9)
    note(f"the switch was {late}, used {share:.0%} of a core, {stats.priority}")
    if stats.unread_packets:
        note(f"{stats.unread_packets} packets were dropped because they came faster than the switch reads")
    if stats.void:
        note("void: this machine was too busy, so times measured in this lab mean nothing")


app = typer.Typer(help="Emulate slow, lossy, NATed networks on this machine (Linux, root).")
app.command("run")(lab_run.run)
app.command("list")(list_testbeds)
app.command("up")(up)
app.command("down")(down)
app.command("exec")(execute)
app.command("set")(change)
app.command("cut")(cut)
app.command("heal")(heal)
app.command("stats")(stats)
app.command("calibrate")(calibrate)
