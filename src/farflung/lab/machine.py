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
    if shutil.which("ip") is None:
        raise LabError("the lab needs the ip command, which is not installed: apt install iproute2")
    if needs_nft and shutil.which("nft") is None:
        raise LabError("a node behind NAT needs nft, which is not installed: apt install nftables")
