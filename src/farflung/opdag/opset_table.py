"""The opset: every op a worker may run, by explicit name, with its schema, grouped by cost.

One op per line: `name(type argument=default, ...) -> results`, a trailing `random` for ops that draw random
numbers; `*` results means a list. Types: Tensor, Tensor? (may be absent), Tensor[] and Tensor?[] (lists),
int, float, bool, Scalar (any number), Operand (a Tensor or a number), ScalarType (an element type), `str(a|b)`
(one of), `int(16)` (at most 16: kernels repeat their work that many times), each with `[]` or `?`.

A line is never changed or removed. A new one ends in `since N`, where N is one more than the newest released
version (3); a line without it belongs to version 1. So each version has all ops of those before it.

Arguments that PyTorch has and the table lacks (device, layout, memory format, sparse gradients) do not exist
on the wire. A test compares the table with torch's own schemas. Names without a namespace are torch's own, in
`aten`; `farflung.` marks the few that each backend defines.
"""

from __future__ import annotations

# ruff: noqa: E501 (one op a line)

ELEMENTWISE = """
add.Tensor(Tensor self, Operand other, Scalar alpha=1) -> 1
sub.Tensor(Tensor self, Operand other, Scalar alpha=1) -> 1
mul.Tensor(Tensor self, Operand other) -> 1
div.Tensor(Tensor self, Operand other) -> 1
add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> 1
sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> 1
rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> 1
mul.Scalar(Tensor self, Scalar other) -> 1
div.Scalar(Tensor self, Scalar other) -> 1
neg.default(Tensor self) -> 1
pow.Tensor_Scalar(Tensor self, Scalar exponent) -> 1
pow.Tensor_Tensor(Tensor self, Tensor exponent) -> 1
pow.Scalar(Scalar self, Tensor exponent) -> 1
sqrt.default(Tensor self) -> 1
rsqrt.default(Tensor self) -> 1
exp.default(Tensor self) -> 1
log.default(Tensor self) -> 1
abs.default(Tensor self) -> 1
sin.default(Tensor self) -> 1
cos.default(Tensor self) -> 1
tanh.default(Tensor self) -> 1
sigmoid.default(Tensor self) -> 1
relu.default(Tensor self) -> 1
gelu.default(Tensor self, str(none|tanh) approximate=none) -> 1
silu.default(Tensor self) -> 1
softplus.default(Tensor self, Scalar beta=1, Scalar threshold=20) -> 1
leaky_relu.default(Tensor self, Scalar negative_slope=0.01) -> 1
elu.default(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> 1
hardtanh.default(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> 1
reciprocal.default(Tensor self) -> 1
square.default(Tensor self) -> 1
erf.default(Tensor self) -> 1
maximum.default(Tensor self, Tensor other) -> 1
minimum.default(Tensor self, Tensor other) -> 1
clamp.default(Tensor self, Scalar? min=None, Scalar? max=None) -> 1
clamp_min.default(Tensor self, Scalar min) -> 1
where.self(Tensor condition, Tensor self, Tensor other) -> 1
where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> 1
where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> 1
masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> 1
eq.Tensor(Tensor self, Operand other) -> 1
eq.Scalar(Tensor self, Scalar other) -> 1
ne.Tensor(Tensor self, Operand other) -> 1
ne.Scalar(Tensor self, Scalar other) -> 1
lt.Tensor(Tensor self, Operand other) -> 1
lt.Scalar(Tensor self, Scalar other) -> 1
le.Tensor(Tensor self, Operand other) -> 1
le.Scalar(Tensor self, Scalar other) -> 1
gt.Tensor(Tensor self, Operand other) -> 1
gt.Scalar(Tensor self, Scalar other) -> 1
ge.Tensor(Tensor self, Operand other) -> 1
ge.Scalar(Tensor self, Scalar other) -> 1
logical_and.default(Tensor self, Tensor other) -> 1
logical_or.default(Tensor self, Tensor other) -> 1
logical_not.default(Tensor self) -> 1
bitwise_and.Tensor(Tensor self, Operand other) -> 1
bitwise_or.Tensor(Tensor self, Operand other) -> 1
bitwise_not.default(Tensor self) -> 1
tril.default(Tensor self, int diagonal=0) -> 1
triu.default(Tensor self, int diagonal=0) -> 1
native_dropout.default(Tensor input, float p, bool? train) -> 2 random
diff.default(Tensor self, int(16) n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> 1 since 2
log1p.default(Tensor self) -> 1 since 3
log2.default(Tensor self) -> 1 since 3
expm1.default(Tensor self) -> 1 since 3
atan.default(Tensor self) -> 1 since 3
floor.default(Tensor self) -> 1 since 3
ceil.default(Tensor self) -> 1 since 3
round.default(Tensor self) -> 1 since 3
sign.default(Tensor self) -> 1 since 3
hardswish.default(Tensor self) -> 1 since 3
hardsigmoid.default(Tensor self) -> 1 since 3
mish.default(Tensor self) -> 1 since 3
log_sigmoid.default(Tensor self) -> 1 since 3
prelu.default(Tensor self, Tensor weight) -> 1 since 3
clamp_max.default(Tensor self, Scalar max) -> 1 since 3
remainder.Scalar(Tensor self, Scalar other) -> 1 since 3
remainder.Tensor(Tensor self, Tensor other) -> 1 since 3
masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> 1 since 3
bitwise_xor.Tensor(Tensor self, Operand other) -> 1 since 3
"""
REDUCTION = """
cumsum.default(Tensor self, int dim, ScalarType? dtype=None) -> 1
sum.default(Tensor self, ScalarType? dtype=None) -> 1
sum.dim_IntList(Tensor self, int[]? dim, bool keepdim=False, ScalarType? dtype=None) -> 1
mean.default(Tensor self, ScalarType? dtype=None) -> 1
mean.dim(Tensor self, int[]? dim, bool keepdim=False, ScalarType? dtype=None) -> 1
amax.default(Tensor self, int[] dim=[], bool keepdim=False) -> 1
argmax.default(Tensor self, int? dim=None, bool keepdim=False) -> 1
var.correction(Tensor self, int[]? dim=None, Scalar? correction=None, bool keepdim=False) -> 1
softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> 1
log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> 1
logsumexp.default(Tensor self, int[] dim, bool keepdim=False) -> 1
mse_loss.default(Tensor self, Tensor target, int reduction=1) -> 1
cross_entropy_loss.default(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100, float label_smoothing=0.) -> 1
nll_loss_nd.default(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100) -> 1
binary_cross_entropy_with_logits.default(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> 1
smooth_l1_loss.default(Tensor self, Tensor target, int reduction=1, float beta=1.0) -> 1 since 2
topk.default(Tensor self, int k, int dim=-1, bool largest=True, bool sorted=True) -> 2 since 2
amin.default(Tensor self, int[] dim=[], bool keepdim=False) -> 1 since 3
max.default(Tensor self) -> 1 since 3
min.default(Tensor self) -> 1 since 3
max.dim(Tensor self, int dim, bool keepdim=False) -> 2 since 3
min.dim(Tensor self, int dim, bool keepdim=False) -> 2 since 3
prod.default(Tensor self, ScalarType? dtype=None) -> 1 since 3
prod.dim_int(Tensor self, int dim, bool keepdim=False, ScalarType? dtype=None) -> 1 since 3
std.correction(Tensor self, int[]? dim=None, Scalar? correction=None, bool keepdim=False) -> 1 since 3
linalg_vector_norm.default(Tensor self, Scalar ord=2, int[]? dim=None, bool keepdim=False, ScalarType? dtype=None) -> 1 since 3
"""
NORMALISATION = """
layer_norm.default(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> 1
group_norm.default(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> 1
rms_norm.default(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> 1
_native_batch_norm_legit_functional.default(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> 5
_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> 3
"""
POOLING = """
max_pool2d.default(Tensor self, int[] kernel_size, int[] stride=[], int[] padding=0, int[] dilation=1, bool ceil_mode=False) -> 1
avg_pool2d.default(Tensor self, int[] kernel_size, int[] stride=[], int[] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> 1
adaptive_avg_pool2d.default(Tensor self, int[] output_size) -> 1
max_pool3d.default(Tensor self, int[] kernel_size, int[] stride=[], int[] padding=0, int[] dilation=1, bool ceil_mode=False) -> 1 since 3
avg_pool3d.default(Tensor self, int[] kernel_size, int[] stride=[], int[] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> 1 since 3
adaptive_avg_pool3d.default(Tensor self, int[] output_size) -> 1 since 3
"""
RESAMPLING = """
upsample_bilinear2d.vec(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> 1 since 2
upsample_trilinear3d.vec(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> 1 since 2
upsample_linear1d.vec(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> 1 since 3
upsample_bicubic2d.vec(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> 1 since 3
"""
PRODUCT = """
matmul.default(Tensor self, Tensor other) -> 1
bmm.default(Tensor self, Tensor mat2) -> 1
mm.default(Tensor self, Tensor mat2) -> 1
addmm.default(Tensor self, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1) -> 1
baddbmm.default(Tensor self, Tensor batch1, Tensor batch2, Scalar beta=1, Scalar alpha=1) -> 1
linear.default(Tensor input, Tensor weight, Tensor? bias=None) -> 1
farflung.quantized_linear.default(Tensor input, Tensor weight, str(int8|nf4) format, Tensor? bias=None, bool transposed=False) -> 1 since 4
"""
CONVOLUTION = """
conv1d.default(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], int[] padding=[0], int[] dilation=[1], int groups=1) -> 1
conv2d.default(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1], int[] padding=[0, 0], int[] dilation=[1, 1], int groups=1) -> 1
conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1], str(valid|same) padding=valid, int[] dilation=[1, 1], int groups=1) -> 1
conv3d.default(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1, 1], int[] padding=[0, 0, 0], int[] dilation=[1, 1, 1], int groups=1) -> 1
conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1], int[] padding=[0, 0], int[] output_padding=[0, 0], int groups=1, int[] dilation=[1, 1]) -> 1 since 2
conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1, 1], int[] padding=[0, 0, 0], int[] output_padding=[0, 0, 0], int groups=1, int[] dilation=[1, 1, 1]) -> 1 since 2
conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], str(valid|same) padding=valid, int[] dilation=[1], int groups=1) -> 1 since 3
conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1, 1, 1], str(valid|same) padding=valid, int[] dilation=[1, 1, 1], int groups=1) -> 1 since 3
conv_transpose1d.default(Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], int[] padding=[0], int[] output_padding=[0], int groups=1, int[] dilation=[1]) -> 1 since 3
"""
ATTENTION = """
scaled_dot_product_attention.default(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, float? scale=None, bool enable_gqa=False) -> 1 random
"""
VIEW = """
reshape.default(Tensor self, int[] shape) -> 1
transpose.int(Tensor self, int dim0, int dim1) -> 1
permute.default(Tensor self, int[] dims) -> 1
t.default(Tensor self) -> 1
unsqueeze.default(Tensor self, int dim) -> 1
squeeze.dim(Tensor self, int dim) -> 1
squeeze.default(Tensor self) -> 1
squeeze.dims(Tensor self, int[] dim) -> 1
expand.default(Tensor self, int[] size, bool implicit=False) -> 1
expand_as.default(Tensor self, Tensor other) -> 1
slice.Tensor(Tensor self, int dim=0, int? start=None, int? end=None, int step=1) -> 1
select.int(Tensor self, int dim, int index) -> 1
split.Tensor(Tensor self, int split_size, int dim=0) -> *
split_with_sizes.default(Tensor self, int[] split_sizes, int dim=0) -> *
chunk.default(Tensor self, int chunks, int dim=0) -> *
unbind.int(Tensor self, int dim=0) -> *
flatten.using_ints(Tensor self, int start_dim=0, int end_dim=-1) -> 1
detach.default(Tensor self) -> 1
"""
MOVEMENT = """
embedding.default(Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False) -> 1
farflung.quantized_embedding.default(Tensor weight, Tensor indices, str(int8|nf4) format, ScalarType dtype) -> 1 since 4
cat.default(Tensor[] tensors, int dim=0) -> 1
stack.default(Tensor[] tensors, int dim=0) -> 1
repeat.default(Tensor self, int[] repeats) -> 1
index.Tensor(Tensor self, Tensor?[] indices) -> 1
index_select.default(Tensor self, int dim, Tensor index) -> 1
gather.default(Tensor self, int dim, Tensor index) -> 1
flip.default(Tensor self, int[] dims) -> 1
roll.default(Tensor self, int[] shifts, int[] dims=[]) -> 1
_to_copy.default(Tensor self, ScalarType? dtype=None) -> 1
pad.default(Tensor self, int[] pad, str(constant|reflect|replicate|circular) mode=constant, float? value=None) -> 1
constant_pad_nd.default(Tensor self, int[] pad, Scalar value=0) -> 1
repeat_interleave.self_int(Tensor self, int repeats, int? dim=None, int? output_size=None) -> 1 since 2
select_scatter.default(Tensor self, Tensor src, int dim, int index) -> 1 since 2
slice_scatter.default(Tensor self, Tensor src, int dim=0, int? start=None, int? end=None, int step=1) -> 1 since 2
pixel_shuffle.default(Tensor self, int upscale_factor) -> 1 since 3
pixel_unshuffle.default(Tensor self, int downscale_factor) -> 1 since 3
upsample_nearest1d.vec(Tensor input, int[]? output_size, float[]? scale_factors) -> 1 since 3
upsample_nearest2d.vec(Tensor input, int[]? output_size, float[]? scale_factors) -> 1 since 3
upsample_nearest3d.vec(Tensor input, int[]? output_size, float[]? scale_factors) -> 1 since 3
scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> 1 since 4
scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> 1 since 4
scatter_add.default(Tensor self, int dim, Tensor index, Tensor src) -> 1 since 4
scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str(sum|mean|amax|amin) reduce, bool include_self=True) -> 1 since 4
index_put.default(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> 1 since 4
"""
CREATION = """
arange.default(Scalar end, ScalarType? dtype=None) -> 1
arange.start(Scalar start, Scalar end, ScalarType? dtype=None) -> 1
arange.start_step(Scalar start, Scalar end, Scalar step=1, ScalarType? dtype=None) -> 1
full.default(int[] size, Scalar fill_value, ScalarType? dtype=None) -> 1
zeros.default(int[] size, ScalarType? dtype=None) -> 1
ones.default(int[] size, ScalarType? dtype=None) -> 1
scalar_tensor.default(Scalar s, ScalarType? dtype=None) -> 1
new_ones.default(Tensor self, int[] size, ScalarType? dtype=None) -> 1
new_zeros.default(Tensor self, int[] size, ScalarType? dtype=None) -> 1
new_full.default(Tensor self, int[] size, Scalar fill_value, ScalarType? dtype=None) -> 1
zeros_like.default(Tensor self, ScalarType? dtype=None) -> 1
ones_like.default(Tensor self, ScalarType? dtype=None) -> 1
full_like.default(Tensor self, Scalar fill_value, ScalarType? dtype=None) -> 1
rand.default(int[] size, ScalarType? dtype=None) -> 1 random
randn.default(int[] size, ScalarType? dtype=None) -> 1 random
rand_like.default(Tensor self, ScalarType? dtype=None) -> 1 random
randn_like.default(Tensor self, ScalarType? dtype=None) -> 1 random
bernoulli.p(Tensor self, float p) -> 1 random
bernoulli.default(Tensor self) -> 1 random since 4
exponential.default(Tensor self, float lambd=1) -> 1 random since 4
"""

GROUPS = {
    "elementwise": ELEMENTWISE,
    "reduction": REDUCTION,
    "normalisation": NORMALISATION,
    "pooling": POOLING,
    "resampling": RESAMPLING,
    "product": PRODUCT,
    "convolution": CONVOLUTION,
    "attention": ATTENTION,
    "view": VIEW,
    "movement": MOVEMENT,
    "creation": CREATION,
}
