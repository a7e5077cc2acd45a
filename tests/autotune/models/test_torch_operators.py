"""Operators of torch mean in the graph what they mean in torch, on small odd shapes."""

from __future__ import annotations

from typing import Any

import pytest
from torch_cases import F, Family, Many, bundled, compared, ops, torch

from autotune.models.operators import aten

INT8 = (torch.arange(40).reshape(5, 8) % 11 - 5).to(torch.int8)
# Zeros of both signs, infinities and NaN.
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan])


def rand(*shape: int) -> Any:
    return torch.randn(shape)


def ints(*shape: int, low: int = -5, high: int = 6, dtype: Any = None) -> Any:
    return torch.randint(low, high, shape, dtype=dtype or torch.int64)


def floats_of_one() -> Family:
    return [rand(3, 5)], [
        torch.exp,
        torch.erf,
        torch.sigmoid,
        torch.tanh,
        torch.sin,
        torch.cos,
        torch.tan,
        torch.expm1,
        torch.sinh,
        torch.cosh,
        torch.asinh,
        torch.reciprocal,
        torch.square,
        torch.exp2,
        torch.floor,
        torch.ceil,
        torch.round,
        torch.trunc,
        torch.abs,
        torch.neg,
        torch.sign,
        torch.relu,
        lambda x: torch.log(x.abs() + 0.5),
        lambda x: torch.log2(x.abs() + 0.5),
        lambda x: torch.log10(x.abs() + 0.5),
        lambda x: torch.log1p(x.abs()),
        lambda x: torch.sqrt(x.abs()),
        lambda x: torch.rsqrt(x.abs() + 0.1),
        lambda x: torch.acosh(x.abs() + 1),
        lambda x: torch.atanh(x / 9),
        torch.atan,
        lambda x: torch.atan(x * 1e3),
        lambda x: torch.asin(x.tanh()),
        lambda x: torch.acos(x.tanh()),
        lambda x: torch.acos(x.sign()),
        lambda x: torch.asin(x * 0 + 1),
        lambda x: torch.atan(x / 0).double(),
        torch.signbit,
        lambda x: torch.signbit(x * 0),
        torch.frac,
        torch.sinc,
        F.silu,
        F.mish,
        F.hardswish,
        F.hardsigmoid,
        F.relu6,
        F.logsigmoid,
        F.selu,
        F.elu,
        F.celu,
        F.gelu,
        F.leaky_relu,
        F.softplus,
        F.hardtanh,
        F.softshrink,
        F.hardshrink,
        F.softsign,
        F.tanhshrink,
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.threshold(x, 0.1, 20.0),
        lambda x: F.softplus(x, 3, 2),
        lambda x: F.leaky_relu(x, 0.3),
        lambda x: F.dropout(x, 0.5, False),
        lambda x: x.clamp(-0.5, 0.7),
        lambda x: x.clamp(min=0.1),
        lambda x: x.clamp(max=0.1),
        lambda x: torch.isnan(x / 0 * 0),
        lambda x: torch.isinf(x / 0),
        lambda x: torch.isfinite(x / 0),
        lambda x: x.to(torch.int32),
        lambda x: x.to(torch.bool),
        lambda x: x.half().float(),
        lambda x: x.bfloat16() + 1,
        lambda x: x.double() * 1.5,
        lambda x: F.glu(x[:, :4]),
        lambda x: F.prelu(x, torch.tensor([0.25])),
        lambda x: x.nan_to_num(),
        lambda x: x.logit(0.3),
    ]


