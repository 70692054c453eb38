"""The checks of `farflung doctor`: each reports what it found, and the command that helps."""

from __future__ import annotations

import asyncio
import errno
import importlib
import platform
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from farflung.client.run.broker_client import ask_status
from farflung.errors import FarflungError, IdentityError
from farflung.localhost.findings import (
    Finding,
    fleet_findings,
    lost_findings,
    opset_findings,
    path_findings,
)
from farflung.plans.rates import tflops_text
from farflung.runtime.frameworks import COMPUTING, is_installed
from farflung.text import format_utc
from farflung.transport.endpoint import ask
from farflung.transport.net.addresses import DEFAULT_PORT, parse_address, parse_addresses
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import RENEWABLE_SECONDS, unverified_context
from farflung.transport.security.enrolment import renew_ended
from farflung.transport.security.identity import Identity
from farflung.transport.timeouts import Timeouts

OLDEST_PYTHON = (3, 11)
OLDEST = {"torch": (2, 9), "jax": (0, 10)}
CLOCK_OFF_SECONDS = 60.0


async def examine(folders: list[Path], broker: str | None) -> list[Finding]:
    """Check Python, frameworks, the broker's port, this user's certificates and the broker, if one is known.

    `folders` may hold identities; `broker` is HOST:PORT, by default the one that the first identity joined.
    """
    findings = [_python(), *await asyncio.to_thread(_frameworks), *await asyncio.to_thread(_devices)]
    findings.append(_port(DEFAULT_PORT))
    identities, troubles = _identities(folders)
    findings += troubles or [_certificate(identity) for identity in identities] or [_no_identity()]
    known = broker or next((identity.broker for identity in identities if identity.broker), None)
    if known is None:
        return findings
    for address in parse_addresses(known):
        reach, clock = await _reach(address)
        if reach.ok:
            break  # only one of several brokers answers: the others stand by
    findings.append(reach)
    if clock is not None:
        findings.append(clock)
        for identity in identities[:1]:
            findings += await _admitted(replace(identity, broker=address))
    return findings


def _python() -> Finding:
    found = f"Python {platform.python_version()} at {sys.executable}"
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Finding("python", sys.version_info >= OLDEST_PYTHON, found, f"install Python {wanted} or newer")


def _frameworks() -> list[Finding]:
    """Check the frameworks a worker here could use; submitting a job needs torch, too."""
    present = [framework for framework in COMPUTING if is_installed(framework)]
    if not present:
        found = f"neither {' nor '.join(COMPUTING)} is installed"
        return [Finding("framework", False, found, _install(COMPUTING[0]))]
    return [_framework(framework) for framework in present]


def _framework(name: str) -> Finding:
    try:
        version = str(importlib.import_module(name).__version__)
    except Exception as error:  # a broken install fails in many ways
        return Finding(name, False, f"{name} cannot be imported: {error}", _install(name))
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return Finding(name, found >= OLDEST[name], f"{name} {version}", _install(name))


def _devices() -> list[Finding]:
    """Name what PyTorch computes on here; a GPU that cannot be used is a failure."""
    if not is_installed("torch"):
        return []
    try:
        from farflung.runtime.torch_backend.choice import this_machine

        machine = this_machine()
    except ImportError:  # told by `_framework`
        return []
    if machine.gpus:
        return [
            Finding("device", False, f"{gpu.device}: {gpu.model}, {gpu.memory}", _FULL)
            if gpu.is_full
            else _measured(gpu.device, f"{gpu.device}: {gpu.model}, {gpu.memory}")
            for gpu in machine.gpus
        ]
    if machine.has_mps:
        return [_measured("mps", "mps: Apple GPU")]
    is_missing = machine.has_nvidia or bool(machine.trouble)
    why = machine.why_no_gpu()
    if is_missing:
        return [Finding("device", False, why, why.rpartition(": ")[2])]
    return [_measured("cpu", "the CPU")]


def _measured(device: str, name: str) -> Finding:
    """Name a device that can be used, with its rates; takes about a second."""
    import torch

    from farflung.runtime.torch_backend.profiling.rates import measure_rates, measure_tflops

    place = torch.device(device)
    try:
        rates = tflops_text(measure_tflops(place), measure_rates(place))
    except RuntimeError as error:  # memory was taken meanwhile, or the device fails
        said = str(error).strip().partition("\n")[0][:200]
        return Finding("device", False, f"{name}: it does not compute: {said}", "choose another device")
    return Finding("device", True, f"{name}, {rates} TFLOP/s")


