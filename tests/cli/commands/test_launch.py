"""What `farflung launch` says to mistakes, and where tokens come from and go."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from farflung.broker.security.authority import create_token
from farflung.broker.security.tokens import known_tokens, revoke_token, token_id
from farflung.cli.main import run

SLURM = ["launch", "slurm", "203.0.113.5", "--workers", "2", "--memory", "4"]
KUBERNETES = ["launch", "kubernetes", "203.0.113.5", "--workers", "2", "--memory", "4", "--image", "farflung"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home without identities, on a machine without any of the programs."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("FARFLUNG_TOKEN", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path / "home"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that must fail."""
    capsys.readouterr()
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "slurm", "h", "--workers", "0"], "expected 1 to 10000 workers, found 0"),
        (["launch", "slurm", "h", "--workers", "2"], "say with --memory GB how much jobs may use"),
        ([*SLURM, "--memory", "45%"], "say with --memory GB how much jobs may use"),
        ([*SLURM, "--memory", "much"], "--memory must be a positive number of GB"),
        (
            [*SLURM, "--site", "two\nlines"],
            "--site takes at most 128 printable characters, found 'two?lines'",
        ),
        ([*SLURM, "--name", "My workers"], "--name 'My workers' cannot name these workers"),
        ([*SLURM, "--device", "cuda:1"], "--device must be cpu or cuda, found cuda:1"),
        ([*SLURM, "--device", "tpu"], "--device must be auto, cpu, cuda, cuda:N or mps, found 'tpu'"),
        ([*SLURM, "--gpu", "A100"], "--gpu asks for a GPU, but --device is cpu: add --device cuda"),
        ([*SLURM, "--gpu", "A100:8", "--device", "cuda"], "--gpu takes the scheduler's name of a GPU"),
        ([*SLURM, "--cpus", "0"], "--cpus must be 1 to 1024 cores for a worker, found 0"),
        ([*SLURM, "--disk", "-1"], "--disk takes a number of gigabytes, 0 for none, found -1"),
        ([*SLURM, "--hours", "0.1"], "--hours must be more than 0.18"),
        ([*SLURM, "--sbatch", "gpu"], "--sbatch takes an option of sbatch, such as --partition=gpu"),
        ([*SLURM, "--setup", "a\nb"], "--setup must be one line of printable characters, found 'a?b'"),
        (
            [*SLURM, "--output", "no/such/folder"],
            "no/such/folder cannot be written: No such file or directory",
        ),
        (["launch", "slurm", "a b", "--workers", "1"], "expected HOST:PORT of the broker, found 'a b:7700'"),
        (["launch", "slurm", "h:x", "--workers", "1"], "expected HOST:PORT or [IPV6]:PORT, found 'h:x'"),
        ([*KUBERNETES, "--image", "a b"], "--image must be printable and without spaces, found 'a b'"),
        ([*KUBERNETES, "--namespace", "A"], "--namespace must be 1 to 63 lower-case letters"),
        (["launch", "ssh", "h", "desk", "-x", "--", "-oProxyCommand=x"], "No such option"),
        (
            ["launch", "ssh", "h", "--", "desk", "-oProxyCommand=x"],
            "expected HOST or USER@HOST, found '-oProxy",
        ),
        (["launch", "ssh", "h", "desk", "a b"], "expected HOST or USER@HOST, found 'a b'"),
        (["launch", "ssh", "h", "desk", "desk"], "desk is named twice: a host gets one worker"),
        (
            ["launch", "ssh", "h", "desk", "--ssh", "'"],
            "--ssh cannot be split into words: No closing quotation",
        ),
        (["launch", "systemd", "h", "--workers", "2"], "2 workers share this machine's memory"),
        (["launch", "systemd", "h", "--program", "farflung"], "systemd needs the whole path of farflung"),
        (["launch", "systemd", "h", "--user", "a b"], "--user is not a user's name: 'a b'"),
        (
            ["launch", "skypilot", "h", "--workers", "1", "--device", "cuda"],
            "SkyPilot must know the kind of GPU",
        ),
        (["launch", "ray", "h", "--workers", "1", "--memory", "1", "--address", ""], "--address must be"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str, tmp_path: Path
) -> None:
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (SLURM, "sbatch"),
        (KUBERNETES, "kubectl"),
        (["launch", "skypilot", "h", "--workers", "1"], "sky"),
        (["launch", "ssh", "h", "desk"], "ssh"),
    ],
)
def test_a_missing_program_is_one_line_and_costs_no_token(
    capsys: pytest.CaptureFixture[str], arguments: list[str], program: str, home: Path
) -> None:
    create_token(home / "broker", "worker", 1)
    assert f"{program} is not on this machine" in refused(capsys, *arguments, "--submit")
    assert len(known_tokens(home / "broker")) == 1


def test_ray_must_be_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ray = ["launch", "ray", "h", "--workers", "1", "--memory", "1", "--submit"]
    assert "Ray is not installed for" in refused(capsys, *ray)


def test_a_token_is_asked_for_where_there_is_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert "farflung token create --role worker --uses 4" in refused(capsys, *KUBERNETES)


