"""`farflung join`: offer this machine to a broker as a worker."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.relaying import RelayOption
from farflung.cli.process.identity import TokenFile, TokenText, obtain_identity, token_from
from farflung.cli.process.service import (
    ExitWithParent,
    LogJsonOption,
    heed_parent,
    restart_process,
    run_service,
)
from farflung.cli.render.output import note
from farflung.cli.render.progress import searching
from farflung.errors import DeviceHeld, JobError
from farflung.transport.security.identity_folder import folder_of, hold_folder

if TYPE_CHECKING:
    from farflung.runtime.backend import AnyBackend
    from farflung.worker.options import WorkerOptions


BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="HOST[:PORT]",
        help="Address of the broker, or several with commas between; port 7700 by default.",
    ),
]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the identity. [default: ~/.farflung/worker]")
]
TflopsOption = Annotated[float | None, typer.Option(help="TFLOP/s that an emulated device sustains.")]
NameOption = Annotated[str | None, typer.Option(help="Id of this worker. [default: host name and a suffix]")]
SiteOption = Annotated[str, typer.Option(help="Site of this worker; workers of one site have fast links.")]
ListenOption = Annotated[
    str, typer.Option(help="HOST:PORT to listen on for other workers; port 0: any free port.")
]
AdvertiseOption = Annotated[
    list[str] | None, typer.Option(help="HOST:PORT where others reach this worker; may be repeated.")
]
UpOption = Annotated[
    float | None,
    typer.Option("--up-mbps", metavar="MBPS", help="Upload rate of its access line. [default: measured]"),
]
DownOption = Annotated[
    float | None,
    typer.Option("--down-mbps", metavar="MBPS", help="Download rate of its access line. [default: measured]"),
]
ProbeOption = Annotated[
    bool, typer.Option("--probe/--no-probe", help="Let the broker measure this worker's links.")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="GB|SHARE%",
        help="Memory that jobs may use, in GB or as a share of a GPU's free memory, or of the machine's."
        " [default: 80% of the machine's, 90% of a GPU's free memory]",
    ),
]
DiskOption = Annotated[
    float | None,
    typer.Option(
        help="GB of disk for copies of the state of jobs, its own and other workers', and for base weights;"
        " 0: none. [default: a fifth of what is free]"
    ),
]
BaseOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL-PREFIX|none",
        help="From where this worker may fetch base weights that a job names by URL; may be repeated."
        " [default: https, from public addresses]",
    ),
]
StandbyOption = Annotated[
    float | None,
    typer.Option(
        "--standby-mbps",
        metavar="MBPS",
        help="The rate at which this worker sends copies of its state to other workers."
        " [default: what training leaves of the line]",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="What PyTorch computes on; auto: the GPU with the most free memory, else the CPU.",
    ),
]
HomeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--home-of",
        metavar="SUBMITTER",
        help="This is the home worker of a submitter, whose data may stay with it (`Job(keep_home=)`); may"
        " be repeated.",
    ),
]
TemporaryOption = Annotated[
    bool,
    typer.Option(
        "--temporary",
        help="Keep its identity and copies in a new folder, which goes when it ends; each start needs a"
        " token.",
    ),
]
BackendOption = Annotated[
    str,
    typer.Option(
        help="torch, jax or auto (torch if it is installed, else jax); in a lab also emulated, which only"
        " sleeps."
    ),
]


def join(
    broker: BrokerArgument,
    token: TokenText = None,
    token_file: TokenFile = None,
    name: NameOption = None,
    site: SiteOption = "",
    listen: ListenOption = "[::]:0",
    advertise: AdvertiseOption = None,
    relay: RelayOption = 0.0,
    up: UpOption = None,
    down: DownOption = None,
    probe: ProbeOption = True,
    folder: FolderOption = None,
    temporary: TemporaryOption = False,
    memory: MemoryOption = None,
    disk: DiskOption = None,
    base: BaseOption = None,
    standby_mbps: StandbyOption = None,
    home_of: HomeOption = None,
    backend: BackendOption = "auto",
    device: DeviceOption = "auto",
    tflops: TflopsOption = None,
    as_json: LogJsonOption = False,
    exit_with_parent: ExitWithParent = None,
) -> None:
    """Work for a broker until stopped; reconnects if the connection is lost.

    The first Ctrl-C or SIGTERM hands this worker's share of a job to another one, for up to 10 minutes. A
    second one leaves at once.
    """
    from farflung.heap import keep_freed_memory

    keep_freed_memory()  # before any thread, such as the one that watches the parent, has its own heap
    heed_parent(exit_with_parent)
    if memory is not None:
        _memory_bytes(memory, None)  # a mistake in it ends the command before anything begins
    _check_line(up, down, standby_mbps)
    from farflung.weights.allowed import Allowed

    allowed = Allowed.parse(base or [])
    homes = _homes(home_of or [])
    from farflung.runtime.frameworks import checked

    framework = checked(backend, tflops, device)
    given = token_from(token, token_file)
    try:
        with _own_folder(folder, temporary) as own:
            identity = asyncio.run(obtain_identity(own, "worker", broker, given, name))
            hold_folder(own)
            # Last: a worker that is refused need not wait for it.
            computes, free_bytes = _imported(framework, tflops, device)
            from farflung.protocol.registration import HomeLine
            from farflung.worker.memory_limit import limit_memory
            from farflung.worker.options import WorkerOptions

            options = WorkerOptions(
                identity=identity,
                listen=listen,
                memory_bytes=_memory_bytes(memory, free_bytes),
                host_memory_bytes=None if free_bytes is None else _share_of_host(),
                backend=computes,
                site=site,
                advertise=advertise or [],
                relay_mbps=relay,
                line=HomeLine(up, down, probe),
                disk_bytes=_disk_bytes(disk),
                standby_mbps=standby_mbps or 0.0,
                base=allowed,
                home_of=homes,
            )
            if framework == "torch" and free_bytes is None:  # XLA ends the process where memory is short
                limit_memory(options.memory_bytes)
            _work(options, as_json, hands_over=exit_with_parent is None)
    except DeviceHeld as held:
        restart_process(str(held))


def _work(options: WorkerOptions, as_json: bool, hands_over: bool) -> None:
    """Run the worker until it ends; if it `hands_over`, the first Ctrl-C lets others take its share."""
    from farflung.worker.departure import Departure
    from farflung.worker.service import run

    departure = Departure()
    # The workers of a local fleet end with it: no worker is left that could take their shares.
    ask = departure.ask if hands_over else lambda: False
    gc.freeze()  # or each collection would scan every object of a framework and block all threads
    run_service(run(options, departure), as_json, ask)


@contextmanager
def _own_folder(given: Path | None, temporary: bool) -> Iterator[Path]:
    """The folder of the identity; a temporary one goes with the block."""
    if not temporary:
        yield folder_of("worker", given)
        return
    if given is not None:
        raise JobError("--temporary makes a folder of its own: leave out --folder")
    with tempfile.TemporaryDirectory(prefix="farflung-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _imported(framework: str, tflops: float | None, device: str) -> tuple[AnyBackend, int | None]:
    """The backend and the free memory of its GPU, if it has one; says what it computes on unless the CPU.

    Prints a line while it imports a framework.
    """
    from farflung.runtime.frameworks import COMPUTING

    if framework not in COMPUTING or framework in sys.modules:
        return _on_device(framework, tflops, device)
    with searching() as tell:
        tell(f"importing {framework} to measure this machine with it takes 3 to 10 s")
        return _on_device(framework, tflops, device)


def _on_device(framework: str, tflops: float | None, device: str) -> tuple[AnyBackend, int | None]:
    from farflung.runtime.frameworks import backend_called

    if framework != "torch":
        return backend_called(framework, tflops), None
    if device == "cpu":  # asking for GPUs begins CUDA
        return backend_called(framework, tflops), None
    from farflung.runtime.torch_backend.choice import choose, this_machine

    found = choose(device, this_machine())
    if found.remark:
        note(found.remark)
    if found.name:
        note(f"computes on {found.name} ({found.device})")
    return backend_called(framework, tflops, found.device), found.memory_bytes


def _homes(given: list[str]) -> tuple[str, ...]:
    from farflung.protocol.registration import MOST_HOMES
    from farflung.transport.security.names import check_id

    if len(given) > MOST_HOMES:
        raise JobError(f"--home-of takes at most {MOST_HOMES} submitters, found {len(given)}")
    return tuple(dict.fromkeys(check_id(id) for id in given))


def _check_line(up: float | None, down: float | None, standby: float | None) -> None:
    from farflung.plans.topology import LEAST_MBPS, MOST_MBPS

    for option, rate in (("--up-mbps", up), ("--down-mbps", down), ("--standby-mbps", standby)):
        if rate is not None and not LEAST_MBPS <= rate <= MOST_MBPS:
            raise JobError(f"{option} must be {LEAST_MBPS:g} to {MOST_MBPS:g} Mbit/s, found {rate:g}")


def _disk_bytes(gigabytes: float | None) -> int | None:
    if gigabytes is None:
        return None
    if not 0 <= gigabytes < 1e6:
        raise JobError(f"--disk takes a number of gigabytes, 0 for none, found {gigabytes:g}")
    return int(gigabytes * 1e9)


def _share_of_host() -> int:
    """What a worker with a GPU may use of the machine's memory, if each GPU has a worker; half of a CPU's."""
    from farflung.localhost.devices import share_of_memory
    from farflung.runtime.torch_backend.choice import this_machine

    return share_of_memory(2 * max(1, len(this_machine().gpus)))


def _memory_bytes(given: str | None, free_bytes: int | None) -> int:
    """What the owner gives; else nearly all of the GPU's memory that is free, or a share of the machine's.

    A share, such as 45%, is of what a GPU has free, or of the machine's memory.
    """
    from farflung.localhost.devices import memory_here, share_of_free, share_of_memory

    if given is None:
        return share_of_memory(1) if free_bytes is None else share_of_free(free_bytes)
    number = _positive(given.removesuffix("%"))
    if not given.endswith("%"):
        return int(number * 1e9)
    if number > 100:
        raise JobError(f"--memory: {given} is more than there is")
    return int(number / 100 * (memory_here() if free_bytes is None else free_bytes))


def _positive(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise JobError(
            f"--memory must be a positive number of GB, or a share such as 45%, found {given[:40]!r}"
        )
    return number
