"""Choose a backend by name.

Only the chosen backend's framework is imported: a worker on JAX does not need torch.
"""

from __future__ import annotations

import math
import re
from importlib.util import find_spec

from farflung.errors import JobError
from farflung.files import cache_folder
from farflung.runtime.backend import EMULATED, AnyBackend

AUTO = "auto"
COMPUTING = ("torch", "jax")
"""Frameworks, which are also names of farflung's extras; `auto` uses the first one that is installed."""
BACKENDS = (AUTO, *COMPUTING, EMULATED)
DEVICES = r"auto|cpu|mps|cuda(:\d{1,3})?"
"""What `--device` takes, which has a meaning for PyTorch only."""


def is_installed(framework: str) -> bool:
    """Whether a framework is installed, without importing it."""
    return find_spec(framework) is not None


def require_installed(framework: str, why: str = "") -> None:
    """Check that a framework is installed.

    Raises
    ------
    JobError
        It is not; the message begins with `why` and ends with the command that installs it.
    """
    if not is_installed(framework):
        reason = f"{why}, and " if why else ""
        raise JobError(f"{reason}this Python has no {framework}: pip install 'farflung[{framework}]'")


def chosen(backend: str) -> str:
    """Resolve a name, such as "auto", to a backend: torch, jax or emulated.

    Raises
    ------
    JobError
        There is no such backend, or its framework is not installed.
    """
    if backend not in BACKENDS:
        listed = f"{', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
        raise JobError(f"a backend is {listed}, found {backend[:40]!r}")
    if backend == AUTO:
        present = [framework for framework in COMPUTING if is_installed(framework)]
        if not present:
            extras = " or ".join(f"'farflung[{framework}]'" for framework in COMPUTING)
            raise JobError(f"this Python has neither {' nor '.join(COMPUTING)}: pip install {extras}")
        return present[0]
    if backend in COMPUTING:
        require_installed(backend)
    return backend


def checked(name: str, tflops: float | None, device: str = AUTO) -> str:
    """Check the arguments of `backend_called` without importing a framework, which takes seconds.

    Raises
    ------
    JobError
        As `backend_called` does.
    """
    backend = chosen(name)
    if backend == EMULATED:
        if tflops is None or not 0 < tflops < math.inf:
            raise JobError(f"an emulated device needs --tflops, a number above 0, found {tflops}")
    elif tflops is not None:
        raise JobError(f"--tflops is for --backend emulated: {backend} computes as fast as it can")
    if check_device(device) != AUTO and backend != "torch":
        raise JobError(f"--device is for --backend torch: {backend} takes the device that it finds")
    return backend


def check_device(device: str) -> str:
    """Check the form of a device's name; raises JobError if it has none of the known ones."""
    if not re.fullmatch(DEVICES, device):
        raise JobError(f"--device takes auto, cpu, cuda, cuda:N or mps, found {device[:40]!r}")
    return device


def backend_called(name: str, tflops: float | None = None, device: str = "cpu") -> AnyBackend:
    """Create a backend by name; `tflops` is the sustained speed of an emulated device, None for others.

    `device` is a device of PyTorch that exists, as `torch.device` names it; the other backends ignore it.

    Raises
    ------
    JobError
        There is no such backend, its framework is not installed, or `tflops` is missing or not applicable.
    """
    backend = checked(name, tflops)
    if backend == EMULATED:
        assert tflops is not None
        from farflung.runtime.emulated.backend import EmulatedBackend

        return EmulatedBackend(tflops)
    if backend == "jax":
        from farflung.runtime.jax_backend.backend import JaxBackend

        return JaxBackend(cache_folder() / "xla")
    import torch

    from farflung.runtime.torch_backend.backend import TorchBackend

    return TorchBackend(torch.device(device))
