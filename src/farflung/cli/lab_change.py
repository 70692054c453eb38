"""`farflung lab set`, `cut`, `heal`, `stats` and `exec`: what is done to a lab while it runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.lab_up import RunningName
from farflung.cli.output import note, print_json
from farflung.text import format_bytes

if TYPE_CHECKING:
    from farflung.lab.stats import Stats

NOT_FOUND = 127
"""What shells say of a command that is not there."""

Rate = Annotated[float | None, typer.Option("--mbps", help="Mbit/s.")]
Source = Annotated[str, typer.Argument(metavar="A", help="A node.")]
Other = Annotated[str | None, typer.Argument(metavar="[B]", help="Another node. [default: all]")]


def change(
    first: Source,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another node.")] = None,
    mbps: Rate = None,
    ms: Annotated[float | None, typer.Option("--ms", help="Latency, one way.")] = None,
    jitter_ms: Annotated[float | None, typer.Option("--jitter-ms", help="Up to so much later.")] = None,
    loss: Annotated[float | None, typer.Option("--loss", help="Share of packets, 0 to 1.")] = None,
    queue_ms: Annotated[float | None, typer.Option("--queue-ms", help="Queue before the rate.")] = None,
    both: Annotated[bool, typer.Option("--both", help="Both directions.")] = False,
    up_mbps: Annotated[float | None, typer.Option("--up-mbps", help="Of A's line, without B.")] = None,
    down_mbps: Annotated[float | None, typer.Option("--down-mbps", help="Of A's line, without B.")] = None,
    name: RunningName = None,
) -> None:
    """Change the direction from A to B of a running lab, or the line of A; what is not named stays."""
    from msgspec import UNSET

    from farflung.lab.running import find

    link, line = (mbps, ms, jitter_ms, loss, queue_ms), (up_mbps, down_mbps)
    if second is None:
        if line == (None, None) or both or any(value is not None for value in link):
            raise typer.BadParameter("of one node --up-mbps and --down-mbps can be set, the rest of a pair")
        up, down = (UNSET if value is None else value for value in line)
        note(find(name).set_node(first, up_mbps=up, down_mbps=down))
        return
    if line != (None, None) or all(value is None for value in link):
        raise typer.BadParameter("of a pair --mbps, --ms, --jitter-ms, --loss and --queue-ms can be set")
    rate, latency, jitter, lost, queue = (UNSET if value is None else value for value in link)
    lab = find(name)
    for a, b in ((first, second), (second, first))[: 1 + both]:
        note(
            lab.set(
                a, b, bandwidth_mbps=rate, latency_ms=latency, jitter_ms=jitter, loss=lost, queue_ms=queue
            )
        )


def cut(first: Source, second: Other = None, name: RunningName = None) -> None:
    """Let nothing pass between A and B, both ways; without B, between A and all others."""
    from farflung.lab.running import find

    note(f"cut: {_pairs(find(name).cut(first, second)) or 'nothing that was not cut'}")


def heal(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help="A node. [default: all]")] = None,
    second: Other = None,
    name: RunningName = None,
) -> None:
    """Undo cuts: between A and B, of A, or all."""
    from farflung.lab.running import find

    note(f"healed: {_pairs(find(name).heal(first, second)) or 'nothing was cut'}")


def stats(
    name: RunningName = None,
    reset: Annotated[bool, typer.Option("--reset", help="Then count from zero again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Show what each pair carried and dropped, its settings, cuts, and how late the switch was."""
    from farflung.lab.running import find

    found = find(name).stats(reset=reset)
    if as_json:
        print_json(found)
    else:
        _print(found)


def execute(
    node: Annotated[str, typer.Argument(metavar="NODE", help="In which node.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="With its arguments.")],
    name: RunningName = None,
) -> None:
    """Run a command in a node of a running lab."""
    from farflung.lab.running import find

    argv = find(name).command(node, command)
    if shutil.which(command[0]) is None:
        note(f"error: there is no command {command[0]!r} here: nodes have this machine's, give its path")
        raise typer.Exit(NOT_FOUND)
    os.execvp(argv[0], argv)  # its signals and its exit code are the command's own


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{first} - {second}" for first, second in pairs)


def _print(stats: Stats) -> None:
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
        note(f"{stats.unread_packets} packets came faster than the switch reads, and were dropped")
    if stats.void:
        note("void: this machine was too busy for times measured in this lab to mean anything")
