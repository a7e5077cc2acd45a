"""Emits expressions as C for GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.codegen.simt import swizzle
from autotune.codegen.simt.dialect import Dialect
from autotune.errors import CompileError
from schedules import affine, conversions
from schedules import expr as E
from schedules.dtypes import DTYPES, STORED_FLOATS, bits, is_integer
from schedules.expr import Binary, Bits, Call, Cast, Compare, Const, Expr, Fma, Load, Logic, Select, Var
from schedules.functions import FUNCTIONS as ROWS
from schedules.ir import Buffer, Loop, Seq, Store, const, multiply_add, walk
from schedules.ir.exprs import expressions
from schedules.ir.grid import GridKernel
from schedules.ir.strides import elements, known_strides, swizzle_bits

# Largest 32-bit integer.
MOST_INT = (1 << 31) - 1

# Functions by dtype, because OpenCL C has no overloading and macros would repeat their arguments. They define
# what C leaves undefined, as numpy does: casts to integers saturate, sums and products of integers wrap,
# division by zero gives 0, and the least integer divided by -1 is itself.
FUNCTIONS = """\
#define AT_FLOAT(T, dtype) \\
  AT_INLINE T at_min_##dtype(T a, T b) { return a < b || a != a ? a : b; } \\
  AT_INLINE T at_max_##dtype(T a, T b) { return a > b || a != a ? a : b; } \\
  AT_INLINE int at_int32_##dtype(T a) { \\
    return a != a ? 0 : a >= 0x1p31f ? 2147483647 : a < -0x1p31f ? -2147483647 - 1 : (int)a; \\
  } \\
  AT_INLINE at_long at_int64_##dtype(T a) { \\
    const at_long most = 9223372036854775807; \\
    return a != a ? 0 : a >= 0x1p63f ? most : a < -0x1p63f ? -most - 1 : (at_long)a; \\
  } \\
  AT_INLINE T at_fma_##dtype(T a, T b, T c) { return AT_FMA(a, b, c); } \\
  AT_INLINE T at_sigmoid_##dtype(T a) { T e = exp(-fabs(a)); return (a >= 0 ? (T)1 : e) / ((T)1 + e); }
#define AT_INTEGER(T, U, dtype) \\
  AT_INLINE T at_add_##dtype(T a, T b) { return (T)((U)a + (U)b); } \\
  AT_INLINE T at_sub_##dtype(T a, T b) { return (T)((U)a - (U)b); } \\
  AT_INLINE T at_mul_##dtype(T a, T b) { return (T)((U)a * (U)b); } \\
  AT_INLINE T at_min_##dtype(T a, T b) { return a < b ? a : b; } \\
  AT_INLINE T at_max_##dtype(T a, T b) { return a > b ? a : b; } \\
  AT_INLINE T at_abs_##dtype(T a) { return a < 0 ? at_sub_##dtype(0, a) : a; } \\
  AT_INLINE T at_shl_##dtype(T a, T b) { return (U)b < 8 * sizeof(T) ? (T)((U)a << b) : 0; } \\
  AT_INLINE T at_shr_##dtype(T a, T b) { return a >> ((U)b < 8 * sizeof(T) ? b : 8 * sizeof(T) - 1); } \\
  AT_INLINE T at_floordiv_##dtype(T a, T b) { \\
    if (b == 0 || b == -1) return at_mul_##dtype(a, b); \\
    return a / b - (a % b != 0 && (a < 0) != (b < 0)); \\
  } \\
  AT_INLINE T at_mod_##dtype(T a, T b) { \\
    if (b == 0 || b == -1) return 0; \\
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); \\
  } \\
  AT_INLINE T at_ceildiv_##dtype(T a, T b) { \\
    return at_add_##dtype(at_floordiv_##dtype(a, b), at_mod_##dtype(a, b) != 0); \\
  }
AT_FLOAT(float, float32)
AT_INTEGER(int, unsigned, int32)
AT_INTEGER(at_long, at_ulong, int64)
"""
# Rounding to TF32, where it is used; that of float64 is one of float32.
TF32 = (
    ("at_tf32_", """\
AT_INLINE float at_tf32_float32(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(f));
  return AT_AS_FLOAT(bits);
#else
  return f != f ? f : AT_AS_FLOAT((AT_AS_UINT(f) + 0x1000u) & 0xffffe000u);
#endif
}
"""),
    ("at_tf32_float64", "AT_INLINE double at_tf32_float64(double f) { return at_tf32_float32((float)f); }\n"),
)  # fmt: skip
# {operator: its function}.
NAMES = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "<<": "shl", ">>": "shr"}


@dataclass
class Lanes:
    """The vector that is being written. ``var``: its loop variable; ``loaded``: {load of one element: the
    vector that has those of all lanes}. A vector is a buffer, whose index is the lane: the name of its
    variable, with a dot before it, which no tensor's name begins with."""

    var: str
    loaded: dict[Load, str] = field(default_factory=dict)


