from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import TopologyError
from farflung.plans import Scale, Topology, WorkerSpec, read_topology, write_topology
from farflung.plans.topology_file import decode_topology, encode_topology


def two(**changes: Any) -> dict[str, Any]:
    worker = {"site": "here", "tflops": 10, "memory_gb": 16}
    document: dict[str, Any] = {
        "workers": [{"id": "a", **worker}, {"id": "b", **worker}],
        "latency_ms": [[0, 50], [40, 0]],
        "bandwidth_mbps": [[0, 8], [20, 0]],
    }
    return {**document, **changes}


def worker(**changes: Any) -> dict[str, Any]:
    return two(workers=[{**two()["workers"][0], **changes}, two()["workers"][1]])


def read(folder: Path, document: object) -> Topology:
    path = folder / "topology.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_topology(path)


def test_a_row_is_the_sender_and_a_column_the_receiver(tmp_path: Path) -> None:
    topology = read(tmp_path, two(jitter_ms=2, loss=[[0, 0.01], [0, 0]]))
    forward, back = topology.link(0, 1), topology.link(1, 0)
    assert (forward.bandwidth_mbps, forward.latency_ms, forward.jitter_ms, forward.loss) == (8, 50, 2, 0.01)
    assert (back.bandwidth_mbps, back.latency_ms, back.jitter_ms, back.loss) == (20, 40, 2, 0)


def test_submitter_is_the_first_worker_unless_named(tmp_path: Path) -> None:
    assert read(tmp_path, two()).home.id == "a"
    assert read(tmp_path, two(submitter="b")).home.id == "b"


def test_keys_that_start_with_x_are_ignored(tmp_path: Path) -> None:
    topology = read(tmp_path, {**worker(**{"x-owner": 1}), "x-made-by": {"me": [1]}})
    assert topology == read(tmp_path, two())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object, found list"),
        ("[" * 100_000, "not JSON"),
        ('{"workers": 1e999}', "not JSON"),
        ({}, "missing required field `workers`"),
        (two(workers=[]), "workers must be 1 to 2048, found 0"),
        (two(workers=[3]), "a worker must be a JSON object, found int"),
        (two(workers=None), "workers: expected a list, found null"),
        (two(workers=two()["workers"] * 2000), "workers must be 1 to 2048, found 4000"),
        (two(workers=two()["workers"][:1] * 2), "two workers are called 'a'"),
        (worker(id="A home"), "'A home' cannot be a worker's id"),
        (worker(id="a" * 41), "cannot be a worker's id"),
        (worker(id="../etc"), "cannot be a worker's id"),
        (worker(site="a\nb"), "site must be"),
        (worker(tflops=0), "tflops of worker a must be above 0"),
        (worker(memory_gb=-1), "memory_gb of worker a must be above 0"),
        (worker(up_mbps=0), "up_mbps of worker a must be 0.001 to 1e+06, found 0"),
        (worker(down_mbps=1e9), "down_mbps of worker a must be"),
        (worker(behind_nat="yes"), "behind_nat of worker a: expected true or false, found a text"),
        (worker(machine="box"), "machine and cores must be given together"),
        (worker(machine="", cores=2), "machine must be 1 to 128 printable characters"),
        (worker(machine="box", cores=0), "cores of worker a must be 1 to 100000, found 0"),
        (
            two(workers=[{**w, "machine": "box", "cores": n + 1} for n, w in enumerate(two()["workers"])]),
            "the workers of machine 'box' must state the same number of cores",
        ),
        (worker(up_mpbs=8), "'up_mpbs' is not a key of a worker: did you mean up_mbps?"),
        (two(latency_ms=[[0, 1]]), "latency_ms must be 2 rows of 2, one per worker: found 1"),
        (
            two(bandwidth_mbps=[[0, 1], [1]]),
            "bandwidth_mbps must be 2 rows of 2, one per worker: found 2",
        ),
        (
            two(bandwidth_mbps=[[0, -1], [1, 0]]),
            "bandwidth_mbps from a to b must be 0.001 to 1e+06, or 0 if there is no link, found -1",
        ),
        (two(bandwidth_mbps=[[0, 1], [1e-9, 0]]), "bandwidth_mbps from b to a must be"),
        (
            two(bandwidth_mbps=[[0, "x"], [0, 0]]),
            "bandwidth_mbps from a to b: expected a number, found a text",
        ),
        (two(bandwidth_mbps=[7, [0, 0]]), "bandwidth_mbps, the entry of worker a: expected a list, found"),
        (two(workers=[{"id": "a", "site": "", "memory_gb": 1}]), "worker a: Object missing required field"),
        (worker(tflops="x"), "tflops of worker a: expected a number, found a text"),
        (two(latency_ms=[[0, 1e9], [0, 0]]), "latency_ms from a to b must be 0 to 60000"),
        (two(jitter_ms="x"), "jitter_ms: expected a number or a list, found a text"),
        ('{\n "jitter_ms": NaN\n}', "line 2: ' \"jitter_ms\": NaN'"),
        (two(loss=1), "loss must be 0 to 0.99, found 1"),
        (two(loss=[[0, 2], [0, 0]]), "loss from a to b must be"),
        (two(jitter_ms=-1), "jitter_ms must be"),
        (two(queue_ms=0), "queue_ms must be above 0"),
        (two(submitter="c"), "submitter names 'c', which is not a worker's id"),
        (two(scale={"factor": 0, "of": ""}), "factor of scale must be above 0"),
        (two(los=0.1), "'los' is not a key of a topology: did you mean loss?"),
    ],
)
def test_each_mistake_is_an_error_of_one_line(tmp_path: Path, document: object, words: str) -> None:
    with pytest.raises(TopologyError) as raised:
        read(tmp_path, document)
    line = str(raised.value)
    assert words in line and "\n" not in line and str(tmp_path) in line and len(line) < 400


