"""What a launcher starts: some workers of one broker, all alike."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from farflung.errors import LaunchError
from farflung.text import printable
from farflung.transport.net.addresses import parse_addresses

MOST_WORKERS = 10_000
MOST_SITE_CHARACTERS = 128
MOST_NAME_CHARACTERS = 40
PROGRAM_GB = 2
"""What the program itself needs of a machine's memory: Python, the framework and buffers of links."""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_BROKER = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:%,\[\]-]*")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_GPU = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Workers:
    """`count` workers of the broker at `broker`: HOST[:PORT], or several with commas between.

    `site`, `device`, `memory` and `disk` are those of `farflung join`; `disk` is in GB. `cpus` cores and a
    GPU of the kind `gpu` are asked of a scheduler for each worker. `name` names the script, job or cluster.

    Raises
    ------
    LaunchError
        There are no workers, or they have a name, site, device or size that `join` would refuse.
    ConnectionFailed
        `broker` is not an address.
    """

    broker: str
    count: int
    name: str = "farflung-workers"
    site: str = ""
    device: str = "auto"
    memory: str | None = None
    disk: float | None = None
    cpus: int | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "broker", ",".join(parse_addresses(self.broker)))
        if not _BROKER.fullmatch(self.broker):
            raise LaunchError(f"expected HOST:PORT of the broker, found {_shown(self.broker)}")
        if not 1 <= self.count <= MOST_WORKERS:
            raise LaunchError(f"expected 1 to {MOST_WORKERS} workers, found {self.count}")
        if len(self.name) > MOST_NAME_CHARACTERS or not _NAME.fullmatch(self.name):
            raise LaunchError(
                f"--name {_shown(self.name)} cannot name these workers: use 1 to {MOST_NAME_CHARACTERS}"
                " lower-case letters, digits and '-', with a letter in front and no '-' at the end"
            )
        if len(self.site) > MOST_SITE_CHARACTERS or not self.site.isprintable():
            raise LaunchError(
                f"--site takes at most {MOST_SITE_CHARACTERS} printable characters, found {_shown(self.site)}"
            )
        self._check_sizes()

    def _check_sizes(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise LaunchError(f"--device must be auto, cpu, cuda, cuda:N or mps, found {_shown(self.device)}")
        number = (self.memory or "1").removesuffix("%")
        if not _NUMBER.fullmatch(number) or not 0 < float(number) < 1e6:
            raise LaunchError(
                f"--memory must be a positive number of GB, or a share such as 45%, found {_shown(number)}"
            )
        if self.disk is not None and not 0 <= self.disk < 1e6:
            raise LaunchError(f"--disk takes a number of gigabytes, 0 for none, found {self.disk:g}")
        if self.cpus is not None and not 1 <= self.cpus <= 1024:
            raise LaunchError(f"--cpus must be 1 to 1024 cores for a worker, found {self.cpus}")
        if self.gpu is not None and not _GPU.fullmatch(self.gpu):
            raise LaunchError(
                f"--gpu takes the scheduler's name of a GPU, such as A100, found {_shown(self.gpu)}"
            )
        if self.gpu is not None and not self.device.startswith("cuda"):
            raise LaunchError(f"--gpu asks for a GPU, but --device is {self.device}: add --device cuda")

    def join(self, *more: str) -> list[str]:
        """The words after `farflung` that start one worker; `more` are options of the launcher's own."""
        given = {"site": self.site, "device": self.device, "memory": self.memory}
        words = ["join", self.broker, *(f"--{name}={value}" for name, value in given.items() if value)]
        return [*words, *([] if self.disk is None else [f"--disk={self.disk:g}"]), *more]

    def asked_gpus(self) -> int:
        """How many GPUs a scheduler should give to each worker: 1 with `--device cuda`, 0 with `cpu`.

        Raises
        ------
        LaunchError
            The device is another one: a scheduler must be asked for a GPU, and chooses which.
        """
        if self.device not in ("cpu", "cuda"):
            raise LaunchError(
                f"a scheduler gives GPUs to those that ask: --device must be cpu or cuda, found {self.device}"
            )
        return int(self.device == "cuda")

    def asked_memory_gb(self) -> int | None:
        """The GB of memory to ask of a scheduler for each worker; None on a GPU, whose memory `memory` is.

        Raises
        ------
        LaunchError
            A worker on the CPU does not say how many GB: it would count on all of a machine that it shares.
        """
        if self.device == "cuda":
            return None
        if self.memory is None or self.memory.endswith("%"):
            raise LaunchError(
                "say with --memory GB how much jobs may use: a scheduler gives each worker a part of a"
                " machine, and ends those that take more"
            )
        return math.ceil(float(self.memory)) + PROGRAM_GB


def require_word(text: str, what: str) -> None:
    """Raise LaunchError unless the text is printable, not empty and without spaces."""
    if not text or not text.isprintable() or " " in text:
        raise LaunchError(f"{what} must be printable and without spaces, found {_shown(text)}")


def require_line(text: str, what: str) -> None:
    """Raise LaunchError unless the text is one line of printable characters."""
    if not text or not text.isprintable():
        raise LaunchError(f"{what} must be one line of printable characters, found {_shown(text)}")


def _shown(text: str) -> str:
    return f"'{printable(text[:60])}'"
