"""`farflung launch`: scripts and manifests that start many workers, one command for each system."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from farflung.cli.options.launching import (
    CountOption,
    Delivery,
    OutputOption,
    OwnWorkers,
    ProgramOption,
    ScheduledWorkers,
    SetupOption,
    with_groups,
)
from farflung.cli.process.launching import deliver

app = typer.Typer(
    help="Write a script or manifest that starts many workers, or submit it.", rich_markup_mode=None
)


@app.command()
@with_groups
def slurm(
    *,
    asked: ScheduledWorkers,
    hours: Annotated[float | None, typer.Option(help="Time limit of each worker.")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="A further option of sbatch, such as --sbatch=--partition=gpu; may be repeated.",
        ),
    ] = None,
    program: ProgramOption = None,
    setup: SetupOption = None,
    delivery: Delivery,
) -> None:
    """Slurm: a job array of workers.

    The batch script asks for each worker by itself, so that it begins as soon as there is room for it.
    """
    from farflung.launchers import Slurm

    launcher = Slurm(asked.workers(), _this_farflung(program), hours, tuple(sbatch or ()), tuple(setup or ()))
    deliver(launcher, delivery)


@app.command()
@with_groups
def kubernetes(
    *,
    asked: ScheduledWorkers,
    image: Annotated[str, typer.Option(help="Image with farflung, built from its Dockerfile.")],
    namespace: Annotated[str, typer.Option(help="Namespace. [default: kubectl's]")] = "",
    secret: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Existing Secret whose key `token` is the token. [default: the manifest holds one]",
        ),
    ] = "",
    delivery: Delivery,
) -> None:
    """Kubernetes: a Deployment of workers.

    The manifest has a Secret with the token, unless --secret names one.
    """
    from farflung.launchers import Kubernetes

    launcher = Kubernetes(asked.workers(), image, namespace, secret)
    deliver(launcher, delivery)


@app.command()
@with_groups
def skypilot(
    *,
    asked: ScheduledWorkers,
    infra: Annotated[
        str, typer.Option(help="Where, such as aws/eu-west-1. [default: SkyPilot chooses]")
    ] = "",
    spot: Annotated[bool, typer.Option("--spot", help="On nodes that the cloud may take back.")] = False,
    setup: SetupOption = None,
    delivery: Delivery,
) -> None:
    """SkyPilot: a worker on each node of a cluster."""
    from farflung.launchers import SkyPilot

    launcher = SkyPilot(asked.workers(), infra, spot, tuple(setup or ()))
    deliver(launcher, delivery)


@app.command()
@with_groups
def ray(
    *,
    asked: ScheduledWorkers,
    address: Annotated[
        str, typer.Option(help="Address of the cluster; auto: this machine is part of it.")
    ] = "auto",
    delivery: Delivery,
) -> None:
    """Ray: workers as actors of a cluster.

    The program runs as long as its workers do; they leave when it is stopped.
    """
    from farflung.launchers import Ray

    deliver(Ray(asked.workers(), address), delivery)


@app.command()
@with_groups
def ssh(
    *,
    asked: OwnWorkers,
    hosts: Annotated[
        list[str], typer.Argument(metavar="[USER@]HOST...", help="Hosts that get a worker each.")
    ],
    options: Annotated[
        str, typer.Option("--ssh", metavar="OPTIONS", help='Options of ssh, such as "-p 2222".')
    ] = "",
    program: Annotated[
        str,
        typer.Option(
            "--program",
            metavar="PATH",
            help="farflung on the hosts: on their PATH or, with a slash, from the home folder on.",
        ),
    ] = "farflung",
    setup: SetupOption = None,
    delivery: Delivery,
) -> None:
    """ssh: a worker on each of some hosts.

    The shell script starts them and, with the word `stop`, lets them leave.
    """
    from farflung.launchers import Ssh

    workers = asked.workers(count=len(hosts))
    launcher = Ssh(workers, tuple(hosts), program, _words(options), tuple(setup or ()))
    deliver(launcher, delivery)


@app.command()
@with_groups
def systemd(
    *,
    asked: OwnWorkers,
    count: CountOption = 1,
    user: Annotated[
        str, typer.Option(help="User that the workers run as. [default: one that systemd makes]")
    ] = "",
    program: ProgramOption = None,
    output: OutputOption = None,
) -> None:
    """systemd: workers that start with a machine.

    The unit is a template with an instance for each worker.
    """
    from farflung.launchers import Systemd

    workers = asked.workers(count=count)
    deliver(Systemd(workers, _this_farflung(program), user), Delivery(output=output))


def _this_farflung(program: str | None) -> tuple[str, ...]:
    """The words that start farflung: `program`, or those that started this one."""
    if program is not None:
        return (program,)
    return (sys.executable, "-m", "farflung")


def _words(options: str) -> tuple[str, ...]:
    from farflung.errors import LaunchError

    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise LaunchError(f"--ssh cannot be split into words: {error}") from None
