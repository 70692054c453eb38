"""Ray: a driver that runs each worker as an actor of a cluster."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.launcher import SECONDS_TO_LEAVE, SubmittingLauncher, token_hint
from farflung.launchers.workers import require_word

_DRIVER = '''\
"""Runs {count} farflung workers for the broker at {broker} as actors of a Ray cluster, until you stop it.

The token comes from the environment of this program, never from its command line:
    read -rs FARFLUNG_TOKEN; export FARFLUNG_TOKEN; python FILE
The broker's machine makes one: {hint}
Ctrl-C or SIGTERM lets all workers hand over their shares and leave. `farflung drain WORKER` does so for one.
If Ray loses a node, the worker starts anew on another one, which takes another use of the token.
"""

import os
import signal
import subprocess
import sys
import threading

import ray

WORKERS = {count}
JOIN = {join}
RESOURCES = {resources}
ENVIRONMENT = {environment}
SECONDS_TO_LEAVE = {seconds}


@ray.remote(**RESOURCES, max_restarts=3, max_task_retries=3, max_concurrency=2, scheduling_strategy="SPREAD")
class Worker:
    """One worker on some node, which Ray starts again if it loses the node."""

    def __init__(self, token):
        environment = {{**os.environ, **ENVIRONMENT, "FARFLUNG_TOKEN": token}}
        self.process = subprocess.Popen([sys.executable, "-m", "farflung", *JOIN], env=environment)

    def wait(self):
        """The exit code, once the worker has left."""
        return self.process.wait()

    def leave(self):
        """Let the worker hand over its share."""
        self.process.terminate()


def main():
    """Run all workers; the exit code is 1 if one of them failed."""
    token = os.environ.get("FARFLUNG_TOKEN") or sys.exit("error: export FARFLUNG_TOKEN before you run this")
    stop = threading.Event()
    ray.init(address={address})
    for number in (signal.SIGINT, signal.SIGTERM):  # now: Ray has handlers of its own
        signal.signal(number, lambda *_: stop.set())
    # As an argument: Ray's dashboard would show it if it were in the runtime environment.
    workers = [Worker.remote(token) for _ in range(WORKERS)]
    running = {{worker.wait.remote(): worker for worker in workers}}
    failed = False
    while running and not stop.is_set():
        ended, _ = ray.wait(list(running), timeout=0.5)
        failed |= any([has_failed(one) for one in ended])
        for one in ended:
            del running[one]
    for worker in running.values():
        worker.leave.remote()
    if running:
        ended, left = ray.wait(list(running), num_returns=len(running), timeout=SECONDS_TO_LEAVE)
        failed |= any([has_failed(one) for one in ended]) or bool(left)
    return int(failed)


def has_failed(ended):
    """Whether a worker has ended with an error, or Ray has given it up."""
    try:
        return ray.get(ended) != 0
    except ray.exceptions.RayError as error:
        print(f"error: {{error}}", file=sys.stderr)
        return True


if __name__ == "__main__":
    sys.exit(main())
'''


@dataclass(frozen=True)
class Ray(SubmittingLauncher):
    """A Python program for the cluster at `address`: `auto` for the one that this machine is part of.

    farflung must be installed in the Python of each node.

    Raises
    ------
    LaunchError
        The address is empty or has spaces.
    """

    address: str = "auto"

    program: ClassVar[str] = sys.executable
    where: ClassVar[str] = "run this on a node of the cluster"

    def __post_init__(self) -> None:
        require_word(self.address, "--address")

    def render(self, token: str | None = None) -> str:
        """The Python program."""
        own = self.workers
        resources: dict[str, object] = {"num_cpus": own.cpus or 1, "num_gpus": own.asked_gpus()}
        if (memory := own.asked_memory_gb()) is not None:
            resources["memory"] = memory * 10**9
        if own.gpu:
            resources["accelerator_type"] = own.gpu
        return _DRIVER.format(
            count=own.count,
            broker=own.broker,
            hint=token_hint(own),
            join=repr(own.join("--temporary")),
            resources=repr(resources),
            environment=repr({"OMP_NUM_THREADS": str(own.cpus)} if own.cpus else {}),
            seconds=SECONDS_TO_LEAVE,
            address=repr(self.address),
        )

    def command(self) -> list[str]:
        """This Python, which reads the program from standard input and runs it until it is stopped."""
        return [self.program, "-"]

    def require_program(self) -> None:
        """Raise LaunchError if this Python has no Ray."""
        if importlib.util.find_spec("ray") is None:
            raise LaunchError(
                f"Ray is not installed for {self.program}: {self.where}, or write the program with --output"
                " FILE and run it there"
            )
