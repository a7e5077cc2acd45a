"""Complex numbers and Fourier transforms.

A complex tensor is stated as one of real numbers with a last axis of two, as `torch.view_as_real` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.models.lowering import fourier as ft
from autotune.models.lowering import functions as f
from autotune.models.lowering import movement as m
from autotune.models.lowering.base import positive, stage
from autotune.models.torch_ops.table import ROWS, KnownTensor, TorchNode, Value
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


# {overload: function(node, *arguments)}. The node's dtype is that of the parts where its output is complex.
COMPLEX_ROWS: dict[str, Callable[..., Any]] = {}


def _complex(*overloads: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(lower: Callable[..., Any]) -> Callable[..., Any]:
        for name in overloads:
            COMPLEX_ROWS[f"aten.{name}"] = lower
        return lower

    return enter


def is_complex(x: Any) -> bool:
    """Whether an argument is a complex tensor or number."""
    return isinstance(x, (Complex, complex)) or (isinstance(x, KnownTensor) and x.tensor.is_complex())


def parts(node: TorchNode, x: Any) -> te.Tensor:
    """An argument as parts in the dtype of the node's parts; numbers and real ones have no imaginary part."""
    import torch

    if isinstance(x, KnownTensor) and x.tensor.is_complex():
        real = torch.view_as_real(x.tensor.resolve_conj())
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


@_complex("view_as_real.default")
def _real(node: TorchNode, x: Any) -> te.Tensor:
    return parts(node, x)


@_complex("view_as_complex.default")
def _of_real(node: TorchNode, x: Value) -> Complex:
    return Complex(node.cast(x))


@_complex("complex.default")
def _made(node: TorchNode, a: Value, b: Value) -> Complex:
    return _mapped(node, lambda x, _, y, __: (x, y), a, b)


@_complex("polar.default")
def _polar(node: TorchNode, size: Value, angle: Value) -> Complex:
    return _mapped(node, lambda r, _, a, __: (r * te.cos(a), r * te.sin(a)), size, angle)


def _of_parts(node: TorchNode, fn: Callable[[Expr, Expr], Expr], x: Any) -> te.Tensor:
    t = parts(node, x)
    wide = computed(node.dtype)

    def value(*at: Expr) -> Expr:
        return te.cast(fn(te.cast(t[(*at, 0)], wide), te.cast(t[(*at, 1)], wide)), node.dtype)

    return stage(node.shape, value, node.name)


@_complex("abs.default")
def _abs(node: TorchNode, x: Any) -> te.Tensor:
    return _of_parts(node, f.hypot, x)


@_complex("angle.default")
def _angle(node: TorchNode, x: Any) -> te.Tensor:
    return _of_parts(node, lambda a, b: f.atan2(b, a), x)


# --- arithmetic -------------------------------------------------------------------------------


@_complex("mul.Tensor", "mul.Scalar")
def _mul(node: TorchNode, a: Any, b: Any) -> Complex:
    return _mapped(node, lambda x, y, u, v: (x * u - y * v, x * v + y * u), a, b)


@_complex("div.Tensor", "div.Scalar")
def _div(node: TorchNode, a: Any, b: Any) -> Complex:
    if not is_complex(b):
        return _mapped(node, lambda x, y, u, v: (x / u, y / u), a, b)

    def value(x: Expr, y: Expr, u: Expr, v: Expr) -> Pair:
        size = u * u + v * v
        return (x * u + y * v) / size, (y * u - x * v) / size

    return _mapped(node, value, a, b)