def two_floats() -> Family:
    return [rand(3, 5), rand(5), rand(2, 1, 1).abs() + 0.5], [
        lambda a, b, c: a + b,
        lambda a, b, c: torch.add(a, b, alpha=2.5),
        lambda a, b, c: a - 2,
        lambda a, b, c: torch.sub(a, c, alpha=0.5),
        lambda a, b, c: 3 - a,
        lambda a, b, c: a * c,
        lambda a, b, c: a / c,
        lambda a, b, c: 1 / c,
        lambda a, b, c: torch.div(a, c, rounding_mode="floor"),
        lambda a, b, c: torch.div(a, c, rounding_mode="trunc"),
        lambda a, b, c: a // 0.3,
        lambda a, b, c: torch.remainder(a, c),
        lambda a, b, c: torch.fmod(a, c),
        lambda a, b, c: torch.remainder(a, -c),
        lambda a, b, c: torch.remainder(a, torch.inf * b.sign()),
        lambda a, b, c: torch.fmod(a, torch.inf),
        lambda a, b, c: torch.fmod(torch.floor(a * 1e5), 3.0),
        lambda a, b, c: torch.atan2(a, b),
        lambda a, b, c: torch.atan2(EDGES[:, None], EDGES) + a[0, 0] * 0,
        lambda a, b, c: torch.atan2(EDGES[:, None] + a[0, 0] * 0, EDGES),
        lambda a, b, c: torch.hypot(EDGES[:, None] + a[0, 0] * 0, EDGES),
        lambda a, b, c: torch.hypot(a * 1e30, b * 1e30),
        lambda a, b, c: torch.copysign(a, b * 0),
        lambda a, b, c: torch.copysign(a.double(), -1),
        lambda a, b, c: torch.logaddexp(a, b),
        lambda a, b, c: torch.heaviside(a, b),
        lambda a, b, c: torch.ldexp(a, torch.tensor([3, -2, 0, 1, 4])),
        lambda a, b, c: c**a,
        lambda a, b, c: a**2,
        lambda a, b, c: a**3,
        lambda a, b, c: c**0.5,
        lambda a, b, c: c**-0.5,
        lambda a, b, c: 2**a,
        lambda a, b, c: torch.maximum(a, b),
        lambda a, b, c: torch.minimum(a, c),
        lambda a, b, c: a > b,
        lambda a, b, c: a <= 0.25,
        lambda a, b, c: torch.eq(a, a),
        lambda a, b, c: a != b,
        lambda a, b, c: torch.where(a > b, a, c),
        lambda a, b, c: torch.where(a > 0, 1.0, 0.0),
        lambda a, b, c: a.masked_fill(b > 0, -torch.inf),
        lambda a, b, c: (a > 0) & (b > 0) | (c > 0.7),
        lambda a, b, c: (a > 0) ^ (b > 0),
        lambda a, b, c: torch.logical_and(a, b > 0),
        lambda a, b, c: torch.logical_not(a > 0),
        lambda a, b, c: ~(a > 0),
        lambda a, b, c: torch.logical_xor(a > 0, b > 0),
        lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
        lambda a, b, c: torch.addcdiv(a, b, c),
        lambda a, b, c: torch.lerp(a, b, 0.3),
        lambda a, b, c: a + torch.full((3, 5), 2.0),
        lambda a, b, c: torch.ones_like(a) * b,
        lambda a, b, c: a + torch.arange(5),
        lambda a, b, c: (a > 0) + 1.5,
        lambda a, b, c: a.clamp(b, b + 1),
        lambda a, b, c: a.double() + b,
        lambda a, b, c: a.half() + b.half(),
    ]


def integers() -> Family:
    return [ints(3, 4), ints(4, low=1, dtype=torch.int32), ints(3, 4) > 0], [
        lambda a, b, m: a + b,
        lambda a, b, m: a * 2,
        lambda a, b, m: a * 0.5,
        lambda a, b, m: a / b,
        lambda a, b, m: a // b,
        lambda a, b, m: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b, m: a % b,
        lambda a, b, m: torch.fmod(a, b),
        lambda a, b, m: a**2,
        lambda a, b, m: a & 6,
        lambda a, b, m: a | b,
        lambda a, b, m: a ^ b,
        lambda a, b, m: ~a,
        lambda a, b, m: a << 2,
        lambda a, b, m: a >> 1,
        lambda a, b, m: a < b,
        lambda a, b, m: a == 2,
        lambda a, b, m: a > 0.5,
        lambda a, b, m: -a,
        lambda a, b, m: a.abs(),
        lambda a, b, m: a.sign(),
        lambda a, b, m: a.float().exp(),
        lambda a, b, m: torch.exp(a),
        lambda a, b, m: a.floor(),
        lambda a, b, m: m * 3,
        lambda a, b, m: m == (a > 1),
        lambda a, b, m: torch.where(m, a, 0),
        lambda a, b, m: a.masked_fill(m, 9),
        lambda a, b, m: m.int() - 1,
        lambda a, b, m: a.clamp(-1, 2),
        lambda a, b, m: b.to(torch.int8) * b.to(torch.int8),
        lambda a, b, m: (1 - m.float()) * -1e9,
        lambda a, b, m: a.to(torch.uint8),
        lambda a, b, m: m.sum(),
        lambda a, b, m: a.sum(0),
        lambda a, b, m: b.sum(),
        lambda a, b, m: a.max(),
        lambda a, b, m: b.prod(),
        lambda a, b, m: a.cumsum(1),
        lambda a, b, m: m.any(1),
        lambda a, b, m: m.all(),
        lambda a, b, m: F.one_hot(b.long(), 7),
    ]


