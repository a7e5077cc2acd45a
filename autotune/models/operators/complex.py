"""Complex numbers and Fourier transforms.

A complex tensor is stated as one of real numbers with a last axis of two, as `torch.view_as_real` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.models.operators import fourier as ft
from autotune.models.operators.axes import positive, reshape
from autotune.models.operators.base import stage
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.movement import concat, expand, transpose
from autotune.models.operators.node import TorchNode
from autotune.models.operators.table import Cast, aten, complex_op
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr

# {a dtype of complex numbers: that of their parts}.
PARTS = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
Pair = tuple[Expr, Expr]


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor; ``parts`` has a last axis of two."""

    parts: te.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts.shape[:-1]


def is_complex(x: Any) -> bool:
    """Whether an argument is a complex tensor or number."""
    return isinstance(x, (Complex, complex)) or (isinstance(x, KnownTensor) and x.dtype.startswith("complex"))


def parts(node: TorchNode, x: Any) -> te.Tensor:
    """An argument as parts in the node's dtype, which is that of the parts where its output is complex.
    Numbers and real tensors have no imaginary part."""
    import torch

    if isinstance(x, KnownTensor) and is_complex(x):
        real = torch.view_as_real(x.value.resolve_conj())
        t = node.constant(KnownTensor(real.contiguous(), x.weight))
    elif isinstance(x, Complex):
        t = x.parts
    elif isinstance(x, (bool, int, float, complex)):
        value = complex(x)
        literal = [te.const(v, computed(node.dtype)) for v in (value.real, value.imag)]
        return stage((2,), lambda c: te.cast(te.select(te.equal(c, 0), *literal), node.dtype), "number")
    else:
        plain = node.cast(x)

        def value_of(*at: Expr) -> Expr:
            zero = te.const(0, node.dtype)
            return te.select(te.equal(at[-1], 0), plain[at[:-1]], zero)

        return stage((*plain.shape, 2), value_of, "complex")
    return node.cast(t)


def _mapped(node: TorchNode, fn: Callable[..., Pair], *xs: Any) -> Complex:
    given = [parts(node, x) for x in xs]
    return Complex(ft.complex_map(node.shape, fn, node.dtype, *given, name=node.name.strip("_")))


# --- making and taking apart ------------------------------------------------------------------


complex_op("view_as_real.default")(parts)


@complex_op("view_as_complex.default")
def _of_real(x: Cast) -> Complex:
    return Complex(x)


@complex_op("complex.default")
def _made(node: TorchNode, a: Value, b: Value) -> Complex:
    return _mapped(node, lambda x, _, y, __: (x, y), a, b)


@complex_op("polar.default")
def _polar(node: TorchNode, size: Value, angle: Value) -> Complex:
    return _mapped(node, lambda r, _, a, __: (r * te.cos(a), r * te.sin(a)), size, angle)


@complex_op("abs.default", "angle.default")
def _of_parts(node: TorchNode, x: Any) -> te.Tensor:
    t, wide = parts(node, x), computed(node.dtype)
    fn = te.hypot if node.name == "abs" else lambda a, b: te.atan2(b, a)

    def value(*at: Expr) -> Expr:
        return te.cast(fn(te.cast(t[(*at, 0)], wide), te.cast(t[(*at, 1)], wide)), node.dtype)

    return stage(node.shape, value, node.name)


# --- arithmetic -------------------------------------------------------------------------------


@complex_op("mul.Tensor", "mul.Scalar")
def _mul(node: TorchNode, a: Any, b: Any) -> Complex:
    return _mapped(node, lambda x, y, u, v: (x * u - y * v, x * v + y * u), a, b)


@complex_op("div.Tensor", "div.Scalar")
def _div(node: TorchNode, a: Any, b: Any) -> Complex:
    if not is_complex(b):
        return _mapped(node, lambda x, y, u, v: (x / u, y / u), a, b)

    def value(x: Expr, y: Expr, u: Expr, v: Expr) -> Pair:
        size = u * u + v * v
        return (x * u + y * v) / size, (y * u - x * v) / size

    return _mapped(node, value, a, b)


