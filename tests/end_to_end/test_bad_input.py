"""Whatever a user or a peer does wrong ends in one clear line, and everything else goes on."""

from __future__ import annotations

import json
import math
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.processes import JOB, Command, Machines, Run, eventually, machines, train

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store
from farflung.files import write_atomically
from farflung.transport.security.tokens import Token

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]

CUSTOM = """
class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return -2 * gradient


"""
FIRST = "        for layer in self.layers:\n"
LAST = "        return nn.functional.mse_loss(x, y)\n"
HERE = "  # here\n"
LIMIT_BYTES = 16_384


def changed(old: str, new: str) -> str:
    """The job with one thing wrong."""
    assert JOB.count(old) == 1
    return JOB.replace(old, new)


JOBS = {
    "raises": ("def job():\n    raise ValueError('no\\nluck')  # here\n", "raised ValueError: no"),
    "nameless": ("answer = 42\n", "has no job()"),
    "other": ("def job():\n    return 42\n", "must return a farflung.Job, found an int"),
    "uneven": (changed("microbatches=4", "microbatches=3"), "batch must be divisible by microbatches"),
    "custom": (
        changed("class Net", CUSTOM + "class Net").replace(LAST, "        x = Turned.apply(x)" + HERE + LAST),
        "is not the derivative of its forward",
    ),
    "branch": (
        changed(FIRST, "        if x.sum() > 0:" + HERE + "            x = -x\n" + FIRST),
        "control flow",
    ),
    "unknown op": (
        changed(LAST, "        x = torch.fft.fft(x).real" + HERE + LAST),
        "complex numbers are made by fft_fft",
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A machine without a broker."""
    with machines(tmp_path_factory.mktemp("desk")) as on:
        yield on


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", JOBS)
def test_a_wrong_job_is_named_with_its_line(desk: Machines, name: str) -> None:
    source, words = JOBS[name]
    file = desk.folder / f"{name.replace(' ', '_')}.py"
    file.write_text(source)
    line = desk.fails("desk", "train", file.name, "--local", "2", "--out", "run")
    assert words in line and file.name in line
    if "# here" in source:
        number = next(n for n, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
        assert f"{file.name}:{number}" in line
    assert not (desk.folder / "run").exists()


def test_more_parts_than_the_model_has_are_refused(desk: Machines) -> None:
    assert "can be cut into at most" in desk.fails("desk", "check", "net.py", "--segments", "50")
    line = desk.fails("desk", "train", "net.py", "--local", "30", "--out", "run")
    assert "can be cut into at most" in line
    assert not (desk.folder / "run").exists()


def test_a_port_in_use_is_named(desk: Machines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = desk.fails("hub", "broker", "--listen", f"127.0.0.1:{port}")
    assert f"port {port} is in use" in line and "--listen" in line


POISON = """
from farflung.data import SampleOrder

POISONED = SampleOrder(64, 8, 0).indices(4)[0]


class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.sin(torch.arange(8.0) + index)
        return {"x": x if index != POISONED else x * float("nan"), "y": x.flip(0)}
"""


def test_a_nan_loss_stops_the_run_with_the_last_good_weights(desk: Machines) -> None:
    (desk.folder / "poisoned.py").write_text(changed("\n\ndef job", POISON + "\n\ndef job"))
    steps = 4
    fails = train(desk, "nan", "--local", "2", job="poisoned.py")
    reason = fails.fails()
    assert f"the loss became NaN at step {steps + 1}" in reason and f"the weights of step {steps}" in reason
    good = train(desk, "good", "--local", "2", "--steps", str(steps), job="poisoned.py")
    assert good.command.code() == 0
    assert fails.rows[-1]["step"] == fails.summary["weights_step"] == steps
    assert [row["loss"] for row in fails.rows] == [row["loss"] for row in good.rows]
    kept, expected = (load_file(run.folder / "model.safetensors") for run in (fails, good))
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in kept)
    assert all(bool(tensor.isfinite().all()) for tensor in kept.values())
    assert all(math.isfinite(row["gradient_norm"]) for row in fails.rows)


class Hub:
    """A broker with one worker."""

    def __init__(self, on: Machines) -> None:
        self.on = on
        self.broker = on.broker()
        self.worker = on.worker("a", on.token("worker"))
        self.submitter = on.token("submitter", "--uses", "9")
        self.worker.says("idle in the backup pool")

    def train(self, job: str, name: str, *arguments: str) -> Command:
        """Start a run, whose process may write files of at most `LIMIT_BYTES`."""
        where = ["--broker", self.on.address, "--token", self.submitter, "--out", name]
        return self.on.start("desk", "train", job, *where, *arguments, limit_bytes=LIMIT_BYTES)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with machines(tmp_path_factory.mktemp("hub")) as on:
        hub = Hub(on)
        yield hub
        hub.worker.stop()
        hub.broker.stop()


def mistyped(token: str) -> str:
    """The token with one letter changed."""
    return token[:-9] + ("b" if token[-9] == "a" else "a") + token[-8:]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "the token expired"),
        ("used up", "the token is used up (1 of 1 uses)"),
        ("unknown", "this broker does not know the token"),
        ("of another broker", "did not create this token"),
        ("empty", "the token is empty: pass what `farflung token create` printed"),
        ("revoked", "this broker does not know the token any more: it was revoked"),
        ("mistyped", "the token's checksum does not match: copy it again"),
        ("of another role", "the token is for a submitter, not for a worker"),
        ("cut", "characters instead of 89: copy all of it again"),
    ],
)
def test_a_token_that_does_not_let_in_says_why(hub: Hub, kind: str, words: str) -> None:
    name = kind.replace(" ", "-")
    line = hub.on.fails(name, "join", hub.on.address, "--token", _token(hub, kind), "--listen", "127.0.0.1:0")
    assert words in line
    assert not (hub.on.folder / name / "worker" / "identity.json").exists()
    if kind == "of another broker":
        assert "nothing secret was sent" in line
    assert hub.on.document("desk", "status", "--token", hub.submitter, "--broker", hub.on.address)


def _token(hub: Hub, kind: str) -> str:
    on = hub.on
    match kind:
        case "expired":
            return on.token("worker", "--hours", "0.0000001")
        case "used up":
            token = on.token("worker")
            spender = on.worker("spender", token)
            eventually("it has joined", (on.folder / "spender" / "worker" / "identity.json").exists)
            spender.signal(signal.SIGKILL)
            spender.code()
            return token
        case "unknown":
            real = Token.parse(on.token("worker"))
            return Token.create("worker", real.fingerprint).text
        case "of another broker":
            return on.token("worker", home="elsewhere")
        case "mistyped":
            return mistyped(on.token("worker"))
        case "empty":
            return ""
        case "revoked":
            token = on.token("worker")
            known = on.document("hub", "token", "list")["tokens"]
            on.document("hub", "token", "revoke", max(known, key=lambda one: one["made_at"])["id"])
            return token
        case "of another role":
            return on.token("submitter")
        case _:
            return on.token("worker")[:-4]


def test_a_broker_that_took_anothers_place_is_refused(hub: Hub, tmp_path: Path) -> None:
    """An identity of one broker, at the address of another: neither a secret nor a job is sent."""
    with machines(tmp_path / "other") as other:
        broker = other.broker()
        foreign = other.document(
            "desk", "status", "--broker", other.address, "--token", other.token("viewer")
        )
        assert foreign["workers"] == []
        line = other.fails("desk", "status", "--broker", hub.on.address)
        assert f"the broker at {hub.on.address} does not know the identity in" in line
        assert f"belongs to another broker, the one at {other.address}; create a token" in line
        broker.stop()


def test_a_listening_port_in_use_is_named_by_a_worker(hub: Hub) -> None:
    token = hub.on.token("worker")
    line = hub.on.fails("double", "join", hub.on.address, "--token", token, "--listen", hub.on.address)
    assert "is in use" in line and "--listen" in line


def test_a_second_process_with_a_workers_identity_is_refused(hub: Hub) -> None:
    line = hub.on.fails("a", "join", hub.on.address, "--listen", "127.0.0.1:0")
    assert "the broker refused this worker: a worker with the id a is connected already" in line
    hub.on.idle("a")


def test_segments_that_do_not_fit_are_refused_with_the_bytes(hub: Hub) -> None:
    on = hub.on
    small = ["--name", "tiny", "--listen", "127.0.0.1:0", "--memory", "1e-6"]
    tiny = on.start("tiny", "join", on.address, "--token", on.token("worker"), *small)
    tiny.says("idle in the backup pool")
    where = ["--broker", on.address, "--token", hub.submitter, "--out", "tight", "--on", "tiny"]
    reason = Run(on.start("desk", "train", "net.py", *where), on.folder / "tight").fails()
    parameters = 6 * (8 * 8 + 8) * 4
    assert "worker tiny refused the job while the job was loading" in reason
    words = f"takes {parameters} bytes, this worker offers 1000: raise `farflung join --memory`"
    assert words in reason
    tiny.stop()
    on.idle("a")


def test_a_disk_that_fills_stops_the_run_with_what_it_has(hub: Hub) -> None:
    command = hub.train("net.py", "full")
    assert command.code() == 1
    (line,) = command.errors
    folder = hub.on.folder / "full"
    assert "cannot write to the run folder" in line and "(File too large)" in line and str(folder) in line
    rows = (folder / "metrics.jsonl").read_text()
    assert rows.endswith("\n") and LIMIT_BYTES - 1000 < len(rows) <= LIMIT_BYTES
    assert not list(folder.glob("*.safetensors*")) and not list(folder.glob(".*"))
    hub.on.idle("a")


@pytest.mark.full
def test_weights_that_do_not_fit_leave_no_half_file(hub: Hub) -> None:
    deep = changed("range(6)", "range(99)").replace("nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)")
    (hub.on.folder / "deep.py").write_text(deep)
    command = hub.train("deep.py", "deep", "--steps", "1")
    assert command.code() == 1
    (line,) = command.errors
    assert "cannot write to the run folder" in line
    names = {path.name for path in (hub.on.folder / "deep").iterdir()}
    assert names <= {"run.json", "metrics.jsonl", "events.jsonl", "plan.json", "summary.json"}
    hub.on.idle("a")


def test_status_without_an_identity_says_how_to_get_one(hub: Hub) -> None:
    assert "farflung token create --role viewer" in hub.on.fails("stranger", "status")


def test_an_expired_certificate_is_named_with_its_cure(hub: Hub) -> None:
    on = hub.on
    on.document("late", "status", "--broker", on.address, "--token", on.token("viewer"))
    folder = on.folder / "late" / "viewer"
    _expire(on.folder / "hub" / "broker", folder)
    for arguments in (["status"], ["status", "--broker", on.address]):
        line = on.fails("late", *arguments)
        assert "the certificate of" in line and "expired at" in line and "farflung token create" in line
    findings = _findings(on, "late")
    assert not findings["certificate"]["ok"] and "expired at" in findings["certificate"]["found"]


def _expire(authority: Path, holder: Path) -> None:
    """Give a holder the certificate that its broker would have given it months ago, too old to renew."""
    from farflung.transport.security.identity import CERTIFICATE_FILE, Identity

    identity = Identity.load(holder)
    with Store(authority, sole=False) as store:
        months_ago = Authority.open(authority, store, clock=lambda: identity.expires_at - 100 * 86400)
        old = months_ago.renew(identity.id, identity.role, identity.renewal_request())
    write_atomically(holder / CERTIFICATE_FILE, old)


def _findings(on: Machines, home: str, *arguments: str) -> dict[str, dict[str, object]]:
    """What `farflung doctor` finds wrong there, which it must."""
    command = on.start(home, "doctor", "--json", *arguments)
    assert command.code() == 1, command.out
    document = json.loads(command.out)
    assert not document["ok"]
    return {finding["check"]: finding for finding in document["findings"]}


def test_the_doctor_names_a_broker_that_is_down(desk: Machines) -> None:
    findings = _findings(desk, "desk", "--broker", desk.address)
    assert not findings["reach"]["ok"] and "refused" in str(findings["reach"]["found"])
    assert "farflung broker --listen" in str(findings["reach"]["helps"])