def movement() -> Family:
    return [rand(3, 4, 5), rand(1, 4, 5)], [
        lambda x, y: x.view(12, 5),
        lambda x, y: x.reshape(5, -1),
        lambda x, y: x.flatten(1),
        lambda x, y: x.permute(2, 0, 1),
        lambda x, y: x.transpose(0, -1).reshape(-1),
        lambda x, y: x.unsqueeze(1),
        lambda x, y: y.squeeze(),
        lambda x, y: y.squeeze(0),
        lambda x, y: y.expand(3, 4, 5),
        lambda x, y: x[1:, ::2, -3:],
        lambda x, y: x[:, 1],
        lambda x, y: x[..., -1],
        lambda x, y: torch.cat([x, y], 0),
        lambda x, y: torch.stack([x[0], y[0]], 1),
        lambda x, y: x.split([1, 3], 1),
        lambda x, y: x.split(3, -1)[1],
        lambda x, y: x.chunk(2, -1),
        lambda x, y: x.unbind(1)[2],
        lambda x, y: torch.tensor_split(x, 3, 2),
        lambda x, y: x.flip(0, 2),
        lambda x, y: y.repeat(2, 1, 3),
        lambda x, y: y.tile(2, 2),
        lambda x, y: torch.roll(x, (1, -2), (0, 2)),
        lambda x, y: torch.roll(x, 7),
        lambda x, y: F.pad(x, (1, 2, 0, 3)),
        lambda x, y: F.pad(x, (-1, 1), value=2.5),
        lambda x, y: F.pad(x, (2, 1), mode="reflect"),
        lambda x, y: F.pad(x, (2, 1), mode="replicate"),
        lambda x, y: F.pad(x, (2, 1), mode="circular"),
        lambda x, y: x.tril(),
        lambda x, y: x.triu(1),
        lambda x, y: x.diagonal(1, 1, 2),
        lambda x, y: torch.meshgrid(x[0, 0], y[0, :, 0], indexing="ij"),
        lambda x, y: torch.slice_scatter(x, y, 0, 1, 2),
        lambda x, y: torch.slice_scatter(x, y[:, :2].expand(3, 2, 5), 1, 0, 4, 2),
        lambda x, y: torch.select_scatter(x, y[0], 0, 2),
        lambda x, y: torch.diagonal_scatter(x, y[0, :3].T, 1, 0, 1),
        lambda x, y: torch.diagonal_scatter(x, y[0, :3, :3], -1, 1, 2),
        lambda x, y: x.repeat_interleave(2, 1),
        lambda x, y: x.T if x.ndim == 2 else x[0].T,
        lambda x, y: x.contiguous().clone(),
        lambda x, y: torch.zeros(2, 3) + x[0, 0, 0],
        lambda x, y: x.unfold(2, 3, 2),
        lambda x, y: torch.flipud(x),
        lambda x, y: torch.movedim(x, 0, 2),
        lambda x, y: x.unflatten(2, (5, 1)),
        lambda x, y: torch.rot90(x, 1, (1, 2)),
        lambda x, y: x.index_select(1, torch.tensor([0, 2])),
        lambda x, y: x[:, torch.tensor([3, 2, 1])],
    ]


def in_place() -> Family:
    def assigned(x: Any) -> Any:
        y = x.clone()
        y[:, 1:3] = 2.0
        y[0] += x[1]
        y.relu_()
        return y

    return [rand(3, 5)], [assigned, lambda x: x.clone().mul_(2).add_(1), lambda x: x.clone().fill_(3.0) + x]


