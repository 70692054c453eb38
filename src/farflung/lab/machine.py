"""Check whether this machine can run a lab."""

from __future__ import annotations

import os
import shutil
import sys

from farflung.errors import LabError
from farflung.lab.switch import tun


def check_machine(needs_nft: bool = False) -> None:
    """Raise `LabError`, with advice, unless this machine can run a lab."""
    if sys.platform != "linux":
        raise LabError(f"the lab needs Linux (network namespaces and TUN devices), this is {sys.platform}")
    if os.geteuid() != 0:
        raise LabError("the lab needs root for its network namespaces: run this command with sudo")
    if not tun.DEVICE.exists():
        raise LabError(f"the lab needs {tun.DEVICE}, which is not there: modprobe tun")
    require_program("ip", "the lab")
    if needs_nft:
        require_program("nft", "a node behind NAT")


PACKAGES = {"ip": "iproute2", "nft": "nftables", "ping": "iputils-ping"}
"""The programs that a lab uses, with the packages that bring them on Debian."""


def require_program(name: str, who: str) -> None:
    """Raise `LabError`, with advice, unless the program is installed that `who` needs."""
    if shutil.which(name) is None:
        raise LabError(f"{who} needs {name}, which is not installed: apt install {PACKAGES[name]}")