class CExpressions:
    """Expressions of one kernel as text. ``ranges``: of variables around. ``buffers``: those in scope.
    ``lanes``: the vector that is being written. ``unrolled``: variables of unrolled loops around."""

    def __init__(self, kernel: GridKernel, dialect: Dialect) -> None:
        self.k, self.d = kernel, dialect
        self.ranges: dict[str, affine.Range] = {x.var: (0, (const(x.extent) or 1) - 1) for x in kernel.blocks}
        self.buffers: dict[str, Buffer] = {b.name: b for b in kernel.params}
        self.names: dict[str, str] = {}
        self.lanes: Lanes | None = None
        self.unrolled: frozenset[str] = frozenset()
        large = any(elements(b) > MOST_INT for b in kernel.params)
        self.index = dialect.types["int64"] if large or _counts_far(kernel, self.ranges) else "int"

    def name(self, name: str) -> str:
        """``name`` as an identifier that no language reserves."""
        if name not in self.names:
            plain = "v_" + re.sub(r"\W", "_", name)
            while plain in self.names.values():
                plain += "_"
            self.names[name] = plain
        return self.names[name]

    def combine(self, op: str, dtype: str, a: str, b: str) -> str:
        """``a op b``. Indices are known to be far from the limits of their type."""
        plain = op in ("+", "-", "*", "/") and (dtype == E.INDEX or E.is_float(dtype))
        if plain or op in ("&", "|", "^"):
            return f"({a} {op} {b})"
        return f"{self.helper(NAMES.get(op, op), dtype)}({a}, {b})"

    def helper(self, name: str, dtype: str) -> str:
        """The name of one of `FUNCTIONS`."""
        if dtype == E.INDEX:
            dtype = "int32" if self.index == "int" else "int64"
        return f"at_{name}_{dtype}"

    def flat(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """The flat index of an access as text."""
        at = affine.simplify(self.offset(buffer, indices), self.ranges)
        b = self.buffers[buffer]
        return self.swizzled(at, b) if b.swizzle else self.expr(at)

    def swizzled(self, at: Expr, b: Buffer) -> str:
        """A flat index in a swizzled buffer, as `swizzle.parts` has it: so unrolled loops differ in a
        constant that is added, behind one of few that change bits of the chunk."""
        bits, above = swizzle_bits(b)
        mask = bits // DTYPES[b.dtype].itemsize
        far, own, unrolled = swizzle.parts(at, mask, above, self.ranges, self.unrolled)
        text = f"AT_SWIZZLE({self.expr(own)}, {above}, {mask})"
        if isinstance(unrolled, Const):
            n = int(unrolled.value)
            text = f"(({text} ^ {(n ^ n >> above) & mask}) + {n & ~mask})" if n else text
        else:
            step = self.expr(unrolled)
            text = f"(({text} ^ (AT_SWIZZLE({step}, {above}, {mask}) & {mask})) + (({step}) & ~{mask}))"
        return text if far == Const(0) else f"({self.expr(far)} + {text})"

    def read(self, buffer: str, place: str) -> str:
        """What lies at a place of a buffer as text, through the caches that the kernel tells."""
        cache = self.k.reads.get(buffer, "") if self.d.caches else ""
        return f"AT_READ_AS({cache}, {place})" if cache else place

    def offset(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        """The flat index of an access."""
        out: Expr = Const(0)
        for i, n in zip(reversed(indices), reversed(fixed(self.buffers[buffer])), strict=True):
            out = out + i * n
        return out

    def expr(self, e: Expr) -> str:
        """An expression as text. Raises CompileError."""
        match e:
            case Const(value=v, dtype=d):
                return self.literal(v, d)
            case Var(name=n):
                return self.name(n)
            case Load(buffer=b, indices=ix) if b.startswith("."):  # a vector of `Lanes`, or of a conversion
                return f"{b[1:]}.{member(e.dtype, const(ix[0]) or 0)}" if ix else b[1:]
            case Load(buffer=b, indices=ix):
                return self.read(b, f"{self.name(b)}[{self.flat(b, ix)}]")
            case Binary(op=op, a=a, b=b):
                return self.binary(op, a, b)
            case Compare(op=op, a=a, b=b):
                return f"({self.expr(a)} {op} {self.expr(b)})"
            case Logic(op="not", args=args):
                return f"(!{self.expr(args[0])})"
            case Logic(op=op, args=args):
                return "(" + f" {'&&' if op == 'and' else '||'} ".join(map(self.expr, args)) + ")"
            case Select(cond=c, a=a, b=b):
                return f"({self.expr(c)} ? {self.expr(a)} : {self.expr(b)})"
            case Call(fn=fn, args=args):
                d = E.dtype_of(e)
                x = ", ".join(map(self.expr, args))
                if fn in ("sigmoid", "tf32") or (fn == "abs" and not E.is_float(d)):
                    return f"{self.helper(fn, d)}({x})"
                if not E.is_float(d):
                    return x
                return f"{ROWS[fn].c or fn}{self.d.float_suffix if d == 'float32' else ''}({x})"
            case Fma(a=a, b=b, c=c):
                parts = ", ".join(map(self.expr, (a, b, c)))
                return f"{self.helper('fma', E.dtype_of(a))}({parts})"
            case Cast() | Bits():
                return self.converted(e)
        raise CompileError(f"{self.d.name}: cannot emit {E.show(e)}")

    def converted(self, e: Cast | Bits) -> str:
        """A value, or its bits, as another dtype as text."""
        old, new, text = E.dtype_of(e.a), e.dtype, self.expr(e.a)
        if isinstance(e, Bits) and new == "float32":
            return f"AT_AS_FLOAT({text})"
        if isinstance(e, Bits) and (new, old) == ("int32", "float32"):
            return f"((int)AT_AS_UINT({text}))"
        if isinstance(e, Cast) and new in STORED_FLOATS:
            return f"at_round_{new}({text})"
        if isinstance(e, Cast) and old in STORED_FLOATS:
            return f"at_widen_{old}({text})"
        if isinstance(e, Cast) and is_integer(new) and E.is_float(old):
            return f"{self.helper(new, old)}({text})"
        return f"(({self.index if new == E.INDEX else self.d.types[new]}){text})"

    def binary(self, op: str, a: Expr, b: Expr) -> str:
        """``a op b`` as text."""
        d = E.dtype_of(a)
        x, y = self.expr(a), self.expr(b)
        if op in ("//", "%", "ceildiv") and d == E.INDEX and isinstance(b, Const) and b.value > 0:
            span = affine.bounds(a, self.ranges)
            if span is not None and span[0] >= 0:
                if op == "ceildiv":
                    return f"(({x} + {b.value - 1}) / {y})"
                return f"({x} {'/' if op == '//' else '%'} {y})"
        return self.combine(op, d, x, y)

    def stored(self, s: Store) -> str:
        """The value that a store writes."""
        found = multiply_add(s)
        if found is None:
            return self.expr(s.value)
        return f"{self.helper('fma', E.dtype_of(s.value))}({', '.join(map(self.expr, found))})"

    def literal(self, v: int | float | bool, dtype: str) -> str:
        """A literal as text."""
        if dtype == "bool":
            return "1" if v else "0"
        if not E.is_float(dtype):
            wide = dtype == "int64" or (dtype == E.INDEX and self.index != "int")
            least = v in (DTYPES["int32"].range[0], DTYPES["int64"].range[0])
            text = f"{v + 1} - 1" if least else str(v)  # C has no negative literals, and none of that size
            if wide:
                return f"(({self.d.types['int64']}){text})"
            return f"({text})" if v < 0 else text
        if dtype in STORED_FLOATS:
            return f"{bits(v, dtype):#06x}"
        with np.errstate(over="ignore"):
            rounded: Any = DTYPES[dtype].numpy.type(v)
        size = abs(rounded)
        if np.isnan(size):
            text = "NAN"
        elif np.isinf(size):
            text = "INFINITY"
        elif dtype == "float32":
            text = np.format_float_scientific(size) + "f"
        else:
            text = repr(float(size))
        return f"(-{text})" if np.signbit(rounded) else text


def member(dtype: str, lane: int) -> str:
    """The name of a lane in a vector."""
    return f"s{lane:x}" if DTYPES[dtype].itemsize <= 2 else "xyzw"[lane]


def with_conversions(dialect: Dialect) -> Dialect:
    """A dialect whose prelude has functions that widen floats of storage to float32 and round to them. For
    float16 a language may have its own: those here count where ``without_half`` is defined."""
    x = CExpressions(GridKernel("", (), frozenset(), (1, 1, 1), (1, 1, 1), (), Seq(())), dialect)
    text = dialect.prelude
    for d in STORED_FLOATS:
        kind, widened, narrowed = dialect.types[d], conversions.widened(d), conversions.narrowed(d)
        made = f"""\
AT_INLINE float at_widen_{d}({kind} x) {{ return {x.expr(widened)}; }}
AT_INLINE {kind} at_round_{d}(float x) {{ return {x.expr(narrowed)}; }}
"""
        text += f"#ifdef {dialect.without_half}\n{made}#endif\n" if d == "float16" else made
    return replace(dialect, prelude=text)


def _counts_far(kernel: GridKernel, ranges: affine.Ranges) -> bool:
    """Whether some index leaves 32 bits. It is then computed with as a number, as arrays are smaller."""
    every = list(walk(kernel.body))
    inside = {**ranges, **{x.var: (0, (const(x.extent) or 1) - 1) for x in every if isinstance(x, Loop)}}
    return any(affine.leaves(x, inside, MOST_INT) is not None for s in every for x in expressions(s))


def fixed(b: Buffer) -> tuple[int, ...]:
    """The strides of a buffer. Raises CompileError unless its extents are numbers."""
    if any(const(x) is None for x in (*b.shape, *(b.strides or ()))):
        raise CompileError(f"buffer {b.name} has no fixed shape")
    return known_strides(b)
