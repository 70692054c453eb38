"""On a device a model trains to the numbers of the CPU, shown with a device that computes on the CPU.

What is not equal bit for bit: attention, for which the CPU has a fused kernel of its own; linear layers of
tensors that are not contiguous; and autocast, which rounds the products of both to bfloat16. The fused
update rounds the last bits in another place, too.
"""

from __future__ import annotations

import pytest
from benchmarks.zoo import CASES, MODELS
from benchmarks.zoo.devices import STEADY
from tests.gpu import misuse, numbers
from tests.gpu.conftest import Ask
from tests.runtime.test_indices import BAD

from farflung.runtime.optimizers.declared import Adafactor, AdamW, Group, Lion, Muon, Optimizer

pytestmark = pytest.mark.slow
ROUNDED = {
    "gpt",
    "gpt-dropout",
    "gpt-tied",
    "gpt2-fused",
    "gpt2-fused-dropout",
    "llama",
    "qwen3",
    "qwen3-moe",
    "unet",
    "unet-bilinear",
    "gpt-autocast",
}
NAMES = [
    *(found.name for found in CASES),
    *(pytest.param(found.name, marks=pytest.mark.full) for found in MODELS),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_the_numbers_of_the_cpu(name: str, there: Ask) -> None:
    found = there(numbers.compare, name)
    if name == "gpt-autocast":
        assert found.loss < 1e-4 and found.gradient < 0.05
        return
    assert found.loss < 1e-6 and found.gradient < 1e-5 and found.state < 1e-6
    if name not in ROUNDED:
        assert found.first == 0.0


@pytest.mark.parametrize("name", ["resnet", "gpt-tied"])
def test_a_plan_mixes_devices_and_recomputes(name: str, there: Ask) -> None:
    found = there(numbers.compare, name, 2, 3, True, True)
    assert found.loss < 1e-6 and found.gradient < 1e-5 and found.state < 1e-6


@pytest.mark.cases(4)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "codec", ["int8/int4-stochastic", "row-topk30-int4/masked30-int4", "bf16/bf16", "even30/even100-dithered"]
)
def test_codecs_on_the_device_change_no_bit_of_what_they_write(codec: str, mixed: bool, there: Ask) -> None:
    found = there(numbers.compare, "resnet", 1, 2, False, mixed, STEADY, codec)
    assert found.first == found.loss == found.gradient == 0.0 and found.state < 1e-6


def test_a_rotated_gradient_is_close_to_that_of_the_cpu(there: Ask) -> None:
    found = there(numbers.compare, "resnet", 1, 2, False, False, STEADY, "hadamard4/eden2")
    assert found.loss < 1e-3 and found.gradient < 0.05


def test_a_fused_adamw_is_close_to_that_of_the_cpu(there: Ask) -> None:
    found = there(numbers.compare, "chain", 2, 2, False, False, AdamW(lr=1e-3))
    assert found.loss < 1e-6 and found.state < 1e-6


@pytest.mark.parametrize(
    "optimizer",
    [
        AdamW(lr=1e-3, weight_decay=0.5, no_decay="auto", groups=(Group("layers.0.*", lr_scale=0.1),)),
        Lion(lr=1e-4, weight_decay=0.1),
        Adafactor(lr=1e-2),
        Muon(lr=1e-3, others=AdamW(lr=1e-3)),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_every_optimizer_is_close_to_that_of_the_cpu(optimizer: Optimizer, there: Ask) -> None:
    found = there(numbers.compare, "chain", 2, 2, False, False, optimizer)
    assert found.loss < 1e-6 and found.state < 1e-6


def test_state_goes_out_and_comes_in(there: Ask) -> None:
    assert there(misuse.state_returns, "batch-norm")


@pytest.mark.parametrize("case", misuse.CASES, ids=lambda case: case.__name__)
def test_it_refuses_what_an_accelerator_refuses(case: object, there: Ask) -> None:
    there(case)


@pytest.mark.parametrize(("name", "index", "taker", "taken"), BAD)
def test_an_index_out_of_range_is_one_clear_line(
    name: str, index: int, taker: str, taken: str, there: Ask
) -> None:
    words = there(misuse.message_of, name, index)
    assert words.startswith(f"microbatch 1 contains index {index} in {name!r} where {taker}")
    assert f" takes {taken}:" in words


def test_indices_at_the_ends_are_taken(there: Ask) -> None:
    assert there(misuse.message_of, "", 0) == ""
