"""What cannot be captured is refused with the op, the module, the user's line and, where known, the fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.opdag.bodies import WIDTH, Base, error, line_of, pairs, plain, refusal
from torch import Tensor, nn


def branch(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    return error(z * 2, y) if z.sum() > 0 else error(z, y)


def loop(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = self.first(x)
    while z.abs().max() > 1:
        z = z / 2
    return error(z, y)


def taken_item(self: Base, x: Tensor, y: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return error(self.first(x) * scale, y)


def taken_float(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.first(x) * float(x.mean()), y)


def taken_list(self: Base, x: Tensor, y: Tensor) -> Tensor:
    scales = y[:, 0].sum(dim=0, keepdim=True).tolist()
    return error(self.first(x) * scales[0], y)


def through_numpy(self: Base, x: Tensor, y: Tensor) -> Tensor:
    scale = torch.from_numpy(x.numpy() * 2)
    return error(self.first(scale), y)


def nonzero(self: Base, x: Tensor, y: Tensor) -> Tensor:
    at = torch.nonzero(y[:, 0] > 0)
    return error(self.first(x)[at[:, 0]], y[at[:, 0]])


def mask(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return self.first(x)[y > 0].mean()


def mask_of_a_batch(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return self.first(x)[(y > 0)][None].mean()


def mask_of_a_known_size(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return (self.first(x)[:, y[0] > 0] + y).mean()  # export concludes that the mask is all true


def cut_by_item(self: Base, x: Tensor, y: Tensor) -> Tensor:
    k = y.abs().max().long().clamp(1, 3).item()
    z = self.first(x)[:, :k]  # cut
    return z.mean()


def cut_by_int(self: Base, x: Tensor, y: Tensor) -> Tensor:
    k = int(y.abs().max().long().clamp(1, 3))
    return self.first(x)[:, :k].mean()


def cut_by_tensor(self: Base, x: Tensor, y: Tensor) -> Tensor:
    k = y.abs().max().long().clamp(1, 3)
    z = self.first(x)[:, :k]  # cut
    return z.mean()


def narrowed(self: Base, x: Tensor, y: Tensor) -> Tensor:
    k = y.abs().max().long().clamp(1, 3).item()
    return self.first(x).narrow(1, 0, k).mean()


def cond(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t * 3, (self.first(x),))
    return error(z, y)


def while_loop(self: Base, x: Tensor, y: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop as repeat

    _, z = repeat(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), (torch.zeros((), dtype=torch.int64), x))
    return error(self.first(z), y)


def complex_numbers(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = torch.view_as_complex(self.first(x).reshape(-1, 2, 2))
    return error(z.abs(), y[:, :2])


def sparse(self: Base, x: Tensor, y: Tensor) -> Tensor:
    weight = self.first.weight.to_sparse()
    return error(torch.sparse.mm(weight, x.t()).t(), y)


def quantised(self: Base, x: Tensor, y: Tensor) -> Tensor:
    z = torch.fake_quantize_per_tensor_affine(self.first(x), 0.1, 0, -128, 127)
    return error(z, y)


def converted(self: Base, x: Tensor, y: Tensor) -> Tensor:
    return error(self.first.double()(x.double()).float(), y)


def parameter_in_place(self: Base, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        self.first.weight.clamp_(-1, 1)
    return error(self.first(x), y)


def number_as_loss(self: Base, x: Tensor, y: Tensor) -> float:
    return error(self.first(x), y).item()


def own_generator(self: Base, x: Tensor, y: Tensor) -> Tensor:
    noise = torch.rand(WIDTH, generator=torch.Generator())
    return error(self.first(x) * noise, y)


CASES = [
    (branch, "control-flow", "if z.sum()", ("control flow depends on a tensor's data", "torch.where")),
    (loop, "control-flow", "while z.abs()", ("control flow depends on a tensor's data",)),
    (taken_item, "control-flow", ".item()", ("`.item()`", "keep it a tensor")),
    (taken_float, "control-flow", "float(x.mean())", ("float(tensor)", "keep it a tensor")),
    (taken_list, "control-flow", ".tolist()", ("keep",)),
    (through_numpy, "control-flow", "x.numpy()", ("torch ops",)),
    (nonzero, "control-flow", "torch.nonzero", ("nonzero", "torch.where")),
    (mask, "control-flow", "[y > 0]", ("x[mask]", "torch.where(mask, x, 0)")),
    (mask_of_a_batch, "control-flow", "[(y > 0)][None]", ("x[mask]", "torch.where(mask, x, 0)")),
    (mask_of_a_known_size, "control-flow", "y[0] > 0]", ("x[mask]", "torch.where(mask, x, 0)")),
    (cut_by_item, "control-flow", "# cut", ("x[:, :k]", "torch.where(torch.arange(x.shape[1]) < k, x, 0)")),
    (cut_by_int, "control-flow", "int(y", ("int(tensor)", "torch.where(torch.arange(n) < k, x, 0)")),
    (cut_by_tensor, "control-flow", "# cut", ("x[:, :k]", "torch.where(torch.arange(x.shape[1]) < k, x, 0)")),
    (narrowed, "control-flow", ".narrow(", ("the size of narrow", "use torch.where or a mask")),
    (cond, "control-flow", "torch.cond", ("higher-order op", "torch.where")),
    (while_loop, "control-flow", "repeat(", ("a loop of fixed length",)),
    (complex_numbers, "opset", "view_as_complex", ("complex", "cos and sin")),
    (sparse, "opset", ".to_sparse()", ("sparse", "keep it dense")),
    (quantised, "opset", "fake_quantize", ("fake_quantize",)),
    (converted, "python-state", "double()(", ("converts the parameters of a Linear", "where they are used")),
    (parameter_in_place, "buffers", "", ("first.weight in place", "register it as a buffer")),
    (number_as_loss, "control-flow", ".item()", (".item()",)),
    (own_generator, "random-numbers", "torch.rand", ("the job's seed",)),
]


@pytest.mark.cases(8)
@pytest.mark.parametrize(("body", "lint", "text", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_refusals(
    body: Callable[..., Tensor],
    lint: str,
    text: str,
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
) -> None:
    refused = refusal(Base(body))
    where = line_of(body, text) if text else line_of(Base.forward, "self.body")  # where only a node is known
    assert where in str(refused), str(refused)
    assert all(word in str(refused) for word in words), str(refused)
    assert refused.lint == lint
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def own_op() -> Callable[[Tensor], Tensor]:
    @torch.library.custom_op("farflung_tests::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    return double


def test_an_op_of_ones_own_is_refused(own_op: Callable[[Tensor], Tensor]) -> None:
    def body(self: Base, x: Tensor, y: Tensor) -> Tensor:
        return error(own_op(self.first(x)), y)

    refused = str(refusal(Base(body)))
    assert "op farflung_tests.double.default is not in the opset" in refused
    assert "no worker has it: write it with torch ops" in refused
    assert line_of(Base.forward, "self.body") in refused


class Sparse(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).square().mean()


def test_sparse_gradients_are_refused() -> None:
    refused = str(refusal(Sparse(), {"x": torch.tensor([1, 2, 3])}))
    assert "sparse=True of aten.embedding.default" in refused
    assert "in module table" in refused and "leave it out" in refused


def complex_state(module: Base) -> None:
    module.second = nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)


def sparse_state(module: Base) -> None:
    module.register_buffer("adjacency", torch.eye(WIDTH).to_sparse())


def lazy(module: Base) -> None:
    module.second = nn.LazyLinear(WIDTH)  # type: ignore[assignment]


def compiled(module: Base) -> None:
    module.second = torch.compile(module.second)  # type: ignore[assignment]


def parallel(module: Base) -> None:
    module.second = nn.DataParallel(module.second)  # type: ignore[assignment]


def scripted(module: Base) -> None:
    module.second = torch.jit.trace(module.second, torch.randn(2, WIDTH))


STATE = [
    (complex_state, "second.weight is complex"),
    (sparse_state, "adjacency is sparse"),
    (lazy, "second.weight has no shape yet: run one batch"),
    (compiled, "second is wrapped in OptimizedModule: give Job the module itself"),
    (parallel, "second is wrapped in DataParallel: give Job the module inside"),
    (scripted, "second is a TorchScript module"),
]


@pytest.mark.parametrize(("change", "words"), STATE, ids=[case[0].__name__ for case in STATE])
@pytest.mark.filterwarnings("ignore")
def test_unsupported_module_state_is_refused(change: Callable[[Base], None], words: str) -> None:
    module = Base(plain)
    change(module)
    refused = refusal(module)
    assert words in str(refused) and refused.lint == "state"


@pytest.mark.filterwarnings("ignore")
def test_quantised_modules_are_refused() -> None:
    module = torch.ao.quantization.quantize_dynamic(Base(plain), {nn.Linear}, dtype=torch.qint8)
    refused = refusal(module)
    assert "first is quantised" in str(refused) and "train in floating point" in str(refused)


class Mixture(nn.Module):
    """Experts of Hugging Face, as its models hold them."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

        configuration = Qwen3MoeConfig(hidden_size=WIDTH, moe_intermediate_size=8, num_experts=2)
        configuration._experts_implementation = "grouped_mm"  # what its models choose by themselves
        self.experts = Qwen3MoeExperts(configuration)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return self.experts(x, chosen, torch.ones_like(x[:, :1])).square().mean()


