from __future__ import annotations

import pytest
import torch
from benchmarks.zoo import CASES, Case
from benchmarks.zoo.side_by_side import captured
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.opdag.run_nodes import run_nodes
from torch import Tensor

from farflung.opdag.storage import contiguous, like, reshaped, storage_of

SAMPLES = 2


def place(tensor: Tensor) -> int:
    """Where a tensor's memory begins."""
    return tensor.untyped_storage().data_ptr()


def strides_that_matter(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [step for step, size in zip(strides, shape, strict=True) if size != 1]


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_values_share_memory_and_lie_as_they_are_said_to(entry: Case) -> None:
    module, graph = captured(entry, SAMPLES)
    storage = storage_of(graph.nodes, graph.values, SAMPLES)
    for node, values in run_nodes(module, graph, entry.batch(SAMPLES, 1)):
        read = {place(values[value]) for value in node.reads()}
        for value in node.writes():
            made = values[value]
            assert (place(made) in read) == (value in storage.shared), node.op
            assert place(made) == place(values[storage.root(value)])
            strides = storage.strides(value)
            assert strides is not None, node.op
            theirs = strides_that_matter(tuple(made.shape), made.stride())
            assert strides_that_matter(tuple(made.shape), strides) == theirs, node.op


@settings(max_examples=300)
@given(data=st.data())
def test_a_shape_can_be_seen_without_a_copy_where_torch_can(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.zeros(shape).permute(order)
    if data.draw(st.booleans()):
        tensor = tensor[..., :1] if data.draw(st.booleans()) else tensor[: max(1, len(tensor) - 1)]
    pieces = data.draw(st.permutations(list(tensor.shape)))
    new = data.draw(st.sampled_from([pieces, [tensor.numel()], [1, *tensor.shape], [tensor.numel(), 1]]))
    found = reshaped(tuple(tensor.shape), tensor.stride(), new)
    try:
        seen = tensor.view(new)
    except RuntimeError:
        assert found is None
    else:
        assert found is not None
        assert strides_that_matter(tuple(new), found) == strides_that_matter(tuple(new), seen.stride())


@settings(max_examples=300)
@given(data=st.data())
def test_sums_lie_as_torch_lays_them(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    tensors = []
    for _ in range(data.draw(st.integers(1, 2))):
        order = data.draw(st.permutations(range(len(shape))))
        back = [list(order).index(dim) for dim in range(len(shape))]
        tensors.append(torch.zeros([shape[dim] for dim in order]).permute(back))
    if data.draw(st.booleans()):
        tensors.append(torch.zeros(shape[-1]))
    made = sum(tensors[1:], tensors[0] * 1)
    if len(tensors) == 1:
        made = -tensors[0]
    elif len(tensors) == 2:
        made = tensors[0] + tensors[1]
    else:
        return
    found = like(tuple(made.shape), [(tuple(t.shape), t.stride()) for t in tensors])
    assert found is not None
    assert strides_that_matter(tuple(made.shape), found) == strides_that_matter(
        tuple(made.shape), made.stride()
    )


def test_a_contiguous_tensor_is_row_major() -> None:
    assert contiguous([2, 3, 4]) == (12, 4, 1)
    assert contiguous([]) == ()
