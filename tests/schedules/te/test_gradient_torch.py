"""Gradients against torch's, in float64."""

from __future__ import annotations

import math

import needs
import numpy as np
import pytest
from gradient_cases import attention, cross_entropy, dense_gelu, evaluated, operator

from schedules import te

torch = needs.imported("torch")
F = torch.nn.functional
D = "float64"


def nchw(x):
    return x.permute(0, 3, 1, 2)


def conv(x, w, stride, padding):
    return F.conv2d(nchw(x), w.permute(3, 2, 0, 1), stride=stride, padding=padding).permute(0, 2, 3, 1)


def pool(of, **how):
    return lambda x: of(nchw(x), **how).permute(0, 2, 3, 1)


def conv_case(k: int, stride: int, padding: int):
    params = {
        "b": 2,
        "h": 7,
        "w": 6,
        "ci": 3,
        "co": 4,
        "kh": k,
        "kw": k,
        "stride": stride,
        "padding": padding,
    }
    return (lambda: operator("conv2d", D, **params)), lambda x, w: conv(x, w, stride, padding)


POOL = {"b": 2, "h": 7, "w": 6, "c": 3, "k": 3, "stride": 2, "padding": 1}
# {kind: (its tensors, the same in torch)}.
KINDS = {
    "matmul": (lambda: operator("matmul", D, m=5, n=4, k=7), torch.matmul),
    "conv 3x3": conv_case(3, 1, 1),
    "conv 3x3 stride 2": conv_case(3, 2, 1),
    "conv 1x1 stride 2": conv_case(1, 2, 0),
    "softmax": (lambda: operator("softmax", D, m=4, n=9), lambda x: torch.softmax(x, 1)),
    "gelu of a product": (lambda: dense_gelu(D), lambda x, w, b: F.gelu(x @ w + b)),
    "layer_norm": (
        lambda: operator("layer_norm", D, m=4, n=9),
        lambda x, g, b: F.layer_norm(x, (9,), g, b, 1e-5),
    ),
    "attention": (
        lambda: [t for t in attention(D) if t.name != "p"],
        lambda q, k, v: torch.softmax(q @ k.transpose(1, 2) * 3**-0.5, -1) @ v,
    ),
    "max pool": (
        lambda: operator("max_pool2d", D, **POOL),
        pool(F.max_pool2d, kernel_size=3, stride=2, padding=1),
    ),
    "average pool": (
        lambda: operator("avg_pool2d", D, **POOL),
        pool(F.avg_pool2d, kernel_size=3, stride=2, padding=1),
    ),
    "cross entropy": (lambda: cross_entropy(D), lambda x, t: F.cross_entropy(x, t)[None]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind) -> None:
    build, of = KINDS[kind]
    *ins, y = build()
    generator = torch.Generator().manual_seed(2)
    arrays = [
        torch.randn(t.shape, generator=generator, dtype=torch.float64, requires_grad=True)
        if t.dtype == D
        else torch.randint(0, 7, t.shape, generator=generator)
        for t in ins
    ]
    out = of(*arrays)
    g = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    wrt = [(t, a) for t, a in zip(ins, arrays, strict=True) if a.requires_grad]
    want = torch.autograd.grad(out, [a for _, a in wrt], g)
    dy = te.placeholder(y.shape, D, "dy")
    found = te.gradient(y, [t for t, _ in wrt], dy)
    values = {t: a.detach().numpy() for t, a in zip([*ins, dy], [*arrays, g], strict=True)}
    np.testing.assert_allclose(evaluated([y], values)[0], out.detach().numpy(), rtol=1e-10, atol=1e-12)
    for got, w in zip(evaluated(found, values), want, strict=True):
        np.testing.assert_allclose(got, w.numpy(), rtol=1e-9, atol=1e-10)


def test_ties_are_torchs() -> None:
    a = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([-1.0, 1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    x, z = (te.placeholder((4,), D, n) for n in "xz")
    for of, theirs in (
        (lambda i: te.maximum(x[i], z[i]), torch.maximum(a, b)),
        (lambda i: te.minimum(x[i], z[i]), torch.minimum(a, b)),
        (
            lambda i: te.maximum(x[i], 0.0) + te.minimum(te.maximum(z[i], 0.0), 1.0),
            F.relu(a) + F.hardtanh(b, 0, 1),
        ),
        (lambda i: te.abs(x[i]) + te.sqrt(te.abs(z[i])), a.abs() + b.abs().sqrt()),
        (lambda i: te.pow(te.abs(x[i]), te.abs(z[i])), a.abs() ** b.abs()),
    ):
        y = te.compute((4,), of, "y")
        want = torch.autograd.grad(theirs.sum(), (a, b), allow_unused=True, materialize_grads=True)
        values = {x: a.detach().numpy(), z: b.detach().numpy()}
        for got, w in zip(evaluated(te.gradient(y, [x, z]), values), want, strict=True):
            np.testing.assert_array_equal(got, w.numpy())
    r = te.reduce_axis(4, "r")
    top = te.compute((1,), lambda o: te.max(z[r], axis=r), "top")
    (want,) = torch.autograd.grad(b.amax(), b)
    np.testing.assert_array_equal(evaluated(te.gradient(top, z), {z: b.detach().numpy()})[0], want.numpy())
    product = te.compute((1,), lambda o: te.prod(x[r], axis=r), "product")
    (want,) = torch.autograd.grad(a.prod(), a)
    np.testing.assert_array_equal(
        evaluated(te.gradient(product, x), {x: a.detach().numpy()})[0], want.numpy()
    )
    assert math.isclose(float(want.sum()), -2.0)
