"""`farflung topology show`: show the workers and links of a topology file or a live fleet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.commands.status import any_identity
from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.errors import TopologyError

if TYPE_CHECKING:
    from farflung.plans import Topology
    from farflung.protocol.probing import FleetTopology
    from farflung.transport.security.identity import Identity


LOOK_SECONDS = 1.0


def show(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A topology, or a testbed's name.")
    ] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="That of the broker's workers instead.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="First have the fleet's idle workers measure it anew.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Also draw it, as .svg, .png or .pdf.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write it, as a topology file.")] = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the workers of a topology and what the ways between them carry."""
    if fleet == (file is not None):
        raise TopologyError("a topology's FILE or --fleet, one of the two, must say what to show")
    if refresh and not fleet:
        raise TopologyError("--refresh measures a fleet anew: it goes with --fleet")
    if picture is not None:
        from farflung.pictures.figure import check_picture

        check_picture(picture)
    if file is not None:
        from farflung.plans.testbeds.catalogue import find_topology

        _give(find_topology(file), None, picture, save, as_json)
        return
    topology, told = fleet_topology(broker, token, folder, refresh)
    _give(topology, told, picture, save, as_json)


def fleet_topology(
    broker: str | None, token: str | None, folder: Path | None, refresh: bool = False
) -> tuple[Topology, FleetTopology]:
    """The topology of a broker's workers, with all that the broker reports about it.

    Raises TopologyError if no worker is connected.
    """
    told = asyncio.run(_ask(broker, token, folder, refresh))
    if told.topology is None:
        raise TopologyError("no worker is connected to the broker: farflung join brings one")
    return told.topology, told


def _give(
    topology: Topology, told: FleetTopology | None, picture: Path | None, save: Path | None, as_json: bool
) -> None:
    if save is not None:
        from farflung.plans import write_topology

        write_topology(topology, save)
        note(f"the topology was written to {save}")
    if picture is not None:
        from farflung.pictures.figure import write_picture
        from farflung.pictures.topology import draw_topology

        write_picture(draw_topology(topology), picture)
        note(f"the picture was written to {picture}")
    if as_json:
        print_json(_document(topology, told))
        return
    from farflung.cli.render.topology import topology_lines

    for line in topology_lines(topology, told):
        print_text(line)


def _document(topology: Topology, told: FleetTopology | None) -> dict[str, object]:
    if told is None:
        return {"topology": topology, "assumed": [], "measured": [], "survey": ""}
    return {
        "topology": topology,
        "assumed": told.assumed,
        "measured": told.measured,
        "survey": told.survey,
    }


async def _ask(broker: str | None, token: str | None, folder: Path | None, refresh: bool) -> FleetTopology:
    from farflung.client.run.broker_client import ask_topology

    identity = await any_identity(broker, token, folder)
    if not refresh:
        return await ask_topology(identity)
    return await _refreshed(identity)


async def _refreshed(identity: Identity) -> FleetTopology:
    """Request a survey and wait until it has ended."""
    from farflung.client.run.broker_client import ask_topology

    told = await ask_topology(identity, survey=True)
    surveys, said = told.surveys, ""
    while told.surveys == surveys and told.survey:
        if told.survey != said:
            said = told.survey
            note(f"survey: {said}")
        await asyncio.sleep(LOOK_SECONDS)
        told = await ask_topology(identity)
    return told


app = typer.Typer(help="Workers, and what the ways between them carry.")


@app.callback()
def _topology() -> None:
    """A group even while it has one command only."""


app.command("show")(show)