def images() -> Family:
    return [rand(2, 4, 7, 9)], [
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_unshuffle(x[:, :, :6, :6], 3),
        lambda x: F.pixel_shuffle(x[0], 2),
        lambda x: F.pixel_unshuffle(x[None, :, :, :6, :8], 2),
        lambda x: F.channel_shuffle(x, 2),
        lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, (2, 3), dilation=2, ceil_mode=True),
        lambda x: F.max_pool1d(x[0], 3, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool1d(x[0], 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, (7, 3)),
        lambda x: F.adaptive_max_pool2d(x, (1, 3)),
        lambda x: F.adaptive_avg_pool1d(x[0], 3),
        lambda x: F.max_pool3d(x, 2),
        lambda x: F.lp_pool2d(x.abs(), 2, 2),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.interpolate(x, size=(5, 20)),
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        lambda x: F.interpolate(x, size=(13, 4), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        lambda x: F.interpolate(x[0], scale_factor=3, mode="linear"),
    ]


def convolutions() -> Family:
    w, b = rand(6, 4, 3, 3), rand(6)
    return [rand(2, 4, 8, 7)], [
        lambda x: F.conv2d(x, w, b),
        lambda x: F.conv2d(x, w, None, 2, 1),
        lambda x: F.conv2d(x, w, b, (1, 2), (0, 2), (2, 1)),
        lambda x: F.conv2d(x, w[:, :2], b, groups=2),
        lambda x: F.conv2d(x, w[:4, :1], groups=4, padding="same"),
        lambda x: F.conv2d(x[0], w, b),
        lambda x: F.conv1d(x[:, :, 0], w[..., 0], b, 2),
        lambda x: F.conv3d(x[:, None], w[:, None, :2]),
        lambda x: F.conv_transpose2d(x, w.transpose(0, 1), b, 2, 1, 1),
        lambda x: F.conv_transpose1d(x[:, :, 0], w[:4, :, 0], stride=3),
        lambda x: F.conv_transpose2d(x, w[:4, :2], None, 2, groups=2, dilation=2),
    ]


def products() -> Family:
    w = rand(6, 5)
    return [rand(2, 3, 5), rand(2, 5, 4), rand(5)], [
        lambda x, y, v: x @ y,
        lambda x, y, v: x @ y[0],
        lambda x, y, v: x[0] @ y,
        lambda x, y, v: x @ v,
        lambda x, y, v: v @ v,
        lambda x, y, v: torch.bmm(x, y),
        lambda x, y, v: torch.mm(x[0], y[1]),
        lambda x, y, v: torch.mv(x[0], v),
        lambda x, y, v: torch.addmm(v[:4], x[0], y[0], beta=0.5, alpha=2),
        lambda x, y, v: torch.baddbmm(x[..., :4], x, y),
        lambda x, y, v: torch.addmv(v[:3], x[0], v, beta=0.5, alpha=2),
        lambda x, y, v: torch._int_mm((x.reshape(6, 5) * 9).repeat(3, 1).to(torch.int8), INT8),
        lambda x, y, v: F.linear(x, w),
        lambda x, y, v: F.linear(x[0], w, v[:1].expand(6)),
        lambda x, y, v: F.linear(v, w),
        lambda x, y, v: torch.einsum("bij,bjk->ik", x, y),
        lambda x, y, v: torch.einsum("...i,i", x, v),
        lambda x, y, v: torch.outer(v, v),
        lambda x, y, v: torch.tensordot(x, y, ([2], [1])),
        lambda x, y, v: torch.inner(x, v),
        lambda x, y, v: F.cosine_similarity(x, x + 1, -1),
        lambda x, y, v: x.double() @ y.double(),
    ]


def attentions() -> Family:
    mask = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
    return [rand(2, 4, 3, 6), rand(2, 4, 4, 6), rand(2, 2, 4, 6)], [
        lambda q, k, g: F.scaled_dot_product_attention(q, k, k),
        lambda q, k, g: F.scaled_dot_product_attention(q, k, k[..., :5], is_causal=True),
        lambda q, k, g: F.scaled_dot_product_attention(q, k, k, mask),
        lambda q, k, g: F.scaled_dot_product_attention(
            q, k, k, torch.where(mask, 0.25, -torch.inf), scale=0.3
        ),
        lambda q, k, g: F.scaled_dot_product_attention(q, g, g, enable_gqa=True),
        lambda q, k, g: F.scaled_dot_product_attention(q[0, 0], k[0, 0], k[0, 0]),
    ]


def normalizations() -> Family:
    w, b, mean, var = rand(4), rand(4), rand(4), rand(4).abs() + 0.5
    return [rand(3, 4, 6), rand(3, 5, 4)], [
        lambda x, y: F.softmax(x, 1),
        lambda x, y: F.softmax(x, -1, dtype=torch.float64),
        lambda x, y: F.log_softmax(x, 2),
        lambda x, y: F.layer_norm(y, (4,), w, b),
        lambda x, y: F.layer_norm(x, (4, 6), eps=0.1),
        lambda x, y: F.layer_norm(y, (4,), w),
        lambda x, y: F.rms_norm(y, (4,), w),
        lambda x, y: F.rms_norm(y, (5, 4), eps=0.1),
        lambda x, y: F.group_norm(x, 2, w, b),
        lambda x, y: F.group_norm(x, 4),
        lambda x, y: F.instance_norm(x),
        lambda x, y: F.batch_norm(x, mean, var, w, b),
        lambda x, y: F.batch_norm(x, mean, var),
        lambda x, y: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, y: F.normalize(x, dim=1),
        lambda x, y: F.normalize(x, p=1.0, dim=1),
        lambda x, y: torch.linalg.vector_norm(x, 3, dim=(0, 2)),
        lambda x, y: x.norm(),
        lambda x, y: torch.linalg.vector_norm(x, torch.inf, 1, True),
        lambda x, y: torch.linalg.vector_norm(x, -torch.inf, 1),
        lambda x, y: torch.linalg.vector_norm(x.round(), 0),
        lambda x, y: torch.linalg.vector_norm(x, -1.5, 2),
        lambda x, y: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -7, 8),
        lambda x, y: torch.fake_quantize_per_channel_affine(
            x, torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, -1, 2], dtype=torch.int32), 1, -8, 7
        ),
        lambda x, y: ops.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -7, 8)[1],
        lambda x, y: F.local_response_norm(x, 3),
        lambda x, y: ops.native_layer_norm(y, [4], w, b, 1e-5),
    ]


