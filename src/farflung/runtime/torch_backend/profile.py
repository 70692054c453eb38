"""Times what a model does on the device at hand: each kind of node, sums of gradients, updates of parameters.

A kind whose time is known is not timed again. The nodes run as `replay` says, the rest by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from farflung.opdag import opset
from farflung.opdag.graph import Graph
from farflung.runtime.optimizer import Optimizer
from farflung.runtime.torch_backend.replay import Replay
from farflung.runtime.torch_backend.timing import sum_time, update_times
from farflung.workload.profile import DeviceProfile, gradient_sums, signatures
from farflung.workload.profile_store import Device, Known, device_name


def this_device() -> Device:
    """What times on this device depend on, beside what is timed."""
    table = f"{opset.version()} {opset.schema_hash(opset.version())}"
    return Device(device_name(), f"torch {torch.__version__}", table, torch.get_num_threads())


def profile_graph(
    graph: Graph,
    samples: int,
    state: Mapping[str, Tensor] | None = None,
    batch: Mapping[str, Tensor] | None = None,
    optimizer: Optimizer | None = None,
    known: Known | None = None,
) -> DeviceProfile:
    """Time the nodes of `graph` on microbatches of `samples`, and with `optimizer` its parameters' updates.

    Parameters
    ----------
    graph
        The model.
    state, batch
        Parameters, buffers and model inputs by name. What is not given is made up: a node's time hardly
        depends on the numbers it works on. Nothing is changed.
    optimizer
        Whose updates are timed.
    known
        Times that were taken on this device before (`profile_store`): they are not taken again.
    """
    known = known or Known()
    kinds = signatures(graph, samples)
    sums = sorted({kind for of_node in gradient_sums(graph, samples) for kind in of_node})
    replay = Replay(graph, samples, kinds, known.nodes, {**(state or {}), **(batch or {})})
    replay.prepare()
    found = {**known.nodes, **{time.signature: time for time in replay.times()}}
    found |= {kind: sum_time(kind) for kind in sums if kind not in found}
    wanted = dict.fromkeys([*(kind for kind in kinds if kind is not None), *sums])
    device = this_device()
    return DeviceProfile(
        device=device.name,
        framework=device.framework,
        opset=device.opset,
        threads=device.threads,
        microbatch_size=samples,
        times=[found[kind] for kind in wanted],
        updates=[] if optimizer is None else update_times(graph, optimizer, known.updates),
    )