@pytest.mark.parametrize("token", [None, "made here", "given"])
def test_hosts_that_have_joined_before_need_no_token(
    capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path, token: str | None
) -> None:
    (tmp_path / "bin/sh").write_text(
        '#!/bin/sh\n/bin/cat >/dev/null\necho "${FARFLUNG_TOKEN:-none}" >"$0.token"\n'
    )
    for program in ("sh", "ssh"):
        (tmp_path / "bin" / program).touch()
        (tmp_path / "bin" / program).chmod(0o755)
    given = create_token(tmp_path / "another broker", "worker", 1).text if token == "given" else ""
    if token == "made here":
        create_token(home / "broker", "worker", 1)
    options = ["--token", given] if given else []
    assert run(["launch", "ssh", "203.0.113.5", "desk", "--submit", *options]) == 0
    said = capsys.readouterr().err
    assert ("no token: only hosts that have joined before can start" in said) == (token is None)
    assert ("made a token for 2 uses" in said) == (token == "made here")
    passed = (tmp_path / "bin/sh.token").read_text().strip()
    assert passed == given if given else (passed == "none") == (token is None)


def test_a_wrong_token_in_the_environment_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_TOKEN", "abc")
    assert refused(capsys, *SLURM).startswith("FARFLUNG_TOKEN: this is not a farflung token")
    assert refused(capsys, *SLURM, "--token", "abd").startswith("this is not a farflung token")


def test_a_token_must_let_all_workers_in(
    capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path
) -> None:
    once = create_token(home / "broker", "worker", 1)
    said = refused(capsys, *KUBERNETES, "--token", once.text)
    assert "has 1 use left, but 2 workers need one each" in said
    revoke_token(home / "broker", token_id(once.digest))
    assert "was revoked, but 2 workers" in refused(capsys, *KUBERNETES, "--token", once.text)
    old = create_token(home / "broker", "worker", 9, 1e-9)
    assert "has expired, but 2 workers" in refused(capsys, *KUBERNETES, "--token", old.text)
    file = tmp_path / "token"
    file.write_text(create_token(home / "broker", "submitter", 9).text)
    assert "for a submitter, not for workers" in refused(capsys, *KUBERNETES, "--token-file", str(file))
    assert "is not a farflung token" in refused(capsys, *KUBERNETES, "--token", "x")
    both = ["--token", once.text, "--token-file", str(file)]
    assert "not both" in refused(capsys, *KUBERNETES, *both)
    assert "cannot be read" in refused(capsys, *KUBERNETES, "--token-file", str(tmp_path / "none"))
    elsewhere = create_token(tmp_path / "another broker", "worker", 1)  # its uses are not known here
    assert run([*KUBERNETES, "--token", elsewhere.text]) == 0


def test_a_file_with_a_token_is_its_owners(
    capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path
) -> None:
    create_token(home / "broker", "worker", 1)
    manifest, script = tmp_path / "workers.yaml", tmp_path / "workers.sh"
    assert run([*KUBERNETES, "--output", str(manifest)]) == 0
    assert "made a token for 4 uses within 168 h" in capsys.readouterr().err
    assert stat.S_IMODE(manifest.stat().st_mode) == 0o600 and "ff1-" in manifest.read_text()
    assert max(token.uses for token in known_tokens(home / "broker")) == 4
    assert run([*SLURM, "--output", str(script)]) == 0
    assert stat.S_IMODE(script.stat().st_mode) == 0o644 and "ff1-" not in script.read_text()
    assert len(known_tokens(home / "broker")) == 2  # a script without a token costs none


def test_a_token_on_standard_output_is_noted(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    create_token(home / "broker", "worker", 1)
    assert run(KUBERNETES) == 0
    printed = capsys.readouterr()
    assert "ff1-" in printed.out and "ff1-" not in printed.err
    assert "this holds a token, so keep it secret: --output FILE writes a file" in printed.err
    for harmless in ([*KUBERNETES, "--secret", "mine"], SLURM):
        assert run(harmless) == 0
        assert "holds a token" not in capsys.readouterr().err


@pytest.mark.parametrize(("code", "found"), [(0, 0), (3, 3)])
def test_the_script_goes_to_the_program_and_its_exit_code_comes_back(
    home: Path, tmp_path: Path, code: int, found: int
) -> None:
    create_token(home / "broker", "worker", 1)
    program = tmp_path / "bin/sbatch"
    program.write_text(
        f'#!/bin/sh\n/bin/cat >"$0.script"\necho "$FARFLUNG_TOKEN" "$@" >"$0.token"\nexit {code}\n'
    )
    program.chmod(0o755)
    assert run([*SLURM, "--submit"]) == found
    assert "#SBATCH --array=1-2" in (tmp_path / "bin/sbatch.script").read_text()
    token, options = (tmp_path / "bin/sbatch.token").read_text().split()
    assert token.startswith("ff1-") and options == "--export=ALL"


def test_an_existing_secret_needs_no_token(tmp_path: Path) -> None:
    program = tmp_path / "bin/kubectl"
    program.write_text(
        '#!/bin/sh\n/bin/cat >"$0.manifest"\necho "$@" "${FARFLUNG_TOKEN:-none}" >"$0.words"\n'
    )
    program.chmod(0o755)
    assert run([*KUBERNETES, "--secret", "mine", "--submit"]) == 0
    assert (tmp_path / "bin/kubectl.words").read_text() == "apply --filename - none\n"
    assert 'secretName: "mine"' in (tmp_path / "bin/kubectl.manifest").read_text()


def test_a_broker_that_only_this_machine_reaches_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "slurm", "127.0.0.1", "--workers", "1", "--memory", "1"]) == 0
    assert "127.0.0.1:7700 leads each worker to its own machine" in capsys.readouterr().err
