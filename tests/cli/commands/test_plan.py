"""`farflung plan` and `farflung simulate` as a user types them, on a small model and small fleets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import farflung
from farflung.cli.main import run
from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.errors import PlanError, TopologyError
from farflung.workload.profile import DeviceProfile, OpTime, signatures, write_profile

pytestmark = pytest.mark.slow

JOB = """
import torch
from torch import nn

import farflung


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

    def forward(self, x):
        return self.layers(x).square().mean()


class Vectors:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"x": torch.ones(64)}


def job():
    with torch.device("meta"):
        model = Tower()
    return farflung.Job(
        model=model, data=Vectors(), optimizer=farflung.SGD(lr=0.1), batch=8, microbatches=4, steps=2
    )
"""


def worker(id: str, **changes: object) -> dict[str, object]:
    return {"id": id, "site": id, "tflops": 1e-6, "memory_gb": 1.0, **changes}


def fleet(*ids: str, mbps: float = 50.0, **changes: object) -> dict[str, Any]:
    """Workers so slow that it pays to have them all."""
    count = len(ids)
    return {
        "workers": [worker(id) for id in ids],
        "latency_ms": [[5.0] * count] * count,
        "bandwidth_mbps": [[mbps] * count] * count,
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs, with `tower.py` and `fleet.json`."""
    (tmp_path / "tower.py").write_text(JOB)
    (tmp_path / "fleet.json").write_text(json.dumps(fleet("home-1", "home-2", "lab")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*more: str, topology: str = "fleet.json") -> int:
    """The command's exit code; what it tells does not depend on how long it searches."""
    return run(["plan", "tower.py", "--topology", topology, "--budget", "50", *more])


@pytest.mark.full
def test_a_plan_is_told_saved_drawn_and_simulated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned as a user does it, in a process of its own."""
    options = ("--topology", "fleet.json", "--efficiency", "1")
    asked = ("plan", "tower.py", *options, "--save", "plan.json", "--picture", "plan.svg")
    command = [sys.executable, "-m", "farflung", *asked]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    for words in (
        "home-1",
        "layers.0",
        " of 1.0 GB",
        "50 Mbit/s",
        "  step  ",
        "bottleneck",
        "lower bound",
        "would help",
    ):
        assert words in told.stdout
    assert max(len(line) for line in told.stdout.splitlines()) <= 80
    assert "looking for a plan on 3 workers (auto)" in told.stderr.splitlines()
    picture = (folder / "plan.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "<svg" in picture and "home-1" in picture and "What would help most" in picture

    def simulated(*more: str) -> Any:
        assert run(["simulate", "plan.json", *options, "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    found = simulated()
    assert found["segments"][0]["workers"] and found["step_seconds"] > 0
    assert simulated("--bandwidth-scale", "10")["step_seconds"] < found["step_seconds"]


def test_a_plan_as_a_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--scheduler", "equal-compute", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scheduler"] == "equal-compute" and found["left_out"] == []
    assert sum(row["work"] for row in found["segments"]) == pytest.approx(1.0)
    assert [row["worker"] for row in found["workers"]] == ["home-1", "home-2", "lab"]
    assert all(0 < row["memory_bytes"] < row["memory_limit_bytes"] == 10**9 for row in found["workers"])
    assert {"home-1", "home-2"} in [set(row["workers"]) for row in found["links"]]
    changes = [row["change"] for row in found["what_if"]]
    assert changes and changes == sorted(changes) and changes[0] < 0
    assert found["plan"]["placements"][0]["workers"] == ["home-1"]


def test_a_job_is_planned_and_simulated_at_the_rates_of_its_precision(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(name: str, **rates: Any) -> None:
        net = fleet("home-1", "home-2")
        (folder / name).write_text(json.dumps({**net, "workers": [{**w, **rates} for w in net["workers"]]}))

    def seconds(*command: str) -> float:
        assert run([*command, "--json"]) == 0
        return float(json.loads(capsys.readouterr().out)["step_seconds"])

    base = fleet("home-1")["workers"][0]["tflops"]
    written("rated.json", rates={"tf32_tflops": 3 * base, "bfloat16_tflops": 9 * base})
    asked = ("plan", "tower.py", "--no-what-if", "--scheduler", "equal-compute")
    for factor, more in ((3, ()), (9, ("--precision", "bfloat16"))):
        written("plain.json", tflops=factor * base)
        found = [seconds(*asked, *more, "--topology", one) for one in ("rated.json", "plain.json")]
        assert found[0] == found[1]
    assert plan("--scheduler", "equal-compute", "--no-what-if", "--save", "plan.json") == 0
    capsys.readouterr()
    for factor, more in ((1, ("--deterministic",)), (3, ()), (9, ("--precision", "bfloat16"))):
        written("plain.json", tflops=factor * base)
        command = ("simulate", "two.json", "--topology")
        assert run([*asked[:2], *asked[2:], "--topology", "plain.json", "--save", "two.json"]) == 0
        capsys.readouterr()
        assert seconds(*command, "rated.json", *more) == seconds(*command, "plain.json")


def test_a_profile_says_what_each_operator_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = load_job(folder / "tower.py")
    kinds = dict.fromkeys(filter(None, signatures(capture_shapes(job).graph, job.microbatch_size)))
    times = [
        OpTime(kind, 1.0, 1.0, 1.0) if "linear" in kind else OpTime(kind, 1e-9, 1e-9, 0.0) for kind in kinds
    ]
    first = next(kind for kind in kinds if "linear" in kind)  # its input needs no gradient
    times = [OpTime(first, 50.0, 25.0, 25.0) if time.signature == first else time for time in times]
    write_profile(folder / "device.json", DeviceProfile("d", "torch", "o", 1, job.microbatch_size, times))
    asked = ("--scheduler", "equal-compute", "--workers", "2", "--no-what-if")
    assert plan(*asked, "--json", "--profile", "device.json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["work"] for row in found["segments"]] == pytest.approx([100 / 115, 15 / 115], rel=1e-3)
    assert plan(*asked, "--profile", "device.json", "--microbatches", "auto") == 2
    assert_one_line(capsys.readouterr(), "give --microbatches a number, not auto")
    assert plan(*asked, "--profile", "fleet.json") == 2
    assert_one_line(capsys.readouterr(), "capture JOB --profile FILE")


def test_fewer_workers_and_other_microbatches_can_be_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*options: str) -> dict[str, Any]:
        assert plan("--no-what-if", "--json", *options) == 0
        return json.loads(capsys.readouterr().out)

    assert len(found("--workers", "2")["workers"]) == 2
    eight = found("--microbatches", "8")
    assert (eight["microbatches"], eight["microbatch_size"], eight["what_if"]) == (8, 1, None)


SQUARE = [[0.0, 5.0], [5.0, 0.0]]


def test_replicas_can_be_planned_to_train_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in ((), ("--inner-steps", "20")):
        assert plan("--replicas", "2", "--workers", "2", "--json", "--save", "plan.json", *more) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert json.loads((folder / "plan.json").read_text())["inner_steps"] == 20
    assert found[1]["step_seconds"] < found[0]["step_seconds"]
    assert any("replicas train apart" in note for note in found[1]["notes"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latency_ms": SQUARE}, "latency_ms must be 3 rows of 3"),
        ({"bandwidth_mbps": [[0, 1, 1], [1, 0], [1, 1, 0]]}, "row 1 of 2"),
        ({"bandwidth_mbps": [[0, -1, 1], [1, 0, 1], [1, 1, 0]]}, "bandwidth_mbps from home-1 to home-2"),
        ({"latency_ms": [[0, 5, 5], [5, 0, -5], [5, 5, 0]]}, "latency_ms from home-2 to lab"),
        ({"workers": [worker("a"), worker("b"), worker("a")]}, "two workers are called 'a'"),
        ({"workers": [worker("a"), worker("b"), worker("c", tflops=-1)]}, "tflops of worker c"),
        ({"workers": [worker("a"), worker("b"), {"id": "c", "site": "x", "memory_gb": 1}]}, "tflops"),
        ({"workers": [worker("a"), worker("b"), worker("c", memory_gb="8")]}, "memory_gb"),
        ({"workers": [worker(id, memory_gb=1e-5) for id in "abc"]}, "missing"),
    ],
)
def test_a_topology_that_cannot_be_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: str
) -> None:
    (folder / "fleet.json").write_text(json.dumps({**fleet("home-1", "home-2", "lab"), **changes}))
    assert plan() == 2
    assert_one_line(capsys.readouterr(), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "tower.py"], "--topology FILE (or a testbed's name, such as four-homes), or --fleet"),
        (["plan", "tower.py", "--topology", "fleet.json", "--fleet"], "give either --topology FILE"),
        (["plan", "tower.py", "--topology", "atlantis"], "neither a file nor a testbed"),
        (["plan", "nothing.py", "--topology", "fleet.json"], "expected a job file"),
        (["plan", "tower.py", "--topology", "fleet.json", "--scheduler", "atuo"], "did you mean auto?"),
        (["plan", "tower.py", "--topology", "fleet.json", "--workers", "4"], "3 workers, 4 were asked for"),
        (["plan", "tower.py", "--topology", "nanogpt-200", "--workers", "8"], "asked for: use --workers 6"),
        (["plan", "tower.py", "--topology", "fleet.json", "--seed", "-1"], "seed must be 0 to 4294967295"),
        (["plan", "tower.py", "--topology", "fleet.json", "--budget", "0"], "budget must be at least 1"),
        (["plan", "tower.py", "--topology", "fleet.json", "--microbatches", "0"], "choose a divisor"),
        (["plan", "tower.py", "--topology", "fleet.json", "--workers", "-1"], "--workers must be 0"),
        (
            ["plan", "tower.py", "--topology", "fleet.json", "--microbatches", "3"],
            "choose a divisor",
        ),
        (["plan", "tower.py", "--topology", "fleet.json", "--inner-steps", "0"], "--inner-steps takes 1 to"),
        (
            ["plan", "tower.py", "--topology", "fleet.json", "--inner-steps", "2"],
            "ask for more with --replicas",
        ),
        (["plan", "tower.py", "--topology", "fleet.json", "--microbatches", "few"], "a number or auto"),
        (["plan", "tower.py", "--topology", "fleet.json", "--efficiency", "2"], "--efficiency must be"),
        (["plan", "tower.py", "--topology", "fleet.json", "--recompute", "often"], "--recompute must be"),
        (["plan", "tower.py", "--topology", "fleet.json", "--profile", "fleet.json"], "is no profile"),
        (["simulate", "nothing.json", "--topology", "fleet.json"], "cannot read the plan"),
        (["simulate", "fleet.json", "--topology", "fleet.json"], "fleet.json is a topology, not a plan"),
        (["simulate", "tower.py", "--topology", "fleet.json"], "tower.py is not a plan"),
        (["simulate", "ok.json", "--topology", "four-homes"], "which the topology does not have"),
        (["simulate", "ok.json", "--topology", "fleet.json", "--bandwidth-scale", "0"], "cannot be scaled"),
        (["simulate", "ok.json", "--topology", "fleet.json", "--window", "0"], "window must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    placement = {"segment": 0, "workers": ["lab"], "flops": 1, "parameter_bytes": 1, "nodes": 1}
    document = {"placements": [placement], "edges": [], "microbatches": 1, "window": 1}
    (folder / "ok.json").write_text(json.dumps(document))
    assert run(arguments) == 2
    assert_one_line(capsys.readouterr(), words)


def test_what_can_be_seen_in_time_is_refused_before_capture(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--workers=4", "--microbatches=3", "--budget=-5", "--seed=-1", "--inner-steps=9"):
        assert plan(option) == 2
        assert "capturing" not in capsys.readouterr().err


def test_a_plan_that_needs_a_way_where_there_is_none_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--no-what-if", "--scheduler", "equal-compute", "--save", "plan.json") == 0
    capsys.readouterr()
    rates = [[0, 50, 50], [50, 0, 50], [50, 0, 0]]  # activations have a way, their gradients have none
    (folder / "parted.json").write_text(json.dumps(fleet("home-1", "home-2", "lab", bandwidth_mbps=rates)))
    assert run(["simulate", "plan.json", "--topology", "parted.json"]) == 2
    assert_one_line(capsys.readouterr(), "needs the link lab -> home-2, but the topology has none")
    with pytest.raises(PlanError, match="link lab -> home-2"):
        farflung.simulate("plan.json", "parted.json")


def assert_one_line(captured: Any, words: str) -> None:
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and len(errors) == 1 and captured.err.splitlines()[-1] == errors[0]
    assert words in errors[0]
    assert "Traceback" not in captured.err


def test_workers_whom_nobody_reaches_are_left_out_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [[0, 50, 0], [50, 0, 0], [0, 0, 0]]
    topology = fleet("home-1", "home-2", "lab", bandwidth_mbps=rates)
    (folder / "fleet.json").write_text(json.dumps(topology))
    assert plan("--no-what-if") == 0
    told = capsys.readouterr().out
    assert "there is no link between the others and lab" in told and "of 3 workers" in told


def test_replicas_on_machines_of_one_site_that_cannot_reach_each_other_are_refused_with_the_site(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [[0, 0, 50], [0, 0, 50], [50, 50, 0]]
    workers = [worker("home-1", site="lab"), worker("home-2", site="lab"), worker("attic")]
    topology = fleet("home-1", "home-2", "attic", bandwidth_mbps=rates, workers=workers)
    (folder / "fleet.json").write_text(json.dumps(topology))
    assert plan("--replicas", "3", "--workers", "3") == 2
    assert_one_line(
        capsys.readouterr(), "home-1 and home-2 are declared at one site, lab, and cannot reach each other"
    )


def test_shares_of_replicas_that_do_not_add_up_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--no-what-if", "--replicas", "2", "--workers", "2", "--save", "plan.json") == 0
    document = json.loads((folder / "plan.json").read_text())
    document["shares"] = [share + 1 for share in document["shares"]]
    (folder / "plan.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert run(["simulate", "plan.json", "--topology", "fleet.json"]) == 2
    assert_one_line(capsys.readouterr(), "must add up to its microbatches")


def test_there_is_one_reason_for_each_who_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [[0, 50, 50], [50, 0, 0], [50, 50, 0]]
    workers = [worker("home-1"), worker("home-2"), worker("lab", tflops=1e-7)]
    topology = fleet("home-1", "home-2", "lab", bandwidth_mbps=rates, workers=workers, submitter="home-1")
    (folder / "fleet.json").write_text(json.dumps(topology))
    assert plan("--no-what-if", "--workers", "1", "--picture", "step.svg") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "left out home-2: 1 worker was asked for" in told or "left out home-1: 1 worker was" in told
    assert "note there is no link from home-2 to lab: lab is left out" in told and told.count("lab") == 2


def test_memory_that_is_missing_is_told_briefly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = [worker(id, memory_gb=1e-5) for id in ("home-1", "home-2", "lab")]
    (folder / "fleet.json").write_text(json.dumps(fleet("home-1", "home-2", "lab", workers=workers)))
    assert plan() == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert line.endswith(" GB are missing: add workers") and len(line) <= 120


@pytest.mark.full
def test_a_search_says_how_it_gets_on(folder: Path) -> None:
    said: list[str] = []
    found = farflung.plan(load_job(folder / "tower.py"), "fleet.json", tell=said.append)
    assert said[0] == "capturing the model" and said[1] == "looking for a plan on 3 workers (auto)"
    counts = [line for line in said if " plans, best " in line]
    (last,) = counts[-1:]
    assert f": {found.evaluated} plans, best " in last and last.endswith(" s a step")
    assert any(line.startswith("what if, change 1: ") for line in said)


def test_a_plan_with_codecs_and_replicas_says_its_stages_and_what_came_of_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = fleet("home-1", "home-2", "lab", mbps=0.2)  # where gradients would take long
    (folder / "fleet.json").write_text(json.dumps(slow))
    options = ("--no-what-if", "--budget", "20", "--workers", "2")
    assert plan("--codec", "auto", "--replicas", "auto", *options) == 0
    told = capsys.readouterr()
    assert "  lower bound  none: bounds hold for dense links, with codecs none is computed" in told.out
    assert "replicas: one pipeline is fastest of what was tried" in " ".join(told.out.split())
    searched = "looking for a plan on 3 workers (auto), lines as they are"
    for words in (searched, f"{searched}, one pipeline and copies of it"):
        assert told.err.splitlines().count(words) == 1
    assert plan("--replicas", "2", *options) == 0
    told = capsys.readouterr()
    assert "  lower bound  none: with a given number of replicas none is computed" in told.out
    assert "replicas: one pipeline" not in told.out


def test_the_plan_is_printed_and_saved_before_it_is_known_what_would_help(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    assert plan("--no-what-if") == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("farflung.client.api.planning.effects_of", interrupted)
    assert plan("--save", "plan.json") == 130
    assert capsys.readouterr().out == whole and (folder / "plan.json").exists()
    assert plan("--json") == 130
    assert json.loads(capsys.readouterr().out) == {"error": "interrupted"}


def test_a_step_of_nearly_nothing_says_what_is_not_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--no-what-if", "--workers", "2") == 0
    assert "less than 1 ms for a microbatch" not in capsys.readouterr().out
    workers = [worker(id, tflops=1) for id in ("home-1", "home-2", "lab")]
    (folder / "fleet.json").write_text(json.dumps(fleet("home-1", "home-2", "lab", workers=workers)))
    assert plan("--no-what-if", "--workers", "2", "--save", "plan.json") == 0
    assert "try one worker (--workers 1 or --local 1), or larger" in " ".join(capsys.readouterr().out.split())
    assert run(["simulate", "plan.json", "--topology", "fleet.json"]) == 0
    assert "every device needs less than 1 ms for a microbatch" in capsys.readouterr().out
    assert plan("--no-what-if", "--workers", "1") == 0
    assert "hundreds of times as long; try larger microbatches" in " ".join(capsys.readouterr().out.split())


def test_one_worker_is_a_fleet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "fleet.json").write_text(json.dumps(fleet("lonely")))
    assert plan() == 0
    told = capsys.readouterr().out
    assert "on 1 worker," in told and "nothing crosses the network" in told
    assert "one more like lonely" in told


def test_workers_that_lack_an_op_of_the_model_are_left_out_and_say_which(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = worker("lab", lacks=["aten.linear.default"])
    workers = [worker("home-1", opset=1), worker("home-2"), lacking]
    (folder / "fleet.json").write_text(json.dumps(fleet("home-1", "home-2", "lab", workers=workers)))
    assert plan("--no-what-if") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "on 2 of 3 workers" in told
    assert "left out lab: its backend has no aten.linear.default: join it with another --backend" in told
    assert plan("--no-what-if", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == list(found["unable"]) == ["lab"]
    (folder / "fleet.json").write_text(json.dumps(fleet("lab", workers=[lacking])))
    assert plan("--no-what-if") == 2
    assert_one_line(capsys.readouterr(), "no worker here can run the model's ops: lab: its backend has no")
    (folder / "fleet.json").write_text(json.dumps(fleet("lab", workers=[worker("lab", lacks=["a b"])])))
    assert plan("--no-what-if") == 2
    assert_one_line(capsys.readouterr(), "lacks of worker lab must be")


def test_python_takes_the_name_of_a_testbed_as_the_command_does(folder: Path) -> None:
    job = load_job(folder / "tower.py")
    with pytest.raises(PlanError, match="the topology has 4 workers, 9 were asked for"):
        farflung.plan(job, "four-homes", workers=9)
    with pytest.raises(TopologyError, match="the testbeds are four-homes"):
        farflung.plan(job, "four-house")


def test_a_forecast_of_a_job_that_keeps_data_at_home_says_what_it_leaves_out(folder: Path) -> None:
    plain = load_job(folder / "tower.py")
    kept = replace(plain, keep_home=["inputs"])
    notes = [farflung.plan(one, "fleet.json", what_if=False).notes for one in (plain, kept)]
    (added,) = [note for note in notes[1] if note not in notes[0]]
    assert added.startswith("this forecast lets any worker read inputs and targets")


def test_a_forecast_of_a_job_that_is_checked_says_what_that_costs(folder: Path) -> None:
    plain = load_job(folder / "tower.py")
    plans = [farflung.plan(replace(plain, verify=share), "fleet.json", what_if=False) for share in (0.0, 1.0)]
    (added,) = [note for note in plans[1].notes if note not in plans[0].notes]
    assert added.startswith("verify=1: for each step an idle worker computes for ")
    assert plans[0].plan == plans[1].plan