@pytest.mark.slow
def test_mixtures_of_experts_of_hugging_face_name_the_setting() -> None:
    pytest.importorskip("transformers")
    refused = str(refusal(Mixture(), {"x": torch.randn(6, WIDTH), "chosen": torch.tensor([[0], [1]] * 3)}))
    assert "op transformers.grouped_mm_fallback.default is not in the opset" in refused
    assert "in module experts" in refused
    assert "set experts_implementation='batched_mm' in the model's configuration" in refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("layerdrop", 0.1, "to turn layer drop off, make the model with layerdrop=0 in its config"),
        ("apply_spec_augment", True, "to turn SpecAugment off, make the model with apply_spec_augment=False"),
    ],
)
def test_what_speech_models_of_hugging_face_draw_in_python_names_the_setting(
    setting: str, value: object, words: str
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    convolutions = {
        "conv_dim": (16,),
        "conv_stride": (40,),
        "conv_kernel": (40,),
        "num_feat_extract_layers": 1,
    }
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    off = {"layerdrop": 0.0, "apply_spec_augment": False}
    config = transformers.WavLMConfig(**sizes, **convolutions, **positions, **{**off, setting: value})
    model = transformers.WavLMForSequenceClassification(config)
    batch = {"input_values": torch.randn(2, 4000), "labels": torch.tensor([0, 1])}
    assert words in str(refusal(model, batch))


def test_samples_are_at_least_two() -> None:
    assert refusal(Base(plain), pairs(1)).lint == "batch-size"


def test_names_that_forward_does_not_take_are_listed_on_both_sides() -> None:
    batch = {"x": pairs()["x"], "labels": pairs()["y"]}
    words = str(refusal(Base(plain), batch))
    assert "have labels, x, forward takes x, y" in words
    assert words.endswith("leave out what it does not take: data.remove_columns(['labels'])")


def test_an_entry_that_forward_needs_and_the_data_lacks_is_named() -> None:
    words = str(refusal(Base(plain), {"x": pairs()["x"]}))
    assert "missing a required argument: 'y'" in words and "have x, forward takes x, y" in words
    assert "remove_columns" not in words


class Masked(nn.Module):
    """Makes a mask where none is given, but not while it is exported, as LongT5 does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None and not torch.compiler.is_compiling():
            attention_mask = torch.ones(x.shape[0], 1)
        shape = attention_mask.shape  # type: ignore[union-attr]
        return error(self.layer(x) * shape[1], y)


def test_a_mask_that_a_model_makes_only_outside_of_export_is_asked_for() -> None:
    words = str(refusal(Masked()))
    assert "'NoneType' object has no attribute 'shape'" in words
    assert "the data has no 'attention_mask', and some models make none while they are captured" in words
    assert "attention_mask" not in str(refusal(Base(lambda self, x, y: self.missing.shape)))
