"""Bad input ends in exactly one line on standard error, a code above zero, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.cli.main import run
from farflung.client.options.planning import fewer_workers_advice
from farflung.errors import PlanError, TooFewCuts

JOB = """
import torch, farflung
from torch import nn

class Items:
    def __len__(self): return 64
    def __getitem__(self, index): return {"x": torch.randn(4), "y": torch.randn(2)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x, y):
        return ((self.layer(x) - y) ** 2).mean()

def job():
    return farflung.Job(model=Model(), data=Items(), optimizer=farflung.SGD(lr=0.1), batch=4,
                        microbatches=2, steps=2)
"""


def farflung(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FARFLUNG_HOME": str(home)}
    environment.pop("FARFLUNG_TOKEN", None)
    return subprocess.run(
        [sys.executable, "-m", "farflung", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home,
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    monkeypatch.delenv("FARFLUNG_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(JOB)
    (tmp_path / "raises.py").write_text("def job():\n    raise ValueError('two\\nlines')\n")
    (tmp_path / "no_job.py").write_text("x = 1\n")
    (tmp_path / "wrong.py").write_text("def job():\n    return 7\n")
    (tmp_path / "syntax.py").write_text("def job(:\n")
    (tmp_path / "uneven.py").write_text(JOB.replace("microbatches=2", "microbatches=3"))
    (tmp_path / "branch.py").write_text(
        JOB.replace("        return ((", "        if x.sum() > 0: x = -x\n        return ((")
    )
    return tmp_path


CASES = [
    (["nonsense"], 2, "No such command 'nonsense' (see farflung --help)"),
    (["train"], 2, "Missing argument 'JOB' (see farflung train --help)"),
    (["train", "good.py", "--nope"], 2, "No such option: --nope"),
    (["train", "good.py", "--zzz"], 2, "No such option: --zzz (see farflung train --help)"),
    (["lab", "run", "--zzz"], 2, "No such option: --zzz (see farflung lab run --help)"),
    (["train", "missing.py", "--local", "2"], 2, "expected a job file at missing.py"),
    (["train", "raises.py", "--local", "2"], 2, "raises.py:2: the job file raised ValueError: two"),
    (["train", "no_job.py", "--local", "2"], 2, "has no job()"),
    (["train", "wrong.py", "--local", "2"], 2, "must return a farflung.Job, found an int"),
    (["train", "syntax.py", "--local", "2"], 2, "syntax.py:1: not valid Python"),
    (["train", "uneven.py", "--local", "2"], 2, "batch must be divisible by microbatches"),
    (["train", "branch.py", "--local", "2"], 2, "branch.py:14"),
    (["train", "good.py", "--local", "2", "--steps", "0"], 2, "steps must be a whole number"),
    (["train", "good.py", "--local", "2", "--inner-steps", "0"], 2, "--inner-steps takes 1 to"),
    (["train", "good.py", "--local", "2", "--inner-steps", "2"], 2, "this run has one: ask for more with"),
    (["train", "good.py", "--local", "2", "--sum-codec", "nccl"], 2, "there is no codec 'nccl'"),
    (
        ["train", "good.py", "--local", "2", "--replicas", "2", "--sum-codec", "axes30-dithered"],
        2,
        "what is read of it depends on the machine: use int8",
    ),
    (["train", "good.py", "--local", "0"], 2, "--local takes 1 to 256 workers"),
    (["train", "good.py", "--local", "2", "--broker", "h:1"], 2, "--local starts its own broker"),
    (["train", "good.py", "--local", "2", "--on", "a"], 2, "--local starts its own broker"),
    (["train", "good.py", "--local", "2", "--workers", "2"], 2, "all its 2 workers: leave --workers out"),
    (["train", "good.py", "--local", "2", "--workers", "9"], 2, "or start as many with --local 9"),
    (
        ["train", "missing.py", "--local", "2", "--codec", "worker-0->worker-9=int8"],
        2,
        "there is no worker worker-9: the workers are worker-0, worker-1",
    ),
    (
        ["train", "missing.py", "--broker", "h:1", "--on", "a,b", "--codec", "a->c=int8"],
        2,
        "there is no worker c: the workers are a, b",
    ),
    (
        ["train", "good.py", "--local", "2", "--precision", "half"],
        2,
        "must be float32 or bfloat16, found 'half'",
    ),
    (["train", "good.py", "--broker", "h:1", "--workers", "2", "--on", "a"], 2, "--workers asks for 2"),
    (["train", "good.py", "--broker", "h:1", "--on", "a,b,a"], 2, "names a worker twice: a,b,a"),
    (["train", "good.py", "--broker", "h:1", "--on", "a,"], 2, "'' cannot be an id"),
    (
        ["train", "good.py", "--local", "2", "--checkpoint-every", "often"],
        2,
        "30s, 10m or 2h, end or never, found 'often'",
    ),
    (
        ["train", "good.py", "--local", "2", "--checkpoint-every", "never", "--checkpoint-to", "x"],
        2,
        "leave one out",
    ),
    (
        ["train", "good.py", "--local", "1", "--checkpoint-to", "nonsense://bucket/run"],
        2,
        "nonsense://bucket/run: there is no file system called 'nonsense'",
    ),
    (["train", "good.py", "--resume", "none"], 2, "expected the folder of a run at none, found nothing"),
    (["train", "good.py", "--resume", "."], 2, "expected the folder of a run at ., found another folder"),
    (["train", "good.py", "--resume", "a", "--out", "b"], 2, "stays in its folder a: leave --out out"),
    (["train", "good.py", "--local", "2", "--text", "good.py"], 2, "--text good.py changes nothing"),
    (["train", "good.py", "--local", "1", "--out", "good.py"], 2, "found a file"),
    (["train", "good.py", "--local", "1", "--out", "."], 2, "has files that are not of a run"),
    (
        ["train", "good.py", "--local", "2", "--backends", "torch,abacus"],
        2,
        "torch and jax, found 'abacus'",
    ),
    (["train", "good.py", "--local", "1", "--backends", "torch,torch"], 2, "names 2 for --local 1"),
    (["train", "good.py", "--broker", "h:1", "--backends", "torch"], 2, "--backends needs --local"),
    (["train", "good.py"], 2, "no workers to train on: add --local N"),
    (["train", "good.py", "--broker", "127.0.0.1:9"], 2, "there is no identity in"),
    (["train", "good.py", "--broker", "127.0.0.1:9", "--token", "ff1-abc"], 2, "the token has 7 characters"),
    (["check", "good.py", "--segments", "0"], 2, "at least 1 segment"),
    (
        ["check", "good.py", "--segments", "500"],
        2,
        "into at most 1 segment, 500 were asked for: use --segments 1",
    ),
    (["join", "127.0.0.1:9"], 2, "there is no identity in"),
    (["join", "127.0.0.1:9", "--token", "hello"], 2, "not a farflung token"),
    (["join", "127.0.0.1:9", "--memory", "-1"], 2, "--memory must be a positive number"),
    (["join", "127.0.0.1:9", "--memory", "much"], 2, "or a share such as 45%, found 'much'"),
    (["join", "127.0.0.1:9", "--memory", "101%"], 2, "--memory: 101% is more than there is"),
    (
        ["join", "127.0.0.1:9", "--backend", "abacus"],
        2,
        "torch, jax or emulated, found 'abacus'",
    ),
    (["join", "127.0.0.1:9", "--backend", "nccl"], 2, "torch, jax or emulated, found 'nccl'"),
    (["join", "127.0.0.1:9", "--backend", "emulated"], 2, "needs --tflops, a number above 0, found None"),
    (["join", "127.0.0.1:9", "--backend", "emulated", "--tflops", "nan"], 2, "above 0, found nan"),
    (["join", "127.0.0.1:9", "--tflops", "5"], 2, "--tflops is for --backend emulated"),
    (
        ["lab", "run", "none.py", "--topology", "lan", "--emulate-devices", "--efficiency", "2"],
        2,
        "--efficiency must be above 0 and at most 1, found 2",
    ),
    (
        ["lab", "run", "none.py", "--topology", "lan", "--emulate-devices"],
        2,
        "expected a job file at none.py, found nothing",
    ),
    (["token", "create", "--role", "king"], 2, "for '--role': 'king' is not one of"),
    (["token", "create", "--role", "worker", "--uses", "0"], 2, "1 to 1000000 uses, found 0"),
    (["status"], 2, "no identity of a submitter"),
    (["attach", "job-1"], 2, "then this command again with --broker HOST:PORT --token T"),
    (["topology", "show", "--fleet"], 2, "then this command again with --broker HOST:PORT --token T"),
    (["lab", "run", "good.py", "--topology", "four-house"], 2, "the testbeds are four-homes, two-sites"),
    (["lab", "run", "good.py", "--topology", "none.json"], 2, "the testbeds are four-homes"),
    (["lab", "run", "good.py", "--topology", "good.py"], 2, "good.py is not a topology: not JSON"),
    (["lab", "run", "good.py", "--topology", "lan", "--workers", "5"], 2, "--workers must be 0 to 4"),
    (
        ["lab", "run", "good.py", "--topology", "lan", "--codec", "box-0->typo=int8"],
        2,
        "no worker typo: the workers are box-0, box-1",
    ),
    (
        ["lab", "run", "good.py", "--topology", "lan", "--workers", "2", "--codec", "box-0->box-2=int8"],
        2,
        "no worker box-2: the workers are box-0, box-1",
    ),
    (
        ["plan", "missing.py", "--topology", "lan", "--codec", "box-0->typo=int8"],
        2,
        "no worker typo: the workers are box-0, box-1",
    ),
    (["lab", "run", "good.py", "--topology", "lan", "--scale", "0"], 2, "--scale 0: the divisor"),
    (["lab", "run", "good.py", "--topology", "lan", "--scale", "1e7"], 2, "--scale 1e+07: the divisor"),
    (["lab", "run", "good.py", "--topology", "lan", "--scale", "nan"], 2, "--scale nan: the divisor"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_bad_input_is_one_line(
    arguments: list[str],
    code: int,
    words: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farflung.lab.machine.check_machine", lambda needs_nft=False: None)
    assert run(arguments) == code
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and words in errors[0]
    assert "Traceback" not in printed.err and printed.out == ""
    assert not (home / "runs").exists()


def test_too_many_workers_are_told_right_after_capture(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "good.py", "--local", "2"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "reading good.py",
        "capturing the model",
        "error: the model can be cut into at most 1 segment, 2 were asked for: use --local 1",
    ]


@pytest.mark.parametrize(
    ("option", "connected", "cure"),
    [
        ("--workers", None, "use --workers 3 or fewer"),
        ("--workers", 3, "use --workers 3 or fewer"),
        ("--workers", 2, "use --workers 2, as many as are connected, or up to 3 once more have joined"),
        ("--workers", 0, "use --workers 3 or fewer once workers have joined (none is connected)"),
        ("--on", 2, "name at most 3 with --on"),
        ("--local", None, "use --local 3"),
    ],
)
def test_too_many_workers_are_told_in_the_option_that_asked_for_them(
    option: str, connected: int | None, cure: str
) -> None:
    with pytest.raises(PlanError) as caught, fewer_workers_advice(option, connected):
        raise TooFewCuts("too many", "use fewer", 3)
    assert str(caught.value) == f"too many: {cure}"


def test_a_value_that_cannot_be_needs_no_hint_at_the_options(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["token", "create", "--role", "king"], ["train", "good.py", "--local", "many"]):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert arguments[-2] in error and "--help" not in error


def test_json_tells_the_error_on_standard_output_too(home: Path) -> None:
    done = farflung("train", "raises.py", "--local", "2", "--json", home=home)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert "raised ValueError" in json.loads(line)["error"]
    assert done.stderr.splitlines() == ["reading raises.py", f"error: {json.loads(line)['error']}"]


def test_a_process_ends_with_the_code_and_one_line(home: Path) -> None:
    done = farflung("train", "missing.py", "--local", "2", home=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: expected a job file") and done.stderr.count("\n") == 1


def test_our_own_defects_keep_their_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("farflung.client.api.load.load_job", defect)
    with pytest.raises(KeyError, match="ours"):
        run(["check", "good.py"])


def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    command = f"{sys.executable} -m farflung train --help | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_local_workers_that_lack_an_op_are_refused_for_nobody_else_will_come(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    from farflung.runtime.jax_backend.backend import JaxBackend

    deeper = "nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))"
    (home / "deep.py").write_text(JOB.replace("nn.Linear(4, 2)", deeper))
    offer = JaxBackend.offer
    monkeypatch.setattr(JaxBackend, "offer", lambda self: offer(self)._replace(lacks=("aten.mean.default",)))
    assert run(["train", "deep.py", "--local", "2", "--backends", "torch,jax"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 2 workers were asked for, 1 of 2 here can run the model's ops: worker-1:")
    assert "has no aten.mean.default" in error and not (home / "runs").exists()
