"""`farflung launch`: scripts and manifests that start many workers, one command for each system."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from farflung.cli.options.launching import (
    AskedDeviceOption,
    BrokerArgument,
    BrokerFolderOption,
    CountOption,
    CpusOption,
    DeviceOption,
    DiskOption,
    GpuOption,
    MemoryOption,
    NameOption,
    OutputOption,
    ProgramOption,
    SetupOption,
    SiteOption,
    SubmitOption,
)
from farflung.cli.process.identity import TokenFile, TokenText
from farflung.cli.process.launching import deliver

NAME = "farflung-workers"

app = typer.Typer(
    help="Write a script or manifest that starts many workers, or submit it.", rich_markup_mode=None
)


@app.command()
def slurm(
    broker: BrokerArgument,
    count: CountOption,
    name: NameOption = NAME,
    site: SiteOption = "",
    device: AskedDeviceOption = "cpu",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
    gpu: GpuOption = None,
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
    output: OutputOption = None,
    submit: SubmitOption = False,
    token: TokenText = None,
    token_file: TokenFile = None,
    broker_folder: BrokerFolderOption = None,
) -> None:
    """Slurm: a job array of workers.

    The batch script asks for each worker by itself, so that it begins as soon as there is room for it.
    """
    from farflung.launchers import Slurm, Workers

    workers = Workers(broker, count, name, site, device, memory, disk, cpus, gpu)
    launcher = Slurm(workers, _this_farflung(program), hours, tuple(sbatch or ()), tuple(setup or ()))
    deliver(launcher, output, submit, token, token_file, broker_folder)


@app.command()
def kubernetes(
    broker: BrokerArgument,
    count: CountOption,
    image: Annotated[str, typer.Option(help="Image with farflung, built from its Dockerfile.")],
    name: NameOption = NAME,
    site: SiteOption = "",
    device: AskedDeviceOption = "cpu",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
    gpu: GpuOption = None,
    namespace: Annotated[str, typer.Option(help="Namespace. [default: kubectl's]")] = "",
    secret: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Existing Secret whose key `token` is the token. [default: the manifest holds one]",
        ),
    ] = "",
    output: OutputOption = None,
    submit: SubmitOption = False,
    token: TokenText = None,
    token_file: TokenFile = None,
    broker_folder: BrokerFolderOption = None,
) -> None:
    """Kubernetes: a Deployment of workers.

    The manifest has a Secret with the token, unless --secret names one.
    """
    from farflung.launchers import Kubernetes, Workers

    workers = Workers(broker, count, name, site, device, memory, disk, cpus, gpu)
    launcher = Kubernetes(workers, image, namespace, secret)
    deliver(launcher, output, submit, token, token_file, broker_folder)


@app.command()
def skypilot(
    broker: BrokerArgument,
    count: CountOption,
    name: NameOption = NAME,
    site: SiteOption = "",
    device: AskedDeviceOption = "cpu",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
    gpu: GpuOption = None,
    infra: Annotated[
        str, typer.Option(help="Where, such as aws/eu-west-1. [default: SkyPilot chooses]")
    ] = "",
    spot: Annotated[bool, typer.Option("--spot", help="On nodes that the cloud may take back.")] = False,
    setup: SetupOption = None,
    output: OutputOption = None,
    submit: SubmitOption = False,
    token: TokenText = None,
    token_file: TokenFile = None,
    broker_folder: BrokerFolderOption = None,
) -> None:
    """SkyPilot: a worker on each node of a cluster."""
    from farflung.launchers import SkyPilot, Workers

    workers = Workers(broker, count, name, site, device, memory, disk, cpus, gpu)
    launcher = SkyPilot(workers, infra, spot, tuple(setup or ()))
    deliver(launcher, output, submit, token, token_file, broker_folder)


@app.command()
def ray(
    broker: BrokerArgument,
    count: CountOption,
    name: NameOption = NAME,
    site: SiteOption = "",
    device: AskedDeviceOption = "cpu",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
    gpu: GpuOption = None,
    address: Annotated[
        str, typer.Option(help="Address of the cluster; auto: this machine is part of it.")
    ] = "auto",
    output: OutputOption = None,
    submit: SubmitOption = False,
    token: TokenText = None,
    token_file: TokenFile = None,
    broker_folder: BrokerFolderOption = None,
) -> None:
    """Ray: workers as actors of a cluster.

    The program runs as long as its workers do; they leave when it is stopped.
    """
    from farflung.launchers import Ray, Workers

    workers = Workers(broker, count, name, site, device, memory, disk, cpus, gpu)
    deliver(Ray(workers, address), output, submit, token, token_file, broker_folder)


@app.command()
def ssh(
    broker: BrokerArgument,
    hosts: Annotated[
        list[str], typer.Argument(metavar="[USER@]HOST...", help="Hosts that get a worker each.")
    ],
    name: NameOption = NAME,
    site: SiteOption = "",
    device: DeviceOption = "auto",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
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
    output: OutputOption = None,
    submit: SubmitOption = False,
    token: TokenText = None,
    token_file: TokenFile = None,
    broker_folder: BrokerFolderOption = None,
) -> None:
    """ssh: a worker on each of some hosts.

    The shell script starts them and, with the word `stop`, lets them leave.
    """
    from farflung.launchers import Ssh, Workers

    workers = Workers(broker, len(hosts), name, site, device, memory, disk, cpus)
    launcher = Ssh(workers, tuple(hosts), program, _words(options), tuple(setup or ()))
    deliver(launcher, output, submit, token, token_file, broker_folder)


@app.command()
def systemd(
    broker: BrokerArgument,
    count: CountOption = 1,
    name: NameOption = NAME,
    site: SiteOption = "",
    device: DeviceOption = "auto",
    memory: MemoryOption = None,
    disk: DiskOption = None,
    cpus: CpusOption = None,
    user: Annotated[
        str, typer.Option(help="User that the workers run as. [default: one that systemd makes]")
    ] = "",
    program: ProgramOption = None,
    output: OutputOption = None,
) -> None:
    """systemd: workers that start with a machine.

    The unit is a template with an instance for each worker.
    """
    from farflung.launchers import Systemd, Workers

    workers = Workers(broker, count, name, site, device, memory, disk, cpus)
    deliver(Systemd(workers, _this_farflung(program), user), output)


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