@_complex("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _sum(node: TorchNode, a: Any, b: Any, *, alpha: float = 1) -> Complex:
    by = -alpha if node.name == "sub" else alpha

    def value(x: Expr, y: Expr, u: Expr, v: Expr) -> Pair:
        return (x + u, y + v) if by == 1 else (x + u * float(by), y + v * float(by))

    return _mapped(node, value, a, b)


@_complex("neg.default")
def _neg(node: TorchNode, x: Any) -> Complex:
    return _mapped(node, lambda a, b: (-a, -b), x)


@_complex("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default")
def _conj(node: TorchNode, x: Any) -> Complex:
    return _mapped(node, lambda a, b: (a, -b), x)


@_complex("exp.default")
def _exp(node: TorchNode, x: Any) -> Complex:
    return _mapped(node, lambda a, b: (te.exp(a) * te.cos(b), te.exp(a) * te.sin(b)), x)


@_complex(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "clone.default", "contiguous.default",
    "resolve_conj.default", "resolve_neg.default", "alias.default", "detach.default",
)  # fmt: skip
def _same(node: TorchNode, x: Any, *how: Any, **more: Any) -> Complex | te.Tensor:
    """Real numbers get an imaginary part of 0."""
    return Complex(parts(node, x))


# --- movement ---------------------------------------------------------------------------------


@_complex(
    "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default",
    "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int",
)  # fmt: skip
def _reshaped(node: TorchNode, x: Any, *how: Any) -> Complex:
    return Complex(m.reshape(parts(node, x), (*node.shape, 2)))


@_complex("expand.default")
def _expand(node: TorchNode, x: Any, *how: Any, **more: Any) -> Complex:
    t = parts(node, x)
    more_axes = len(node.shape) + 1 - len(t.shape)
    return Complex(m.expand(m.reshape(t, (*[1] * more_axes, *t.shape)), (*node.shape, 2)))


@_complex("permute.default")
def _permute(node: TorchNode, x: Any, dims: Sequence[int]) -> Complex:
    rank = len(node.shape)
    return Complex(m.transpose(parts(node, x), [*(positive(d, rank) for d in dims), rank]))


@_complex("transpose.int", "slice.Tensor", "select.int")
def _along(node: TorchNode, x: Any, *how: Any) -> Complex:
    """As of real numbers, with axes counted from the front."""
    t = parts(node, x)
    rank = len(t.shape) - 1
    axes = 2 if node.name == "transpose" else 1
    dims = [positive(int(d), rank) for d in how[:axes]] or [0] * (node.name == "slice")
    wider = replace(node, shape=(*node.shape, 2))
    return Complex(ROWS[node.op](wider, t, *dims, *how[axes:]))  # type: ignore[arg-type]


@_complex("cat.default", "stack.default")
def _joined(node: TorchNode, xs: Sequence[Any], dim: int = 0) -> Complex:
    axis, ts = positive(dim, len(node.shape)), [parts(node, x) for x in xs]
    if node.name == "stack":
        shape = [1 if d == axis else n for d, n in enumerate(node.shape)]
        ts = [m.reshape(t, (*shape, 2)) for t in ts]
    return Complex(m.concat(ts, axis))


# --- Fourier transforms -----------------------------------------------------------------------


def _scale(norm: int, n: int) -> float:
    """torch counts: not at all, by the root of all elements, by all elements."""
    return (1.0, n**-0.5, 1.0 / n)[norm]


def _axes(node: TorchNode, dims: Sequence[int], rank: int, lengths: Sequence[int]) -> list[int]:
    for n in lengths:
        ft.afford(n)
    return [positive(d, rank) for d in dims]


@_complex("_fft_r2c.default")
def _real_to_complex(node: TorchNode, x: Value, dims: Sequence[int], norm: int, onesided: bool) -> Complex:
    """The last of the axes first, and half of it where ``onesided``."""
    t = node.cast(x)
    axes = _axes(node, dims, len(t.shape), [t.shape[d] for d in dims])
    out = m.reshape(t, (*t.shape, 1))
    for i, d in enumerate(reversed(axes)):
        n = t.shape[d]
        count = n // 2 + 1 if onesided and i == 0 else n
        out = ft.dft(out, d, False, count, _scale(norm, n), node.table)
    return Complex(out)


@_complex("_fft_c2c.default")
def _complex_to_complex(node: TorchNode, x: Any, dims: Sequence[int], norm: int, forward: bool) -> Complex:
    out = parts(node, x)
    for d in _axes(node, dims, len(node.shape), [out.shape[d] for d in dims]):
        n = out.shape[d]
        out = ft.dft(out, d, not forward, n, _scale(norm, n), node.table)
    return Complex(out)


@_complex("_fft_c2r.default")
def _complex_to_real(node: TorchNode, x: Any, dims: Sequence[int], norm: int, last: int) -> te.Tensor:
    out = parts(node, x)
    rank = len(node.shape)
    axes = _axes(node, dims, rank, [*(node.shape[d] for d in dims), last])
    for d in axes[:-1]:
        n = out.shape[d]
        out = ft.dft(out, d, True, n, _scale(norm, n), node.table)
    made = ft.real_inverse(out, axes[-1], last, _scale(norm, last), node.table)
    return m.reshape(made, node.shape)
