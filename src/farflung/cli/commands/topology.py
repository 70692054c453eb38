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
        str | None, typer.Argument(metavar="FILE", help="A topology file, or the name of a testbed.")
    ] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="Show the broker's workers, as measured.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure the links of idle workers again first.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw it, as .svg, .png or .pdf.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save it as a topology file.")] = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the workers of a topology, and rate and latency of their links."""
    if fleet == (file is not None):
        raise TopologyError("nothing to show: give either a topology FILE or --fleet")
    if refresh and not fleet:
        raise TopologyError("--refresh measures a live fleet: add --fleet")
    if picture is not None:
        from farflung.pictures.figure import check_picture

        check_picture(picture)
    if file is not None:
        from farflung.plans.testbeds.catalogue import find_topology

        _show_topology(find_topology(file), None, picture, save, as_json)
        return
    topology, reported = fleet_topology(broker, token, folder, refresh)
    _show_topology(topology, reported, picture, save, as_json)


def fleet_topology(
    broker: str | None, token: str | None, folder: Path | None, refresh: bool = False
) -> tuple[Topology, FleetTopology]:
    """The topology of a broker's workers, with all that the broker reports about it.

    Raises TopologyError if no worker is connected.
    """
    reported = asyncio.run(_ask(broker, token, folder, refresh))
    if reported.topology is None:
        raise TopologyError("no worker is connected to the broker: start one with `farflung join`")
    return reported.topology, reported


def _show_topology(
    topology: Topology, reported: FleetTopology | None, picture: Path | None, save: Path | None, as_json: bool
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
        print_json(_document(topology, reported))
        return
    from farflung.cli.render.topology import topology_lines

    for line in topology_lines(topology, reported):
        print_text(line)


def _document(topology: Topology, reported: FleetTopology | None) -> dict[str, object]:
    if reported is None:
        return {"topology": topology, "assumed": [], "measured": [], "survey": ""}
    return {
        "topology": topology,
        "assumed": reported.assumed,
        "measured": reported.measured,
        "survey": reported.survey,
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

    reported = await ask_topology(identity, survey=True)
    surveys, shown = reported.surveys, ""
    while reported.surveys == surveys and reported.survey:
        if reported.survey != shown:
            shown = reported.survey
            note(f"survey: {shown}")
        await asyncio.sleep(LOOK_SECONDS)
        reported = await ask_topology(identity)
    return reported


app = typer.Typer(help="Workers of a fleet, and rate and latency of their links.")


@app.callback()
def _topology() -> None:
    """Keep `topology` a group although it has only one command."""


app.command("show")(show)