def reductions() -> Family:
    return [rand(3, 4, 5)], [
        lambda x: x.sum(),
        lambda x: x.sum(1),
        lambda x: x.sum((0, -1), keepdim=True),
        lambda x: x.mean(),
        lambda x: x.mean((1, 2)),
        lambda x: x.amax(1),
        lambda x: x.amin((0, 2), keepdim=True),
        lambda x: x.max(),
        lambda x: x.min(),
        lambda x: x.prod(1),
        lambda x: x.max(1),
        lambda x: x.min(-1, keepdim=True),
        lambda x: x.max(2).values,
        lambda x: x.argmax(1),
        lambda x: x.argmin(),
        lambda x: x.argmax(0, keepdim=True),
        lambda x: x.var(1),
        lambda x: x.var(),
        lambda x: x.std((0, 2), correction=0),
        lambda x: torch.var_mean(x, 1, keepdim=True),
        lambda x: torch.std_mean(x, (1, 2)),
        lambda x: x.logsumexp(1),
        lambda x: x.cumsum(1),
        lambda x: x.cumprod(-1),
        lambda x: (x > 0).any(),
        lambda x: (x > 0).all(1, keepdim=True),
        lambda x: x.sum(dtype=torch.float64),
        lambda x: x.mean(1, dtype=torch.float64),
        lambda x: (x > 0).float().mean(),
        lambda x: F.mse_loss(x, x + 1),
        lambda x: x.count_nonzero(),
    ]


# An export takes a second at least, so families share one.
BUNDLES = {
    "elements": (floats_of_one, two_floats, integers),
    "movement": (movement, in_place, images),
    "sums": (convolutions, products, attentions, normalizations, reductions),
}


@pytest.mark.slow
@pytest.mark.parametrize("bundle", BUNDLES)
def test_operators_mean_what_they_mean_in_torch(bundle: str) -> None:
    torch.manual_seed(3)
    functions, inputs = bundled(BUNDLES[bundle])
    compared(Many(functions), *inputs, rtol=2e-5)


def gathers() -> Family:
    table_ = rand(7, 4)
    ids = ints(2, 3, low=0, high=3)
    return [rand(3, 4, 5), ids], [
        lambda x, i: F.embedding(i, table_),
        lambda x, i: x[i],
        lambda x, i: x[:, i[0]],
        lambda x, i: x.index_select(2, i[1]),
        lambda x, i: x[i[0], :, i[1]],
        lambda x, i: x[None, i[0], :, i[1]],
        lambda x, i: x[:, i[0], i[1]],
        lambda x, i: x[i, i[0]],
        lambda x, i: x.gather(1, i[:, :, None]),
    ]


@pytest.mark.slow
def test_indices_are_data() -> None:
    torch.manual_seed(3)
    inputs, functions = gathers()
    compared(Many(functions), *inputs)


def test_every_row_names_an_operator_of_torch() -> None:
    missing = []
    for name in aten:
        library, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops.aten, packet, None), "overloads", list)()
        if library == "aten" and overload not in found:
            missing.append(name)
    assert not missing
