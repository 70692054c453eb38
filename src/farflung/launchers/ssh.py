"""ssh: a shell script that starts one worker on each of some hosts, and stops them again."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.launcher import SubmittingLauncher, token_hint
from farflung.launchers.workers import require_line
from farflung.text import printable

_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,63}@)?[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,252}")

_SCRIPT = """\
#!/bin/sh
# Starts a farflung worker for the broker at {broker} on each of these hosts: sh FILE
# Lets them hand over their shares and leave, within 10 minutes: sh FILE stop
#
# The token comes from your environment, and goes to the hosts inside the connection, in no command line:
#   read -rs FARFLUNG_TOKEN; export FARFLUNG_TOKEN; sh FILE
# The broker's machine makes one: {hint}
# Hosts that have joined before need none. Each keeps identity and log in ~/.farflung/{name}/HOST.

action=${{1:-start}}
case $action in
start | stop) ;;
*) echo "usage: sh FILE [start|stop]" >&2; exit 2 ;;
esac
case ${{FARFLUNG_TOKEN:-}} in
*[!a-z0-9-]*) echo "error: FARFLUNG_TOKEN is not a token" >&2; exit 2 ;;
esac

on_host() {{
  {{
    printf 'action=%s host=%s FARFLUNG_TOKEN=%s\\n' "$action" "$1" "${{FARFLUNG_TOKEN:-}}"
    cat <<'END OF THE PART FOR A HOST'
{remote}END OF THE PART FOR A HOST
  }} | ssh {options}-o BatchMode=yes -- "$1" sh -s
}}

failed=$(
  for host in {hosts}; do
    {{ on_host "$host" >&2 || echo "$host"; }} &
  done
  wait
)
[ -z "$failed" ] || {{ echo "error: failed on" $failed >&2; exit 1; }}
"""
_REMOTE = """\
say() {{ echo "$host: $*"; }}
cd && folder=$PWD/.farflung/{name}/$host && umask 077 && mkdir -p "$folder" || exit 1
# Its command line has the folder, so a number that another process has now is not taken for it.
runs() {{ [ -s "$folder/pid" ] && ps -o args= -p "$(cat "$folder/pid")" | grep -Fq -- "$folder"; }}
if [ "$action" = stop ]; then
  if ! runs; then say "no worker runs"; exit; fi
  # Only once: at a second SIGTERM a worker leaves at once, and hands nothing over.
  if [ -e "$folder/stopped" ]; then say "is leaving"; exit; fi
  : >"$folder/stopped" && kill -TERM "$(cat "$folder/pid")" && say leaves
  exit
fi
if runs && [ -e "$folder/stopped" ]; then say "is leaving: start it again later"; exit 1; fi
if runs; then say "runs already"; exit; fi
rm -f "$folder/stopped"
{setup}
command -v {program} >/dev/null || {{ say "no farflung here: install it, or use --program"; exit 127; }}
if [ -n "$FARFLUNG_TOKEN" ]; then export FARFLUNG_TOKEN; else unset FARFLUNG_TOKEN; fi
nohup {command} --folder="$folder" </dev/null >"$folder/log" 2>&1 &
pid=$!
echo $pid >"$folder/pid"
waited=0
while sleep 1 && kill -0 $pid 2>/dev/null && ! grep -q "registered as" "$folder/log"; do
  waited=$((waited + 1))
  if [ $waited -ge {seconds} ]; then say "not with the broker yet; see $folder/log"; exit; fi
done
kill -0 $pid 2>/dev/null || {{ say "$(tail -n 1 "$folder/log")"; exit 1; }}
say "started; its log is $folder/log"
"""
SECONDS_TO_JOIN = 60
"""How long the script waits for a worker to be with the broker; most of that it imports a framework."""


@dataclass(frozen=True)
class Ssh(SubmittingLauncher):
    """A shell script for `hosts`, each HOST or USER@HOST as `ssh` takes it.

    `farflung` is looked for on the PATH of the hosts or, with a slash, from their home folder on. `options`
    are those of ssh, such as `-p`, `2222`. `setup` are commands that a host runs before.

    Raises
    ------
    LaunchError
        A host is not one, or is there twice.
    """

    hosts: tuple[str, ...] = ()
    farflung: str = "farflung"
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    program: ClassVar[str] = "ssh"
    where: ClassVar[str] = "install OpenSSH's client"
    token_is_optional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise LaunchError(f"expected HOST or USER@HOST, found '{printable(host[:80])}'")
        if twice := next((host for host in self.hosts if self.hosts.count(host) > 1), None):
            raise LaunchError(f"{twice} is named twice: a host gets one worker")
        require_line(self.farflung, "--program")
        for line in (*self.setup, *self.options):
            require_line(line, "--setup and --ssh")

    def render(self, token: str | None = None) -> str:
        """The shell script."""
        own = self.workers
        program = shlex.quote(self.farflung.removeprefix("~/") if "/" in self.farflung else self.farflung)
        setup = [*([f"export OMP_NUM_THREADS={own.cpus}"] if own.cpus else []), *self.setup]
        remote = _REMOTE.format(
            name=own.name,
            setup="\n".join(setup) or ":",
            program=program,
            command=f"{program} {shlex.join(own.join())}",
            seconds=SECONDS_TO_JOIN,
        )
        return _SCRIPT.format(
            broker=own.broker,
            hint=token_hint(own),
            name=own.name,
            remote=remote,
            options="".join(f"{shlex.quote(option)} " for option in self.options),
            hosts=" ".join(self.hosts),
        )

    def command(self) -> list[str]:
        """A shell, which reads the script from standard input."""
        return ["sh", "-s"]