_FULL = "end what uses the GPU (nvidia-smi lists it); until then workers here take another device"


def _install(framework: str) -> str:
    return f"pip install 'farflung[{framework}]'"


def _port(port: int) -> Finding:
    """Check whether a broker could listen on the port; it is fine if a broker already does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            found = f"port {port} is in use" if used else f"port {port} cannot be used: {error.strerror}"
            return Finding(
                "port",
                used,
                f"{found} (by a broker on this machine?)",
                "farflung broker --listen '[::]:7710'",
            )
    return Finding("port", True, f"port {port} is free for a broker")


def _identities(folders: list[Path]) -> tuple[list[Identity], list[Finding]]:
    identities, troubles = [], []
    for folder in folders:
        if not (folder / "identity.json").exists():
            continue
        try:
            identities.append(Identity.load(folder, ended_too=True))
        except IdentityError as error:
            troubles.append(Finding("certificate", False, str(error), "join again with --token"))
    return identities, troubles


def _no_identity() -> Finding:
    return Finding("certificate", True, "no identity on this machine yet; a first join needs a token")


def _certificate(identity: Identity) -> Finding:
    holder = identity.id if identity.id == identity.role else f"{identity.role} {identity.id}"
    if time.time() > identity.expires_at + RENEWABLE_SECONDS:
        found = f"{holder} expired at {format_utc(identity.expires_at)}, too long ago to be renewed"
        return Finding("certificate", False, found, "join again with --token")
    if identity.has_ended:
        return Finding("certificate", True, f"{holder}, ended {format_utc(identity.expires_at)}")
    days = (identity.expires_at - time.time()) / 86400
    left = f"{days:.1f} more days" if days >= 1 else f"{days * 24:.0f} more hours"
    return Finding("certificate", True, f"{holder}, good for {left}")


async def _reach(address: str) -> tuple[Finding, Finding | None]:
    """Check whether the broker answers and, if so, compare clocks, because certificates depend on them.

    The query needs no certificate, and its answer is not trusted.
    """
    port = parse_address(address)[1]
    helps = (
        f"on the broker's machine: farflung broker --listen '[::]:{port}', and let TCP port {port} through"
    )
    asked, seconds = time.time(), Timeouts().join_seconds
    try:
        request = join_messages.encode(join_messages.AskAuthority())
        answer = join_messages.decode_answer(await ask(address, unverified_context(), None, request, seconds))
    except FarflungError as error:
        return Finding("reach", False, str(error), helps), None
    reach = Finding("reach", True, f"{address} answers")
    if not isinstance(answer, join_messages.TellAuthority):
        return reach, Finding(
            "clock", False, "the broker does not tell its time", "check the broker's version"
        )
    return reach, _clock((asked + time.time()) / 2 - answer.clock)


def _clock(ahead: float) -> Finding:
    helps = "set the clock right: timedatectl set-ntp true"
    direction = "ahead of" if ahead > 0 else "behind"
    return Finding(
        "clock", abs(ahead) < CLOCK_OFF_SECONDS, f"{abs(ahead):.1f} s {direction} the broker's", helps
    )


async def _admitted(identity: Identity) -> list[Finding]:
    """Check whether the broker admits this holder and, if so, by which routes its last job was connected."""
    try:
        if identity.has_ended:
            identity = await renew_ended(identity)
        status = await ask_status(identity)
    except FarflungError as error:
        helps = f"farflung token create --role {identity.role} on the broker, then join again with --token"
        return [Finding("broker", False, f"{identity.id} is not admitted: {error}", helps)]
    workers = {worker.worker for worker in status.workers}
    found = f"{identity.id} is admitted; farflung {status.version}, {status.workers_counted()}"
    admitted = Finding("broker", True, found)
    holder = identity.id if identity.role == "worker" else None
    return [
        admitted,
        *fleet_findings(status, identity.broker),
        *lost_findings(status.workers),
        *opset_findings(status.workers),
        *path_findings(holder, status.links, workers),
    ]
