from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured

from farflung.errors import ProfileError
from farflung.opdag.graph import Graph
from farflung.workload import workload_of
from farflung.workload.profile import (
    DeviceProfile,
    OpTime,
    UpdateTime,
    gradient_sums,
    node_seconds,
    read_profile,
    signatures,
    sum_parts,
    sustained_tflops,
    update_seconds,
    update_signature,
    weighed,
    write_profile,
)

BATCH = 2


def graph_of(name: str) -> Graph:
    return captured(case(name), BATCH)[1]


def profile_of(graph: Graph, seconds: float = 1e-3) -> DeviceProfile:
    """Every kind takes a different time: the n-th n times `seconds` forward, and in each part of backward.

    A sum of gradients takes nothing.
    """
    kinds = dict.fromkeys(s for s in signatures(graph, BATCH) if s is not None)
    times = [OpTime(kind, seconds * n, seconds * n, seconds * n) for n, kind in enumerate(kinds, start=1)]
    sums = sorted({kind for of_node in gradient_sums(graph, BATCH) for kind in of_node})
    times += [OpTime(kind, 0.0, 0.0, 0.0) for kind in sums]
    return DeviceProfile("a device", "torch", "an opset", 1, BATCH, times)


def test_equal_layers_are_one_kind_and_unequal_ones_are_not() -> None:
    chain = graph_of("chain")
    kinds = [s for s in signatures(chain, BATCH) if s is not None]
    linear = {kind for kind in kinds if kind.startswith("aten.linear")}
    assert len(linear) == 2  # the first one's input needs no gradient
    frozen = {k for k in signatures(graph_of("frozen"), BATCH) if k and k.startswith("aten.linear")}
    assert len(frozen) == 4  # trained or not, and fed by something trained or not
    assert not set(kinds) & set(filter(None, signatures(chain, BATCH + 1)))


def test_what_depends_on_no_parameter_is_not_timed() -> None:
    graph = graph_of("gpt2-mask")
    workload = workload_of(graph, 1, BATCH)
    still = [signature is None for signature in signatures(graph, BATCH)]
    assert any(still) and not workload.flops[still].any()


def test_weighed_flops_are_in_proportion_to_time_and_as_many_as_before() -> None:
    graph = graph_of("resnet")
    workload, profile = workload_of(graph, 4, BATCH), profile_of(graph)
    found = weighed(workload, graph, profile)
    seconds = node_seconds(workload, graph, profile).total
    assert found.flops.sum() == pytest.approx(workload.flops.sum())
    assert np.allclose(found.flops / found.flops.sum(), seconds / seconds.sum())
    assert np.array_equal(found.tape_bytes, workload.tape_bytes)
    # A device with the sustained speed takes exactly the time that was measured.
    rate = sustained_tflops(workload, graph, profile) * 1e12
    assert 3 * found.flops.sum() / rate == pytest.approx(seconds.sum())


def test_gradients_of_a_value_are_added_where_all_but_its_last_reader_run() -> None:
    graph = graph_of("long-skip")
    skip = next(node.writes()[0] for node in graph.nodes if node.op == "aten.tanh.default")
    readers = [at for at, node in enumerate(graph.nodes) if skip in node.reads()]
    sums = gradient_sums(graph, BATCH)
    assert [at for at, kinds in enumerate(sums) if kinds] == readers[:-1]
    assert {sum_parts(kind) for kinds in sums for kind in kinds} == {("float32", BATCH * 16)}
    profile = profile_of(graph)
    times = [
        msgspec.structs.replace(time, backward_input_seconds=1.0)
        if time.signature.startswith("sum")
        else time
        for time in profile.times
    ]
    dear = msgspec.structs.replace(profile, times=times)
    workload = workload_of(graph, 1, BATCH)
    more = node_seconds(workload, graph, dear).backward_input
    less = node_seconds(workload, graph, profile).backward_input
    assert np.allclose((more - less)[readers], [*[1.0] * (len(readers) - 1), 0.0])


def test_the_gradients_of_the_first_microbatch_are_added_to_nothing() -> None:
    graph = graph_of("chain")
    profile = profile_of(graph)
    dear = [msgspec.structs.replace(time, sum_seconds=1.0) for time in profile.times]
    added = msgspec.structs.replace(profile, times=dear)
    for microbatches, share in ((1, 0.0), (4, 0.75)):
        workload = workload_of(graph, microbatches, BATCH)
        more = node_seconds(workload, graph, added).backward_weight
        less = node_seconds(workload, graph, profile).backward_weight
        assert np.allclose(more - less, share)


def test_updates_of_what_is_not_trained_take_no_time() -> None:
    graph = graph_of("frozen")
    kinds = {update_signature("AdamW", "float32", elements) for elements in (16, 256)}
    updates = [UpdateTime(kind, 1.0) for kind in kinds]
    profile = msgspec.structs.replace(profile_of(graph), updates=updates)
    names = [entry.name for entry in graph.inputs_of("parameter")]
    assert (
        update_seconds(graph, lambda *_: "AdamW", profile, names) == 2 * 5
    )  # of seven layers two are frozen
    with pytest.raises(ProfileError, match="update"):
        update_seconds(graph, lambda *_: "SGD", profile, names)


def test_a_profile_is_what_was_written(tmp_path: Path) -> None:
    profile = profile_of(graph_of("gpt"))
    write_profile(tmp_path / "p.json", profile)
    assert read_profile(tmp_path / "p.json") == profile


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no profile"),
        (b'{"device": "x"}', "no profile"),
        (b"[" * 5000, "no profile"),
        (b'{"device":"x","framework":"t","opset":"o","threads":0,"microbatch_size":1,"times":[]}', "threads"),
        (
            b'{"device":"x","framework":"t","opset":"o","threads":1,"microbatch_size":1,"times":'
            b'[{"signature":"a","forward_seconds":-1,"backward_input_seconds":0,'
            b'"backward_weight_seconds":0}]}',
            "forward_seconds",
        ),
        (
            b'{"device":"x","framework":"t","opset":"o","threads":1,"microbatch_size":1,"times":'
            b'[{"signature":"a","forward_seconds":1,"backward_input_seconds":0,"backward_weight_seconds":0},'
            b'{"signature":"a","forward_seconds":1,"backward_input_seconds":0,"backward_weight_seconds":0}]}',
            "same signature",
        ),
    ],
)
def test_a_damaged_profile_is_one_clear_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=words) as caught:
        read_profile(path)
    assert "\n" not in str(caught.value) and "capture JOB --profile" in str(caught.value)


def test_a_profile_of_another_model_or_microbatch_is_refused() -> None:
    graph = graph_of("gpt")
    workload, profile = workload_of(graph, 4, BATCH), profile_of(graph)
    with pytest.raises(ProfileError, match="of another model"):
        weighed(workload, graph, profile_of(graph_of("chain")))
    with pytest.raises(ProfileError, match="microbatches of 2 samples, the job has 3"):
        weighed(workload_of(graph, 4, 3), graph, profile)
    empty = msgspec.structs.replace(profile, times=[OpTime(t.signature, 0, 0, 0) for t in profile.times])
    with pytest.raises(ProfileError, match="all times in the profile are 0"):
        weighed(workload, graph, empty)
    with pytest.raises(ProfileError, match="cannot read"):
        read_profile(Path("/nowhere/at/all.json"))
