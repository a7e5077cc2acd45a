"""Derived gradients as backward kernels of torch's operators."""

from __future__ import annotations

import needs
import pytest

import autotune as at

torch = needs.imported("torch")
te = at.te
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:.torch.jit.script")


def built(tensors) -> at.Kernel:
    return at.build(at.Schedule(tensors), threads=1)


def layer(m: int, n: int, k: int, relu: bool, name: str):
    """An operator of ``x @ w + b``, and the larger of that and 0 if ``relu``, with derived gradients."""
    x, w, b = (te.placeholder(s, "float32", t) for s, t in (((m, k), "x"), ((k, n), "w"), ((n,), "b")))
    r = te.reduce_axis(k, "r")
    z = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "z")

    def last(i, j):
        v = z[i, j] + b[j]
        return te.maximum(v, 0.0) if relu else v

    y = te.compute((m, n), last, "y")
    dy = te.placeholder((m, n), "float32", "dy")
    # The larger of a value and 0 tells by itself whether it was above 0.
    found = te.gradient(y, [x, w, b], dy, saved=[y] if relu else [])
    backward = [built([*te.inputs(g), g]) for g in found]
    return at.torch.op(built([x, w, b, y]), backward=backward, name=name)


@pytest.mark.slow
def test_fifty_steps_of_a_network_have_torchs_losses() -> None:
    """Stochastic gradient descent of two layers and the cross entropy of classes, written with kernels."""
    m, sizes = 16, (32, 24, 8)
    first, second = (layer(m, sizes[k + 1], sizes[k], k == 0, f"layer_{k}_of_a_network") for k in (0, 1))
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(50, m, sizes[0], generator=generator)
    targets = torch.randint(0, sizes[2], (50, m), generator=generator)
    start = [torch.randn(s, generator=generator) * 0.2 for s in ((32, 24), (24,), (24, 8), (8,))]

    def losses(one, two) -> list[float]:
        w1, b1, w2, b2 = (t.clone().requires_grad_() for t in start)
        step = torch.optim.SGD([w1, b1, w2, b2], lr=0.1)
        out = []
        for x, t in zip(data, targets, strict=True):
            loss = torch.nn.functional.cross_entropy(two(one(x, w1, b1), w2, b2), t)
            step.zero_grad()
            loss.backward()
            step.step()
            out.append(loss.item())
        return out

    want = losses(lambda x, w, b: torch.relu(x @ w + b), lambda x, w, b: x @ w + b)
    got = losses(first, second)
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-4
    assert len(set(got)) == 50 and got[0] != got[1]


def test_kernels_take_what_they_read_by_name() -> None:
    x, w = te.placeholder((4, 3), "float32", "x"), te.placeholder((3,), "float32", "w")
    e = te.compute((4, 3), lambda i, j: te.exp(x[i, j] * w[j]), "e")
    y = te.compute((4, 3), lambda i, j: e[i, j] * e[i, j] * w[j], "y")
    dy, de = (te.placeholder((4, 3), "float32", n) for n in ("dy", "de"))
    dx, dw = te.gradient([e, y], [x, w], [de, dy], saved=[e])
    assert "x" not in [t.name for t in te.inputs(dx)]
    op = at.torch.op(
        built([x, w, e, y]), backward=[built([*te.inputs(g), g]) for g in (dx, dw)], name="by_name"
    )
    X, W = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    loss = sum((t * t).sum() for t in op(X, W))
    found = torch.autograd.grad(loss, (X, W))
    E = torch.exp(X * W)
    want = torch.autograd.grad((E * E).sum() + ((E * E * W) ** 2).sum(), (X, W))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_names_that_are_not_known_are_told() -> None:
    x, other = te.placeholder((3,), "float32", "x"), te.placeholder((2,), "float32", "other")
    y = te.compute((3,), lambda i: x[i] * 2.0, "y")
    wrong = te.compute((3,), lambda i: other[i // 2], "dx")
    says = r"takes float32\[2\] and gives float32\[3\], but .* or some by their names \(dy, x, y\), and give"
    with pytest.raises(at.ArgumentError, match=says):
        at.torch.op(built([x, y]), backward=[built([other, wrong])])
