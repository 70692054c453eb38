"""What each launcher writes: it says what was asked for, and no name or host becomes a command."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.processes import eventually

from farflung.cli.main import app
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
        "sleep": f"exec {shutil.which('sleep')} 0.05",
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


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps here")
def test_ssh_asks_a_worker_to_stop_only_once(tmp_path: Path) -> None:
    """At a second SIGTERM a worker would leave at once, and hand nothing over."""
    bin = tmp_path / "bin"
    bin.mkdir()
    fakes = {
        "ssh": 'while [ "$1" != -- ]; do shift; done; exec "$3" "$4"',
        "sleep": f"exec {shutil.which('sleep')} 0.05",
        "farflung": "trap 'echo SIGTERM' TERM\necho registered as w1\n"
        'while [ ! -e "$HOME/end" ]; do sleep 1; done',
    }
    for name, text in fakes.items():
        (bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin / name).chmod(0o755)
    script = Ssh(workers(), ("desk",)).render()
    environment = {"PATH": f"{bin}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    log = tmp_path / ".farflung/farflung-workers/desk/log"

    def says(*words: str) -> str:
        command = ["sh", "-s", *words]
        done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True)
        return done.stderr

    try:
        assert "desk: started" in says()
        assert says("stop") == "desk: leaves\n"
        assert says("stop") == says("stop") == "desk: is leaving\n"
        eventually("it has got SIGTERM", lambda: "SIGTERM" in log.read_text())
        assert says() == "desk: is leaving: start it again later\nerror: failed on desk\n"
        (tmp_path / "end").touch()
        eventually("it has left", lambda: "no worker runs" in says("stop"))
        assert log.read_text().count("SIGTERM") == 1
        (tmp_path / "end").unlink()
        assert "desk: started" in says() and says() == "desk: runs already\n"
        assert says("stop") == "desk: leaves\n"
    finally:
        (tmp_path / "end").touch()
        eventually("none is left", lambda: "no worker runs" in says("stop"))


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
    assert yaml.safe_load(SkyPilot(on_gpus()).render())["resources"]["accelerators"] == "A100:1"
    pod = yaml.safe_load(Kubernetes(on_gpus(disk=9.5), "i", secret="s").render())["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "A100"}
    assert pod["volumes"][1]["emptyDir"] == {"sizeLimit": "11G"}


@pytest.mark.parametrize("name", ["on", "true", "null", "no", "y"])
def test_a_name_stays_text_in_documents(name: str) -> None:
    given = workers(name=name)
    secret, deployment = yaml.safe_load_all(Kubernetes(given, "farflung:1").render(TOKEN))
    labels = {"app.kubernetes.io/name": "farflung", "app.kubernetes.io/instance": name}
    assert secret["metadata"]["name"] == f"{name}-token"
    assert deployment["metadata"] == {"name": name, "labels": labels}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert deployment["spec"]["template"]["metadata"]["labels"] == labels
    task = yaml.safe_load(SkyPilot(on_gpus(name=name, gpu="12")).render())
    assert task["name"] == name
    assert task["resources"]["accelerators"] == "12:1"  # YAML 1.1 reads it as 721 without quotes


@pytest.mark.parametrize(("namespace", "secret"), [("", ""), ("trains", ""), ("trains", "mine")])
def test_commands_in_a_manifest_make_its_secret_and_scale_it_where_it_is(
    tmp_path: Path, namespace: str, secret: str
) -> None:
    manifest = Kubernetes(workers(), "farflung:1", namespace, secret).render(TOKEN)
    name = secret or "farflung-workers-token"
    assert yaml.safe_load_all(manifest)
    heading = "".join(re.findall(r"^#   +(.*\n)", manifest, re.M))
    (scale,) = re.findall(r"(kubectl scale .*) --replicas=N\n", manifest)
    fakes = {
        "farflung": f'echo "farflung $*" >>"$LOG"; echo {TOKEN}',
        "kubectl": 'echo "kubectl $*" >>"$LOG"; [ "$1" = scale ] || cat >>"$LOG"; echo made',
    }
    for program, text in fakes.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log)}
    subprocess.run(["sh", "-e", "-c", f"{heading}{scale} --replicas=3"], env=environment, check=True)
    within = f" --namespace={namespace}" if namespace else ""
    said = set(log.read_text().splitlines())
    options = ["--role", "worker", "--uses", "4", "--hours", "168"]
    create = f"kubectl create secret generic {name}{within} --from-file=token=/dev/stdin"
    assert said == {
        f"farflung token create {' '.join(options)}",
        TOKEN,
        f"{create} --dry-run=client --output=yaml",
        "made",
        "kubectl apply -f -",
        f"kubectl scale deployment/farflung-workers{within} --replicas=3",
    }
    group: Any = typer.main.get_command(app)
    assert group.commands["token"].commands["create"].make_context("create", options)


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


def test_a_unit_says_who_must_be_able_to_read_the_program() -> None:
    made = Systemd(workers(), ("/home/ann/venv/bin/python", "-m", "farflung")).render()
    heading = made[: made.index("[Unit]")]
    assert "as a user that systemd makes, who must be able to read /home/ann/venv/bin/python\n" in heading
    assert (
        "as ann, who must be able to read /opt/far flung\n"
        in Systemd(workers(), ("/opt/far flung",), "ann").render()
    )


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
