"""systemd: a template unit, each of whose instances is one worker of a machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farflung.errors import LaunchError
from farflung.launchers.launcher import SECONDS_TO_LEAVE, Launcher, token_hint
from farflung.launchers.workers import require_line
from farflung.text import count_of

_UNIT = """\
# {counted} of this machine for the broker at {broker}. As root:
#   install -m 644 FILE /etc/systemd/system/{name}@.service
#   mkdir -p -m 700 /etc/farflung; read -rs T   # paste the token
#   (umask 077; echo "FARFLUNG_TOKEN=$T" >/etc/farflung/{name}.env)
#   systemctl daemon-reload && systemctl enable --now {instances}
# The broker's machine makes a token: {hint}
# Once the workers have joined they need it no more: rm /etc/farflung/{name}.env
# To let worker {first} hand over its share and leave: systemctl stop {name}@{first}
# Workers run as {who}, who must be able to read {program}
# and all that it imports: a venv in a private home folder fails. --program and --user change that.
[Unit]
Description=farflung worker %i for the broker at {described}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
# Only root and systemd can read it; "-": it may be missing.
EnvironmentFile=-/etc/farflung/{name}.env
Environment=HOME=/var/lib/{name}/%i
{environment}{user}
StateDirectory={name}/%i
StateDirectoryMode=0700
Restart=on-failure
RestartSec=10
# SIGTERM to the worker alone: others take its share within 10 minutes.
KillMode=mixed
TimeoutStopSec={seconds}
NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Systemd(Launcher):
    """A unit file: `farflung` are the words that start farflung on the machine, `user` as whom.

    Without `user` systemd makes one up. With `--device cuda` and several workers, worker N computes on
    GPU N.

    Raises
    ------
    LaunchError
        The program is not an absolute path, or the user's name is not one.
    """

    farflung: tuple[str, ...] = ("/usr/local/bin/farflung",)
    user: str = ""

    def __post_init__(self) -> None:
        for word in self.farflung:
            require_line(word, "--program")
        if not self.farflung[0].startswith("/"):
            raise LaunchError("systemd needs the whole path of farflung: --program /path/to/farflung")
        own = self.workers
        if own.count > 1 and own.memory is None and own.device != "cuda":
            raise LaunchError(
                f"{own.count} workers share this machine's memory: say with --memory what each may use"
            )
        if self.user and not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", self.user):
            raise LaunchError(f"--user is not a user's name: {self.user[:60]!r}")

    @property
    def first(self) -> int:
        """The number of the first instance: those of GPUs begin with 0."""
        return 0 if self._has_gpus else 1

    @property
    def _has_gpus(self) -> bool:
        return self.workers.device == "cuda" and self.workers.count > 1

    def render(self, token: str | None = None) -> str:
        """The unit file."""
        own = self.workers
        words = [*self.farflung, *own.join()]
        command = " ".join(quoted(word) for word in words)
        if self._has_gpus:
            command = command.replace('"--device=cuda"', '"--device=cuda:%i"')
        return _UNIT.format(
            counted=count_of(own.count, "farflung worker"),
            broker=own.broker,
            described=own.broker.replace("%", "%%"),
            name=own.name,
            first=self.first,
            instances=" ".join(f"{own.name}@{self.first + place}" for place in range(own.count)),
            hint=token_hint(own),
            command=f'{command} "--folder=/var/lib/{own.name}/%i/worker"',
            environment=f"Environment=OMP_NUM_THREADS={own.cpus}\n" if own.cpus else "",
            user=f"User={self.user}" if self.user else "DynamicUser=yes",
            who=self.user if self.user else "a user that systemd makes",
            program=self.farflung[0],
            seconds=SECONDS_TO_LEAVE,
        )


def quoted(word: str) -> str:
    """A word of a command as `systemd.service(5)` reads it, with specifiers and variables escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
