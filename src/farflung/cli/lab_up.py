"""`farflung lab up` and `down`: a network of namespaces, for as long as the command runs."""

from __future__ import annotations

import shlex
import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.lab_run import ScaleOption, scaled
from farflung.cli.output import note, print_json

if TYPE_CHECKING:
    from farflung.lab.network import Network

LabName = Annotated[str, typer.Option("--name", help="Which lab; several may run under different names.")]
RunningName = Annotated[
    str | None, typer.Option("--name", help="Which lab. [default: lab, else the only one that runs]")
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
    """Lay out a topology and keep it up until Ctrl-C, SIGTERM or `farflung lab down`."""
    from farflung.lab.layout import lay_out
    from farflung.lab.network import Network

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
    """Take a lab down, with all that runs in it; remove what a lab left that was killed."""
    from farflung.lab.machine import check_machine
    from farflung.lab.registry import clean_stale
    from farflung.lab.running import find

    check_machine()
    cleaned = clean_stale()
    if killed := [lab for lab in cleaned if name in (None, lab)]:
        note(f"lab {', '.join(killed)} had been killed; what it left is removed")
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