@complex_op("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _sum(node: TorchNode, a: Any, b: Any, *, alpha: float = 1) -> Complex:
    by = -alpha if node.name == "sub" else alpha

    def value(x: Expr, y: Expr, u: Expr, v: Expr) -> Pair:
        return (x + u, y + v) if by == 1 else (x + u * float(by), y + v * float(by))

    return _mapped(node, value, a, b)


_OF_ONE: dict[str, Callable[[Expr, Expr], Pair]] = {
    "neg": lambda a, b: (-a, -b), "conj": lambda a, b: (a, -b),
    "exp": lambda a, b: (te.exp(a) * te.cos(b), te.exp(a) * te.sin(b)),
}  # fmt: skip


@complex_op(
    "neg.default", "exp.default", "_conj.default", "conj.default", "_conj_physical.default",
    "conj_physical.default",
)  # fmt: skip
def _of_one(node: TorchNode, x: Any) -> Complex:
    return _mapped(node, _OF_ONE[node.name.strip("_").removesuffix("_physical")], x)


@complex_op(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "clone.default", "contiguous.default",
    "resolve_conj.default", "resolve_neg.default", "alias.default", "detach.default",
)  # fmt: skip
def _same(node: TorchNode, x: Any, *how: Any, **more: Any) -> Complex | te.Tensor:
    """Real numbers get an imaginary part of 0."""
    return Complex(parts(node, x))


# --- movement ---------------------------------------------------------------------------------


@complex_op(
    "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default",
    "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int",
)  # fmt: skip
def _reshaped(node: TorchNode, x: Any, *how: Any) -> Complex:
    return Complex(reshape(parts(node, x), (*node.shape, 2)))


@complex_op("expand.default")
def _expand(node: TorchNode, x: Any, *how: Any, **more: Any) -> Complex:
    t = parts(node, x)
    more_axes = len(node.shape) + 1 - len(t.shape)
    return Complex(expand(reshape(t, (*[1] * more_axes, *t.shape)), (*node.shape, 2)))


@complex_op("permute.default")
def _permute(node: TorchNode, x: Any, dims: Sequence[int]) -> Complex:
    rank = len(node.shape)
    return Complex(transpose(parts(node, x), [*(positive(d, rank) for d in dims), rank]))


@complex_op("transpose.int", "slice.Tensor", "select.int")
def _along(node: TorchNode, x: Any, *how: Any) -> Complex:
    """As of real numbers, with axes counted from the front."""
    t = parts(node, x)
    rank = len(t.shape) - 1
    axes = 2 if node.name == "transpose" else 1
    dims = [positive(int(d), rank) for d in how[:axes]] or [0] * (node.name == "slice")
    wider = replace(node, shape=(*node.shape, 2))
    row = aten.row(node.op)
    assert row is not None
    return Complex(row.outputs(wider, [t, *dims, *how[axes:]], {}))


@complex_op("cat.default", "stack.default")
def _joined(node: TorchNode, xs: Sequence[Any], dim: int = 0) -> Complex:
    axis, ts = positive(dim, len(node.shape)), [parts(node, x) for x in xs]
    if node.name == "stack":
        shape = [1 if d == axis else n for d, n in enumerate(node.shape)]
        ts = [reshape(t, (*shape, 2)) for t in ts]
    return Complex(concat(ts, axis))


# --- Fourier transforms -----------------------------------------------------------------------


def _scale(norm: int, n: int) -> float:
    """torch counts: not at all, by the root of all elements, by all elements."""
    return (1.0, n**-0.5, 1.0 / n)[norm]


def _axes(dims: Sequence[int], rank: int, lengths: Sequence[int]) -> list[int]:
    for n in lengths:
        ft.afford(n)
    return [positive(d, rank) for d in dims]


@complex_op("_fft_r2c.default")
def _real_to_complex(node: TorchNode, x: Cast, dims: Sequence[int], norm: int, onesided: bool) -> Complex:
    """The last of the axes first, and half of it where ``onesided``."""
    axes = _axes(dims, len(x.shape), [x.shape[d] for d in dims])
    out = reshape(x, (*x.shape, 1))
    for i, d in enumerate(reversed(axes)):
        n = x.shape[d]
        count = n // 2 + 1 if onesided and i == 0 else n
        out = ft.dft(out, d, False, count, _scale(norm, n), node.table)
    return Complex(out)


@complex_op("_fft_c2c.default")
def _complex_to_complex(node: TorchNode, x: Any, dims: Sequence[int], norm: int, forward: bool) -> Complex:
    out = parts(node, x)
    for d in _axes(dims, len(node.shape), [out.shape[d] for d in dims]):
        n = out.shape[d]
        out = ft.dft(out, d, not forward, n, _scale(norm, n), node.table)
    return Complex(out)


@complex_op("_fft_c2r.default")
def _complex_to_real(node: TorchNode, x: Any, dims: Sequence[int], norm: int, last: int) -> te.Tensor:
    out = parts(node, x)
    rank = len(node.shape)
    axes = _axes(dims, rank, [*(node.shape[d] for d in dims), last])
    for d in axes[:-1]:
        n = out.shape[d]
        out = ft.dft(out, d, True, n, _scale(norm, n), node.table)
    made = ft.real_inverse(out, axes[-1], last, _scale(norm, last), node.table)
    return reshape(made, node.shape)
