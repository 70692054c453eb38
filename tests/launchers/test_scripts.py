"""What each launcher writes: it says what was asked for, and no name or host becomes a command."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import FarflungError
from farflung.launchers import Kubernetes, Launcher, Ray, SkyPilot, Slurm, Ssh, Systemd, Workers

TOKEN = "ff1-token"
PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=40)
NASTY = st.sampled_from(
    ["'; touch x; '", '"$(touch x)"', "`touch x`", "%i %% $HOME ${HOME}", "a\\", '"""', "{x}", "#", "-x"]
)
TEXT = PRINTABLE | NASTY
"""Text as it may be a site's name: whatever is printable."""


def workers(**changes: Any) -> Workers:
    """Two workers on the CPU."""
    return Workers("203.0.113.5", **{"count": 2, "device": "cpu", "memory": "4", **changes})


def on_gpus(**changes: Any) -> Workers:
    """Two workers on GPUs of a kind."""
    return workers(device="cuda", memory=None, **{"gpu": "A100", **changes})


def launchers(of: Workers) -> list[Launcher]:
    """One of each kind."""
    return [
        Slurm(of),
        Kubernetes(of, "farflung:1", secret="token"),
        SkyPilot(of),
        Ray(of),
        Ssh(of, ("desk", "me@attic")),
        Systemd(of),
    ]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints its words, each with a zero byte behind it."""
    path = tmp_path_factory.mktemp("my programs") / "far flung"
    path.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    path.chmod(0o755)
    return path


def words_of(output: bytes) -> list[str]:
    """The words that the program printed."""
    return output.decode().split("\0")[:-1]


@settings(max_examples=50)
@given(site=TEXT)
def test_a_shell_passes_on_what_was_given_and_runs_nothing_else(program: Path, site: str) -> None:
    given = workers(site=site)
    script = Slurm(given, (str(program),)).render()
    where = program.parent
    done = subprocess.run(
        ["bash", "-s"], input=script.encode(), cwd=where, capture_output=True, env={"FARFLUNG_TOKEN": TOKEN}
    )
    assert words_of(done.stdout) == given.join("--temporary"), done.stderr
    assert [path.name for path in where.iterdir()] == [program.name]


@settings(max_examples=50)
@given(site=TEXT)
def test_documents_hold_what_was_given(site: str) -> None:
    given = workers(site=site)
    manifest = yaml.safe_load(Kubernetes(given, "farflung:1", secret="s").render())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["args"][: len(given.join())] == given.join()
    task = yaml.safe_load(SkyPilot(given).render())
    assert shlex.split(task["run"]) == ["exec", "~/farflung/bin/farflung", *given.join()]
    unit = Systemd(given, ("/opt/far flung",)).render()
    (start,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    read = shlex.split(start.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))
    assert read[:-1] == ["/opt/far flung", *given.join()]
    (join,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(Ray(given).render()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "JOIN"
    )
    assert join == given.join("--temporary")


@settings(max_examples=200)
@given(text=TEXT | st.text(max_size=20))
def test_what_could_end_a_comment_or_become_an_option_is_refused(text: str) -> None:
    """Broker, name and hosts stand in comments, too, where nothing can be quoted."""
    safe = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_@%,[]")
    for make in (
        lambda: Workers(text, 1).broker,
        lambda: workers(name=text).name,
        lambda: Ssh(workers(), (text,)).hosts[0],
    ):
        try:
            accepted = make()
        except FarflungError as error:
            assert str(error).isprintable()
        else:
            assert set(accepted) <= safe and not accepted.startswith("-")


def test_ssh_gives_hosts_their_part_and_the_token_on_standard_input(tmp_path: Path, program: Path) -> None:
    """`ssh` is replaced by a program that runs the part at once, in a folder for each host."""
    bin = tmp_path / "bin"
    bin.mkdir()
    fakes = {
        "ssh": 'echo "$@" >>"$LOG"; while [ "$1" != -- ]; do shift; done\n'
        'mkdir -p "$HOMES/$2" && HOME=$HOMES/$2 exec "$3" "$4"',
        "sleep": ":",
        "ps": "exit 1",
    }
    for name, text in fakes.items():
        (bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin / name).chmod(0o755)
    given = workers(site='it\'s "$HOME"', cpus=3)
    script = Ssh(given, ("desk", "me@attic"), str(program), ("-p", "2222"), ("cd .",)).render()
    log, homes = tmp_path / "log", tmp_path / "homes"
    environment = {"PATH": f"{bin}:{os.environ['PATH']}", "LOG": str(log), "HOMES": str(homes)}
    done = subprocess.run(
        ["sh", "-s"], input=script.encode(), env={**environment, "FARFLUNG_TOKEN": TOKEN}, capture_output=True
    )
    # The worker ends at once here, which the script reports.
    assert done.returncode == 1 and b"error: failed on" in done.stderr
    assert sorted(log.read_text().splitlines()) == [
        f"-p 2222 -o BatchMode=yes -- {host} sh -s" for host in ("desk", "me@attic")
    ]
    assert TOKEN not in script + log.read_text()
    for host in ("desk", "me@attic"):
        folder = homes / host / ".farflung/farflung-workers" / host
        assert words_of((folder / "log").read_bytes()) == [*given.join(), f"--folder={folder}"]


def test_a_token_that_is_none_is_not_sent_to_hosts() -> None:
    script = Ssh(workers(), ("desk",)).render()
    done = subprocess.run(
        ["sh", "-s"], input=script, env={"FARFLUNG_TOKEN": "x;touch y"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "error: FARFLUNG_TOKEN is not a token\n")


def test_schedulers_are_asked_for_what_a_worker_needs() -> None:
    lines = Slurm(workers(cpus=2), hours=1.5, directives=("--partition=far",)).render().splitlines()
    for asked in (
        "cpus-per-task=2",
        "mem=6G",
        "time=1:30:00",
        "partition=far",
        "open-mode=append",
        "signal=B:TERM@660",
    ):
        assert f"#SBATCH --{asked}" in lines
    assert "export OMP_NUM_THREADS=2" in lines
    assert "#SBATCH --gres=gpu:A100:1" in Slurm(on_gpus()).render().splitlines()
    assert "#SBATCH --gres=gpu:1" in Slurm(on_gpus(gpu=None)).render().splitlines()
    assert "'num_gpus': 1" in Ray(on_gpus()).render() and "'memory': 6000000000" in Ray(workers()).render()
    assert "accelerators: A100:1" in SkyPilot(on_gpus()).render()
    pod = yaml.safe_load(Kubernetes(on_gpus(disk=9.5), "i", secret="s").render())["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "A100"}
    assert pod["volumes"][1]["emptyDir"] == {"sizeLimit": "11G"}


def test_only_a_manifest_with_a_secret_of_its_own_holds_the_token() -> None:
    for launcher in launchers(workers()):
        assert not launcher.token_in_script and TOKEN not in launcher.render(TOKEN), launcher
    own = Kubernetes(workers(), "farflung:1", "trains")
    secret, deployment = yaml.safe_load_all(own.render(TOKEN))
    assert own.token_in_script and secret["stringData"] == {"token": TOKEN}
    assert secret["metadata"] == {"name": "farflung-workers-token", "namespace": "trains"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"] == {"secretName": "farflung-workers-token", "defaultMode": 0o440}
    with pytest.raises(FarflungError, match="needs a token"):
        own.render()


def test_workers_of_one_machine_get_a_gpu_each_in_turn() -> None:
    unit = Systemd(on_gpus(gpu=None)).render()
    assert '"--device=cuda:%i"' in unit and "farflung-workers@0 farflung-workers@1" in unit
    assert '"--device=cuda"' in Systemd(on_gpus(gpu=None, count=1)).render()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path, program: Path) -> None:
    def complaints(name: str, text: str) -> str:
        (tmp_path / f"{name}@.service").write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", tmp_path / f"{name}@1.service"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    plain = Systemd(workers(site='50% of "the attic"'), (str(program), "-m"), "daemon").render()
    assert complaints("plain", plain) == ""
    assert complaints("gpus", Systemd(on_gpus(gpu=None, cpus=2), (str(program),)).render()) == ""
    assert "soon" in complaints("bad", plain.replace("TimeoutStopSec=660", "TimeoutStopSec=soon"))