def test_a_missing_topology_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"):
        read_topology(tmp_path / "none.json")
    with pytest.raises(TopologyError, match="Is a directory"):
        read_topology(tmp_path)
    with pytest.raises(TopologyError, match="cannot write"):
        write_topology(decode_topology(json.dumps(two()).encode()), tmp_path / "none" / "topology.json")


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
def test_a_topology_made_in_python_obeys_the_same_rules(rate: float) -> None:
    with pytest.raises(ValueError, match="tflops"):
        WorkerSpec("a", "here", rate, 1.0)
    plain = decode_topology(json.dumps(two()).encode())
    with pytest.raises(ValueError, match="bandwidth_mbps"):
        msgspec.structs.replace(plain, bandwidth_mbps=((0.0, rate), (1.0, 0.0)))


RATES = st.floats(1e-2, 1e6)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    count = draw(st.integers(1, 5))
    row = st.tuples(*[RATES] * count)
    delays = st.tuples(*[st.tuples(*[st.floats(0, 60_000)] * count)] * count)
    workers = [
        WorkerSpec(
            f"home-{number}",
            draw(st.text("abc ü", max_size=5)),
            draw(st.floats(0.1, 100)),
            16.0,
            up_mbps=draw(st.none() | RATES),
            behind_nat=draw(st.booleans()),
        )
        for number in range(count)
    ]
    return Topology(
        workers=tuple(workers),
        latency_ms=draw(delays),
        bandwidth_mbps=draw(st.tuples(*[row] * count)),
        title=draw(st.text(max_size=9)),
        jitter_ms=draw(st.floats(0, 9) | delays),
        submitter=draw(st.none() | st.sampled_from([worker.id for worker in workers])),
        scale=draw(st.none() | st.just(Scale(0.1, "ten times slower"))),
    )


@given(topologies())
def test_json_round_trip(topology: Topology) -> None:
    assert decode_topology(encode_topology(topology)) == topology


@given(topologies())
def test_slower_divides_every_rate_and_records_the_scale(topology: Topology) -> None:
    halved = topology.slower(2, "a test")
    assert halved.latency_ms == topology.latency_ms
    for a, b in topology.pairs():
        assert halved.link(a, b).bandwidth_mbps == topology.link(a, b).bandwidth_mbps / 2
    assert halved.workers[0].up_mbps == (topology.workers[0].up_mbps and topology.workers[0].up_mbps / 2)
    assert halved.scale is not None
    assert halved.scale.factor == (topology.scale.factor if topology.scale else 1) / 2


def test_files_are_written_and_read_back(tmp_path: Path) -> None:
    topology = read(tmp_path, two(title="two homes"))
    write_topology(topology, tmp_path / "again.json")
    assert read_topology(tmp_path / "again.json") == topology
    assert "[0.0,50.0]" in (tmp_path / "again.json").read_text()
